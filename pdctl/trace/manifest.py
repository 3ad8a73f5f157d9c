"""What a trace says of itself: ``manifest.json``, of which docs/trace-format.md explains every field."""

from __future__ import annotations

import os
import socket
import time
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import msgspec

from pdctl import __version__
from pdctl.protocol import structs
from pdctl.protocol.documents import Document
from pdctl.protocol.fields import Count, MonoNs, Name, why_not
from pdctl.protocol.model import Identity

VERSION = 1
SCHEMA = "pdctl.trace"
SUFFIX = ".pdtrace"
MANIFEST = "manifest.json"
MAX_RANKS = 4096
MAX_VALUES = 5_500_000
"""Values and quotes in a manifest: a small number takes 36 bytes of memory. 4096 ranks in two groups of 512 each have less."""
MAX_COLLECTORS = 200
MAX_PROBLEMS = 20
"""Ranks left out that are told one by one."""
WHOLE, PARTIAL, MISSING = "whole", "partial", "missing"


class Clock(msgspec.Struct, frozen=True):
    """The clocks of the host on which the trace was made, read together. boot: names that start of the host."""

    host: Name
    boot: Name
    wall_ns: Count
    mono_ns: MonoNs


class Gap(msgspec.Struct, frozen=True):
    """Records that a rank overwrote before they were copied.

    ring: ``rounds``, ``items`` or ``events``. lost: how many records, for items how many runs are without requests.
    after_ns, before_ns: monotonic times of the records around them, 0 where unknown.
    """

    ring: Name
    lost: Count
    after_ns: MonoNs = 0
    before_ns: MonoNs = 0


class TraceRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank that was expected when the trace was made.

    rank: its label. state: ``live``, ``dead``, ``recorded`` or ``no agent`` then. kept: ``whole`` (its recording as it
    was), ``partial`` (what could be had of it) or ``missing``; reason says why it is not whole. member: name of its
    recording in the file, with its size in bytes and its SHA-256 in hexadecimal, "" where it is missing.
    writer: ``writing``, ``closed`` or ``stopped``, as its recording says. through: ``file`` or ``socket``.
    taken_wall_ns, taken_mono_ns: the maker's clocks when the last of it was read, 0 where its recording may be older.
    """

    rank: Name
    state: Name
    kept: Name
    identity: Identity
    reason: str = ""
    member: str = ""
    size: Count = 0
    sha256: str = ""
    writer: Name = ""
    through: Name = ""
    taken_wall_ns: Count = 0
    taken_mono_ns: MonoNs = 0
    gaps: tuple[Gap, ...] = ()
    problems: tuple[str, ...] = ()


class Divergence(msgspec.Struct, frozen=True):
    """The divergence that ended a trace: in which group and queue, at which round, over which rooms and ranks."""

    group: Name
    queue: Name
    round: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 62)]
    rooms: tuple[int, ...]
    ranks: tuple[str, ...]
    findings: tuple[str, ...] = ()


class Collector(msgspec.Struct, frozen=True, kw_only=True):
    """One command whose result a bundle has beside the recordings.

    command: as people type it. status: ``kept``, ``partial`` (it could not look at everything) or ``missing``; reason says why
    it is not whole. seconds: how long it took. member: the file that has its result, of ``size`` bytes, "" where it is missing.
    """

    name: Name
    command: str
    status: Name
    reason: str = ""
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    member: Name = ""
    size: Count = 0


class Manifest(Document, frozen=True, kw_only=True, tag="pdctl.trace"):
    """All that a trace holds besides recordings.

    started_wall_ns: when its making began; seconds: how long it took. stopped: why it ended. redacted: names are
    replaced by hashes, made with ``salt`` (hexadecimal). earlier: dead ranks of earlier starts that were left out.
    collectors: what a bundle has besides; a trace that is none has no such list.
    """

    pdctl_version: str
    started_wall_ns: Count
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    stopped: str
    clock: Clock
    redacted: bool = False
    salt: Annotated[str, msgspec.Meta(pattern=r"^(?:[0-9a-f]{2}){0,64}(?![\s\S])")] = ""
    ranks: tuple[TraceRank, ...] = ()
    divergence: Divergence | None = None
    earlier: Count = 0
    problems: tuple[str, ...] = ()
    collectors: Annotated[tuple[Collector, ...], msgspec.Meta(max_length=MAX_COLLECTORS)] = ()

    @property
    def partial(self) -> bool:
        """Whether the recording of any rank is not whole, or something could not be read."""
        return bool(self.problems) or any(rank.kept != WHOLE for rank in self.ranks)


class _AnyRank(msgspec.Struct):
    """Any object: ranks are counted before one is read."""


class _Head(msgspec.Struct):
    schema: str = ""
    version: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0
    pdctl_version: Name = ""
    ranks: list[_AnyRank] = []


class Foreign(ValueError):  # noqa: N818  # it names what was found
    """The JSON is no manifest of a trace, or one of a later version; next_step: what to do about it, "" where unknown."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


def decode(raw: bytes) -> Manifest:
    """Return the manifest in these bytes of JSON, which nobody has vouched for.

    A rank in it that can't be true is left out, which a line of ``problems`` says. Raises Foreign, and ValueError
    where the manifest as a whole can't be used.
    """
    if sum(map(raw.count, (b",", b"[", b"{", b'"'))) > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES:,} values")
    try:
        head = structs.from_json(raw, _Head)
        if head.schema != SCHEMA:
            raise Foreign(f"its schema is {head.schema[:100] or 'not said'!r}")
        if head.version > VERSION:
            newer = f"Update pdctl; it was made by pdctl {head.pdctl_version or 'of a later version'}."
            raise Foreign(f"trace version {head.version}; this pdctl reads up to {VERSION}", newer)
        if len(head.ranks) > MAX_RANKS:
            raise ValueError(f"it names {len(head.ranks)} ranks, at most {MAX_RANKS} are read")
        try:
            return structs.from_json(raw, Manifest)
        except msgspec.ValidationError:
            return _in_part(raw)
    except msgspec.MsgspecError as error:
        raise ValueError(why_not(error)) from None


def _in_part(raw: bytes) -> Manifest:
    fields = structs.from_json(raw, dict[str, msgspec.Raw])
    ranks = structs.from_json(fields.get("ranks", b"[]"), list[msgspec.Raw])
    fields["ranks"] = msgspec.Raw(b"[]")
    manifest = structs.from_json(msgspec.json.encode(fields), Manifest)
    sane, problems = [], []
    for number, rank in enumerate(ranks, start=1):
        try:
            sane.append(structs.from_json(rank, TraceRank))
        except msgspec.ValidationError as error:
            problems.append(f"rank {number} of the manifest can't be true and was left out: {why_not(error)}")
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [f"and {len(problems) - MAX_PROBLEMS} more ranks of the manifest"]
    return msgspec.structs.replace(manifest, ranks=tuple(sane), problems=(*manifest.problems, *problems))


def clock() -> Clock:
    """Return the clocks of this host now."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return Clock(socket.gethostname(), boot, time.time_ns(), time.monotonic_ns())


def new(stopped: str, *, started_wall_ns: int = 0, seconds: float = 0.0, problems: tuple[str, ...] = ()) -> Manifest:
    """Return a manifest of now without ranks; :func:`pdctl.trace.reader.write_trace` puts them in."""
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
