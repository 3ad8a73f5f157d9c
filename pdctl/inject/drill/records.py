"""Lines of a drill's journal. Plain data; ``pdctl schema drill.journal`` prints its schema.

``at`` is seconds since the drill began. The first line is a manifest, the last two are an end and a verdict.
"""

from __future__ import annotations

from typing import Union

import msgspec

from pdctl.inject.drill.schema import Drill
from pdctl.report.findings import Finding

VERSION = 1
"""Of the journal's format; a reader refuses a newer one."""

STEADY, FAULT, DURING, HEAL, AFTER = STEPS = ("steady", "fault", "during", "heal", "after")
HOLDS, BROKEN, INCONCLUSIVE = "HOLDS", "BROKEN", "INCONCLUSIVE"


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", omit_defaults=True):
    """One line."""


class RankLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank as it was when the drill began. lacks: protections that its engine's code does not have."""

    rank: str
    state: str
    engine: str = ""
    engine_version: str = ""
    pdctl_version: str = ""
    host: str = ""
    pid: int = 0
    armed: bool = False
    lacks: tuple[str, ...] = ()


class Manifest(_Record, frozen=True, kw_only=True, tag="manifest"):
    """What was run on what. started: seconds of the wall clock. lab: the embedded cluster's options where it has one.

    servers: the real ones that pdctl sent its requests to, and their bootstrap server.
    """

    version: int = VERSION
    pdctl: str
    python: str
    started: float
    seed: int
    control: bool
    drill: Drill
    owner: str = ""
    cluster: str = ""
    lab: str = ""
    servers: str = ""
    ranks: tuple[RankLine, ...] = ()


class Step(_Record, frozen=True, kw_only=True, tag="step"):
    """A step begins."""

    at: float
    step: str
    text: str = ""


class GroupLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of ranks in a look, as ``pdctl diff-queues`` judges it."""

    title: str
    verdict: str
    queue: str = ""
    round: int = -1
    lengths: dict[str, tuple[int | None, ...]] = {}


class Look(_Record, frozen=True, kw_only=True, tag="look"):
    """One look at all ranks. silent: ranks that gave no answer; dead: of these, whose process has ended.

    stalled: rank → seconds since its scheduler's last turn, where that is a second or more. lingering: rooms of the
    drill's requests and faults that are in a queue of some rank.
    """

    at: float
    step: str
    groups: tuple[GroupLine, ...] = ()
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    stalled: dict[str, float] = {}
    lingering: dict[int, tuple[str, ...]] = {}


class LoadLine(_Record, frozen=True, kw_only=True, tag="load"):
    """What came of a load: the one that ran in ``step``, which was over in step ``ended`` ("": it was given up).

    misrouted: sent to another prefill dp rank than the room implies. aborted: given up by the load. unchecked: of those
    completed, whose tokens could not be compared with right ones. harm: what the load is believed to have broken where
    pdctl can't count it, "" for none.
    """

    at: float
    step: str
    ended: str
    sent: int = 0
    completed: int = 0
    failed: int = 0
    wrong: int = 0
    unfinished: int = 0
    aborted: int = 0
    misrouted: int = 0
    unchecked: int = 0
    harm: str = ""
    errors: dict[str, int] = {}
    rooms: tuple[int, ...] = ()


class Placed(_Record, frozen=True, kw_only=True, tag="placed"):
    """The fault was placed. on: the ranks that carry it, aimed at ``targets``."""

    at: float
    fault: str
    kind: str
    targets: tuple[str, ...]
    on: tuple[str, ...]
    notes: tuple[str, ...] = ()


class FaultLine(_Record, frozen=True, kw_only=True, tag="fault"):
    """Counts of the fault, summed over its ranks. rooms: that it was seen to act on. final: after it had ended."""

    at: float
    final: bool = False
    visits: int = 0
    eligible: int = 0
    fired: int = 0
    pending: int = 0
    ended: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    rooms: tuple[int, ...] = ()


class Healed(_Record, frozen=True, kw_only=True, tag="healed"):
    """The fault was ended. clean: every rank said that nothing is left; otherwise left says what may be."""

    at: float
    clean: bool
    left: tuple[str, ...] = ()


class Stopped(_Record, frozen=True, kw_only=True, tag="stopped"):
    """A stop condition was met, and the fault healed at once."""

    at: float
    why: str


class Problem(_Record, frozen=True, kw_only=True, tag="problem"):
    """Why a step could not be done. code: as the command would have exited with."""

    at: float
    step: str
    message: str
    next_step: str = ""
    code: int = 3


class End(_Record, frozen=True, kw_only=True, tag="end"):
    """The drill came to its end; without this line the journal was cut off."""

    at: float


class Verdict(_Record, frozen=True, kw_only=True, tag="verdict"):
    """How the drill was judged when it ran. Judging again does not look at it."""

    verdict: str
    reason: str
    evidence: tuple[str, ...] = ()


Record = Union[  # noqa: UP007  # a type that msgspec is given at run time
    Manifest, Step, Look, LoadLine, Placed, FaultLine, Healed, Stopped, Problem, End, Verdict
]
