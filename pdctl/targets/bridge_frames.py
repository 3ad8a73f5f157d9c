"""What goes over a bridge: a far side's standard input and output.

The client speaks first. Both sides send frames (:mod:`pdctl.protocol.stream`) of msgpack. The far side's first ones come after
MAGIC: what a login or a wrapper prints before it is passed over, up to MAX_PREAMBLE bytes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from pdctl.protocol import wire
from pdctl.protocol.model import Identity

VERSION = 1
MAGIC_STEM = b"\n%pdctl-bridge-"
MAGIC = b"%s%d%%\n" % (MAGIC_STEM, VERSION)
MAX_PREAMBLE = 64 << 10
MAX_ASK = wire.MAX_REQUEST + (4 << 10)
MAX_TOLD = wire.MAX_MESSAGE + (4 << 10)
MAX_RANKS = 1024
"""Ranks that a far side lists, and asks at the same time."""
MAX_LISTING = 4 << 20
"""Bytes of a list of ranks."""
LIST, QUESTION = "list", "ask"
STATES = ("live", "dead", "outside")


class Settings(msgspec.Struct, frozen=True):
    """How a far side looks for its ranks. run_dir, record_dir, outside: as the variables of that name, "" for what it has."""

    run_dir: str = ""
    record_dir: str = ""
    outside: str = ""
    timeout_s: float = 5.0
    rank_timeout_s: float = 2.0


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A frame of the client. op: LIST, with Settings, or QUESTION, with a request to the rank ``key``.

    channel: the answer's. wait_s: after how long the far side gives up.
    """

    channel: int
    op: str
    key: str = ""
    wait_s: float = 0.0
    payload: bytes = b""


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A frame of the far side: a Listing, a rank's reply, or (``silence``, ``reason``) where it gave none."""

    channel: int
    payload: bytes = b""
    silence: str = ""
    reason: str = ""


class FarRank(msgspec.Struct, frozen=True):
    """A rank as its far side found it. key: its name in questions. The others: as in FoundRank."""

    key: str
    identity: Identity
    state: str
    endpoint: str = ""
    endpoint_off: str = ""
    protocol: int = 0
    recording_size: int = 0
    recording_off: str = ""
    tcp: str = ""
    tcp_off: str = ""
    store: str = ""
    silence: str = ""
    silent_why: str = ""


class Listing(msgspec.Struct, frozen=True):
    """What a far side found. bare: living schedulers that have no agent and are not among ``ranks``."""

    ranks: Annotated[tuple[FarRank, ...], msgspec.Meta(max_length=MAX_RANKS)] = ()
    problems: Annotated[tuple[str, ...], msgspec.Meta(max_length=256)] = ()
    bare: int = 0
