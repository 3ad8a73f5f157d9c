"""The keys and values that agents publish in their job's rendezvous store (torch.distributed's TCPStore).

    pdctl/count                                  how many entries were ever made
    pdctl/entry/<n>                              the name of the n-th entry, from 1 on
    pdctl/<instance>/<world rank>/<pid>-<start>  an entry: who the rank is and how to reach it, JSON of Entry
    …/beat                                       JSON of Beat, written anew every BEAT_EVERY_S

The index exists because a TCPStore can list its keys only since torch 2.13. The job's own keys are never read or written.
"""

from __future__ import annotations

import msgspec

from pdctl.protocol import paths
from pdctl.protocol.model import Identity
from pdctl.protocol.paths import Registration

COUNT = "pdctl/count"
BEAT_EVERY_S = 10.0
STALE_S = 3 * BEAT_EVERY_S
"""A heartbeat older than this says that the rank's process, or its host, is gone, or cut off from the store."""
MAX_ENTRIES = 16384
MAX_VALUE = 1 << 20
MAX_READ = 32 << 20
"""Bytes of one entry, and of all that are read of a store: an entry has some 2 KiB."""


class Entry(msgspec.Struct, frozen=True):
    """One rank. endpoint: its TCP socket as other hosts reach it, "" if it has none (registration says why)."""

    registration: Registration
    endpoint: str = ""
    v: int = 1


class Beat(msgspec.Struct, frozen=True):
    """A heartbeat. number: counts up. wall_ns: its time on the rank's clock. ended: whether the agent ended normally."""

    number: int
    wall_ns: int
    ended: bool = False


def index(number: int) -> str:
    """Return the key of the n-th entry's name."""
    return f"pdctl/entry/{number}"


def name(identity: Identity) -> str:
    """Return the key of a rank's entry. A restarted process has another key."""
    return f"pdctl/{identity.instance}/{identity.world_rank}/{paths.stem(identity.pid, identity.proc_start)}"


def beat(entry: str) -> str:
    """Return the key of an entry's heartbeat."""
    return f"{entry}/beat"


class RawEntry(msgspec.Struct, frozen=True):
    """One entry as found in a store, not decoded. It may be of another version, and anybody may have written it."""

    name: str
    entry: bytes
    beat: bytes = b""


class Read(msgspec.Struct, frozen=True):
    """The entries read from one store. error: why none, or not all, could be read. read_ns: when, by the wall clock here."""

    entries: list[RawEntry] = []
    error: str = ""
    read_ns: int = 0
