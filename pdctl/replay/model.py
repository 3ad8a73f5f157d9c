"""The result of a replay."""

from __future__ import annotations

import msgspec

from pdctl.protocol.documents import Document
from pdctl.replay.position import Position
from pdctl.replay.worker_log import Line


class Worked(msgspec.Struct, frozen=True):
    """The result of one worker. exit: its exit status, negative for a signal. lines: of its log."""

    lines: tuple[Line, ...]
    position: Position
    exit: int


class Difference(msgspec.Struct, frozen=True):
    """A request that left on one rank in another way than in the other's queue, or than recorded. action "" is kept."""

    rank: str
    room: int
    action: str
    recorded: str = ""


class End(msgspec.Struct, frozen=True):
    """How one rank's replay ended: ``done``, ``hung``, ``died``, ``failed``; round as recorded, polls it was at."""

    rank: str
    how: str
    round: int
    polls: int
    text: str = ""


class ReplayRun(msgspec.Struct, frozen=True, kw_only=True):
    """One execution. gate: ``on`` or ``off``. verdict: AS RECORDED, DIFFERS, DIVERGES or NOT RUN; text says it in words.

    round: as recorded, of the divergence or the first difference, -1 without one. rooms: concerned. engine: whose
    functions polled. mixed: the ranks' lists differed, and no collective failed. held: rooms the gate held back, rounds.
    """

    gate: str
    verdict: str
    text: str
    round: int = -1
    rooms: tuple[int, ...] = ()
    sides: tuple[Difference, ...] = ()
    ends: tuple[End, ...] = ()
    held: tuple[int, ...] = ()
    engine: str = ""
    engine_differs: tuple[str, ...] = ()
    rounds: int = 0
    seconds: float = 0.0


class ReplayGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The rounds of one queue over one group. first, last: recorded ordinals; recorded_gate: whether the ranks have one.

    missing: ranks without a recording, whose polls are no part of the reductions.
    """

    title: str
    queue: str
    ranks: tuple[str, ...]
    first: int
    last: int
    executed: int
    left_out: int
    requests: int
    element: str
    recorded_gate: bool
    runs: tuple[ReplayRun, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class ReplayDocument(Document, frozen=True, kw_only=True, tag="pdctl.replay"):
    """Answer of ``pdctl replay TRACE``. partial: ranks or rounds are missing; problems say which."""

    trace: str
    device: str
    backend: str
    groups: tuple[ReplayGroup, ...]
    partial: bool = False
    problems: tuple[str, ...] = ()
