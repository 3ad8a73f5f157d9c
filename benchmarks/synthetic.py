"""A rank that exists for a benchmark only."""

from __future__ import annotations

import os
from typing import Any

import msgspec

import pdctl
from pdctl.protocol.model import GroupInfo, Identity


def rank_identity(number: int = 0, **changes: Any) -> Identity:
    """Return the identity of decode rank ``number`` of two."""
    rank = Identity(
        engine="bench",
        engine_version="",
        pdctl_version=pdctl.__version__,
        role="decode",
        host="localhost",
        pid=os.getpid(),
        proc_start=0,
        started_wall_ns=0,
        started_mono_ns=0,
        instance="bench",
        service="decode bench",
        cluster="",
        world="bench",
        world_rank=number,
        tp=number,
        tp_size=2,
        groups=(GroupInfo("attn-tp", (0, 1), "bench"),),
    )
    return msgspec.structs.replace(rank, **changes) if changes else rank


def identity(number: int = 0) -> bytes:
    """Return the same as a recording's header takes it."""
    return msgspec.json.encode(rank_identity(number))
