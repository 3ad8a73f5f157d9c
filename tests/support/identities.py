"""Identities of ranks, for tests that need one."""

from __future__ import annotations

from typing import Any

import msgspec

from pdctl.protocol.model import Identity

BASE = Identity(
    engine="tiny",
    engine_version="1",
    pdctl_version="0",
    role="decode",
    host="here",
    pid=1,
    proc_start=1,
    started_wall_ns=10**18,
    started_mono_ns=0,
    instance="first",
    service="decode here:30001",
    cluster="",
    world="w",
    world_rank=0,
)


def identity(**changes: Any) -> Identity:
    """Return BASE with ``changes``."""
    return msgspec.structs.replace(BASE, **changes)
