"""What ``diff-queues`` takes and gives: views of ranks in, groups with their queues, splits and findings out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pdctl.probes.turns import Turn
from pdctl.protocol.documents import Document
from pdctl.protocol.model import FlightEntry, Identity, Snapshot, Status
from pdctl.report.findings import Finding

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording


@dataclass(frozen=True)
class RankView:
    """All that could be had of one rank. silence: why it gave no live answer, "" when it did.

    ended: its process has, as far as can be seen. recording_off: why there are no rounds. now_ns: this moment on the clock of
    its recording, None where unknown. flight: PyTorch's flight recorder of it, where that is on and was asked.
    flight_off: why it was asked for that in vain, though it may have one.
    stands: its scheduler loop has not turned and can't. turn: what is known of that loop, None where nobody was asked.
    """

    identity: Identity
    state: str
    silence: str = ""
    ended: bool = False
    status: Status | None = None
    snapshot: Snapshot | None = None
    recording: Recording | None = None
    recording_off: str = ""
    now_ns: int | None = None
    flight: tuple[FlightEntry, ...] = ()
    flight_off: str = ""
    stands: bool = False
    turn: Turn | None = None

    @property
    def answers(self) -> bool:
        """Whether it is heard itself, now or when its recording was made: neither silent nor ended."""
        return not self.silence and not self.ended

    @property
    def place(self) -> str:
        """``tp1``: its place in its group."""
        return f"tp{self.identity.tp}"


class RoomSide(msgspec.Struct, frozen=True):
    """What one rank knew of a room in the round that differs, or that it did not have it.

    action: ``committed``, ``kept``, ``failed``, ``aborted``, ``moved on``, ``undecided``, ``not on its list``.
    found: room in the slot when it decided, None unknown. landed_s: seconds from Success until the slot held the room,
    None when it was not seen to land. where: queue it is in now, "" unknown.
    """

    rank: str
    action: str
    local: str = "-"
    gated: str = "-"
    slot: int = -1
    found: int | None = None
    landed_s: float | None = None
    where: str = ""


class RoomSplit(msgspec.Struct, frozen=True):
    """A room on which the ranks differ."""

    room: int
    rid: str
    sides: tuple[RoomSide, ...]


class QueueRow(msgspec.Struct, frozen=True):
    """One queue of a group. lengths: per rank, None unknown. verdict: agree, diverged, held, waiting, skewed, unknown.

    Of pipeline stages: alike (requests that left it came to the same on all), kept (one has what another let go).
    """

    queue: str
    lengths: tuple[int | None, ...]
    verdict: str
    text: str = ""
    round: int = -1


class RankNow(msgspec.Struct, frozen=True):
    """Where a rank is. age_s: seconds since its last turn, None unknown. last_round: of the group's queues, in words."""

    rank: str
    state: str
    doing: str
    age_s: float | None = None
    last_round: str = ""


WELL = ("AGREE", "ALONE", "HELD")
"""Verdicts of groups in which nothing has to be explained."""


class GroupReport(msgspec.Struct, frozen=True, kw_only=True):
    """One group of ranks that go on together.

    kind: ``polls`` (they reduce their polls together), ``stages`` (of a pipeline), ``lockstep`` (dp ranks that meet in each
    turn). verdict: AGREE (every member was heard), ALONE (one rank), DIVERGED, HELD, WAITING, SKEWED, KEPT (one stage has what
    another let go) or UNKNOWN. said: what was and what was not compared, in words.
    round / queue / age_s: of the first round that differs; of stages, of the request with which they parted.
    compared: per queue, how many rounds were compared; of stages, how many requests.
    pairing: what the ranks' collectives of this group say, in words.
    leaders and stragglers: ranks ahead and behind, of a group that has DIVERGED or is WAITING.
    """

    title: str
    ranks: tuple[str, ...]
    verdict: str
    queue: str = ""
    round: int = -1
    age_s: float | None = None
    queues: tuple[QueueRow, ...] = ()
    splits: tuple[RoomSplit, ...] = ()
    leaders: tuple[str, ...] = ()
    stragglers: tuple[str, ...] = ()
    now: tuple[RankNow, ...] = ()
    pairing: tuple[str, ...] = ()
    compared: dict[str, int] = {}
    notes: tuple[str, ...] = ()
    role: str = ""
    cluster: str = ""
    kind: str = "polls"
    said: str = ""


class QueuesDocument(Document, frozen=True, kw_only=True, tag="pdctl.queues"):
    """Answer of ``pdctl diff-queues``. partial: something could not be judged; problems say what."""

    groups: tuple[GroupReport, ...]
    findings: tuple[Finding, ...] = ()
    partial: bool = False
    problems: tuple[str, ...] = ()
    earlier: int = 0
