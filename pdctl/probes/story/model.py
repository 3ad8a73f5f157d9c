"""What ``story`` takes and gives: pasts of ranks in, one time line of a room out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from pdctl.protocol.documents import Document
from pdctl.protocol.model import Identity
from pdctl.report.findings import Finding

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording


@dataclass(frozen=True)
class RankPast:
    """One rank and its recording. state: as :class:`pdctl.protocol.rank.FoundRank` has it. why_not: why there is none."""

    identity: Identity
    state: str
    recording: Recording | None = None
    why_not: str = ""


@dataclass(frozen=True)
class Moment:
    """Something one rank recorded of a room, at ``ns`` of its own monotonic clock.

    kind: the station, one of KINDS. rounds: how many rounds it lasted, ``until_ns`` until when; 0 and None where that says
    nothing. value: the state or poll it changed to. peer: tp of the decode rank it was for, -1 for none. since_ns: it can't
    have been earlier than that, where ``ns`` is only when it was over.
    """

    ns: int
    kind: str
    text: str
    queue: str = ""
    round: int = -1
    rounds: int = 0
    until_ns: int | None = None
    slot: int = -1
    value: str = ""
    peer: int = -1
    since_ns: int = 0


@dataclass(frozen=True)
class QueueStay:
    """A room's stay in a queue, on the rank's own clock. since_known: it was seen entering, not just being there.

    until_ns: None while it is there, or where its end is not known. how: what it left by, in a word.
    """

    queue: str
    since_ns: int
    until_ns: int | None
    how: str = ""
    since_known: bool = True


@dataclass(frozen=True)
class Lost:
    """A part of the past that a recording does not have any more: all before ``until_ns`` (None: no matter when)."""

    text: str
    until_ns: int | None = None


@dataclass
class RankStory:
    """All that one recording says of a room. came: a request with it came to the rank; a state may be all it was told."""

    moments: list[Moment] = field(default_factory=list)
    stays: list[QueueStay] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    came: bool = False


KINDS = (
    "log",
    "arrival",
    "enqueue",
    "registration",
    "query",
    "answer",
    "handshake",
    "allocation",
    "state",
    "poll",
    "held",
    "sent",
    "missing",
    "landed",
    "decision",
    "dequeue",
    "freed",
    "abort",
    "failure",
    "fault",
    "note",
    "last",
)
"""Stations of a room, as ``kind`` of an entry names them; of those at one time on one rank the earlier here come first."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a story. t_s: seconds since its first one; time: the same on the wall clock, ISO 8601, UTC.

    rank: its short name, or that of a log. kind: ``log arrival enqueue registration query answer handshake allocation state
    poll held sent missing landed decision dequeue freed abort failure fault note last``. rounds, until_s: how long it
    lasted, 0 and None where that says nothing. value: the state or poll it changed to, what was decided, or what a log says:
    ``received answered cancelled aborted failed named``. peer: tp of the decode rank it was for, -1 for none.
    """

    room: int
    t_s: float
    time: str
    rank: str
    kind: str
    text: str
    queue: str = ""
    round: int = -1
    rounds: int = 0
    until_s: float | None = None
    slot: int = -1
    value: str = ""
    peer: int = -1


class Stay(msgspec.Struct, frozen=True):
    """A stay in a queue. until_s: None while it is there or where its end is not known. since_known: it was seen entering."""

    rank: str
    queue: str
    since_s: float
    until_s: float | None
    how: str = ""
    since_known: bool = True


class RankLine(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of the story. label: its full name; rank: the short one that entries have.

    saw: its recording knows the room. elsewhere: it does not, and need not: the room was on another dp rank or server of its
    side. uncertainty_s: how far its times may be off against those of ``reference`` ranks,
    None where nothing but wall clocks tells. clock: what that rests on, in words. why_not: why it has no recording.
    """

    rank: str
    label: str
    role: str
    state: str
    host: str
    pid: int
    saw: bool
    elsewhere: bool = False
    reference: bool = False
    uncertainty_s: float | None = None
    clock: str = ""
    why_not: str = ""


class LogSource(msgspec.Struct, frozen=True, kw_only=True):
    """A log that was read for the story. name: what entries have for a rank. by: ``router``, ``engine``, or "" unknown.

    lines: how many of its lines name the request. every_s: resolution of its times in seconds, 0 where it has none. clock: what
    its times are, in words.
    """

    name: str
    path: str
    by: str = ""
    lines: int = 0
    every_s: float = 0.0
    clock: str = ""


class RoomStory(msgspec.Struct, frozen=True, kw_only=True):
    """The story of one room. started: wall time of its first entry. gaps: what is not known, and why, a sentence each."""

    room: int
    rids: tuple[str, ...]
    started: str
    span_s: float
    entries: tuple[Entry, ...]
    stays: tuple[Stay, ...]
    ranks: tuple[RankLine, ...]
    logs: tuple[LogSource, ...] = ()
    gaps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class StoryDocument(Document, frozen=True, kw_only=True, tag="pdctl.story"):
    """Answer of ``pdctl story``. asked: the room or rid as given. earlier: dead ranks of earlier starts, left out."""

    asked: str
    stories: tuple[RoomStory, ...]
    findings: tuple[Finding, ...] = ()
    earlier: int = 0
