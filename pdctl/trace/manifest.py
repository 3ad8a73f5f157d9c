"""What a trace says of itself: ``manifest.json``, of which docs/trace-format.md explains every field."""

from __future__ import annotations

import os
import socket
import time
from hashlib import blake2b
from pathlib import Path

import msgspec

from pdctl import __version__
from pdctl.documents import Document
from pdctl.model import Identity

VERSION = 1
WHOLE, PARTIAL, MISSING = "whole", "partial", "missing"


class Clock(msgspec.Struct, frozen=True):
    """The clocks of the host on which the trace was made, read together. boot: names that start of the host."""

    host: str
    boot: str
    wall_ns: int
    mono_ns: int


class Gap(msgspec.Struct, frozen=True):
    """Records that a rank overwrote before they were copied.

    ring: ``rounds``, ``items`` or ``events``. lost: how many records, for items how many runs are without requests.
    after_ns, before_ns: monotonic times of the records around them, 0 where unknown.
    """

    ring: str
    lost: int
    after_ns: int = 0
    before_ns: int = 0


class TraceRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank that was expected when the trace was made.

    rank: its label. state: ``live``, ``dead``, ``recorded`` or ``no agent`` then. kept: ``whole`` (its recording as it
    was), ``partial`` (what could be had of it) or ``missing``; reason says why it is not whole. member: name of its
    recording in the file, with its size in bytes and its SHA-256 in hexadecimal, "" where it is missing.
    writer: ``writing``, ``closed`` or ``stopped``, as its recording says. through: ``file`` or ``socket``.
    taken_wall_ns, taken_mono_ns: the maker's clocks when the last of it was read, 0 where its recording may be older.
    """

    rank: str
    state: str
    kept: str
    identity: Identity
    reason: str = ""
    member: str = ""
    size: int = 0
    sha256: str = ""
    writer: str = ""
    through: str = ""
    taken_wall_ns: int = 0
    taken_mono_ns: int = 0
    gaps: tuple[Gap, ...] = ()
    problems: tuple[str, ...] = ()


class Divergence(msgspec.Struct, frozen=True):
    """The divergence that ended a trace: in which group and queue, at which round, over which rooms and ranks."""

    group: str
    queue: str
    round: int
    rooms: tuple[int, ...]
    ranks: tuple[str, ...]
    findings: tuple[str, ...] = ()


class Manifest(Document, frozen=True, kw_only=True, tag="pdctl.trace"):
    """All that a trace holds besides recordings.

    started_wall_ns: when its making began; seconds: how long it took. stopped: why it ended. redacted: names are
    replaced by hashes, made with ``salt`` (hexadecimal). earlier: dead ranks of earlier starts that were left out.
    """

    pdctl_version: str
    started_wall_ns: int
    seconds: float
    stopped: str
    clock: Clock
    redacted: bool = False
    salt: str = ""
    ranks: tuple[TraceRank, ...] = ()
    divergence: Divergence | None = None
    earlier: int = 0
    problems: tuple[str, ...] = ()

    @property
    def partial(self) -> bool:
        """Whether the recording of any rank is not whole, or something could not be read."""
        return bool(self.problems) or any(rank.kept != WHOLE for rank in self.ranks)


def clock() -> Clock:
    """Return the clocks of this host now."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return Clock(socket.gethostname(), boot, time.time_ns(), time.monotonic_ns())


def new(stopped: str, *, started_wall_ns: int = 0, seconds: float = 0.0, problems: tuple[str, ...] = ()) -> Manifest:
    """Return a manifest of now without ranks; :func:`pdctl.trace.container.write_trace` puts them in."""
    return Manifest(
        version=VERSION,
        pdctl_version=__version__,
        started_wall_ns=started_wall_ns or time.time_ns(),
        seconds=seconds,
        stopped=stopped,
        clock=clock(),
        problems=problems,
    )


def new_salt(words: str = "") -> str:
    """Return a salt that no other trace has, or the one that belongs to ``words``."""
    return blake2b(words.encode(), digest_size=16).hexdigest() if words else os.urandom(16).hex()
