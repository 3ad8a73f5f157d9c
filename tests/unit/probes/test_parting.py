"""The request with which pipeline stages parted, and stages that only differ in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pdctl.probes.parting import Recorded, judge, stages
from pdctl.probes.turns import ENDED, RUNNING, STOPPED, Loop, Turn
from pdctl.protocol.model import NEXT_STAGE, STAGE_BEFORE, Action, Call, Phase
from tests.support.identities import identity

S = 10**9
FAILURE = "Aborted by AbortReq."


class Run:
    """A run, with what became of each room. visit: turn of its first round."""

    def __init__(
        self,
        last: int,
        done_s: float,
        *,
        visit: int = 0,
        repeat: int = 1,
        t_enter: int = 0,
        phase: Phase = Phase.APPLIED,
        **rooms: Action,
    ) -> None:
        self.last, self.t_done = last, int(done_s * S)
        self.visit, self.repeat, self.t_enter, self.phase = visit, repeat, t_enter or self.t_done, phase
        self.rooms = [(int(name[1:]), int(action)) for name, action in rooms.items()]


class Stream:
    tail = 0

    def __init__(self, *runs: Run) -> None:
        self.runs = runs

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def newest(self) -> Run:
        return self.runs[-1]

    def run(self, row: int) -> Run:
        return self.runs[row]

    def items(self, run: Run) -> list[Any]:
        return [type("Item", (), {"room": room, "action": action}) for room, action in run.rooms]


class Kept:
    """A recording as the judge reads it."""

    start_wall_ns = start_mono_ns = 0

    def __init__(self, *runs: Run) -> None:
        self._stream = Stream(*runs)

    def stream(self, queue: str, kind: str | None = None) -> Stream | None:
        return self._stream if queue == "prefill.bootstrap" else None

    def events_of(self, rooms: Any, kinds: Any) -> list[Any]:
        return [type("Event", (), {"room": room, "text": FAILURE}) for room in rooms]


def standing(inside: str, **changes: Any) -> Turn:
    fields: dict[str, Any] = {"turned": False, "age_s": 129.0, "doing": inside, "state": RUNNING, "stood_s": 2.0}
    return Turn(**fields | {"call": Call(inside=inside)} | changes)


STAND = (standing(NEXT_STAGE), standing(STAGE_BEFORE))


def pipeline(*turns: Turn) -> list[Loop]:
    return [Loop(identity(role="prefill", pp=n, pp_size=2), turn) for n, turn in enumerate(turns)]


def recorded(*kept: Kept) -> dict[int, Recorded]:
    return {n: Recorded(one, 150 * S) for n, one in enumerate(kept)}  # type: ignore[arg-type]


def test_the_room_that_one_stage_took_on_and_the_other_failed() -> None:
    first = Kept(Run(300, 10.0, r4=Action.MOVED), Run(304, 21.0, r7=Action.MOVED, r8=Action.KEPT))
    second = Kept(Run(298, 10.0, r4=Action.MOVED), Run(302, 20.5, r7=Action.FAILED))
    loops = pipeline(*STAND)
    assert stages(loops) == [0, 1]
    [found] = judge(loops, recorded(first, second))
    assert (found.code, found.level.value, found.rooms) == ("PD115", "error", (7,))
    assert found.summary == (
        "Stages of prefill dp0 parted at room 7: prefill dp0 pp0 tp0 took it on in round 304 of prefill.bootstrap,"
        f' prefill dp0 pp1 tp0 failed it in round 302 ("{FAILURE}"). No stage has turned for 129.0 s.'
    )
    assert found.evidence == (
        f'prefill dp0 pp1 tp0 failed it in round 302 ("{FAILURE}") of prefill.bootstrap, 129.5 s ago',
        "prefill dp0 pp0 tp0 took it on in round 304 of prefill.bootstrap, 129.0 s ago",
    )


def test_stages_that_parted_and_ended() -> None:
    """Batches of two sizes can end a stage."""
    loops = pipeline(*(replace(turn, state=ENDED) for turn in STAND))
    took, failed = Kept(Run(304, 21.0, r7=Action.MOVED)), Kept(Run(302, 20.5, r7=Action.FAILED))
    [found] = judge(loops, recorded(took, failed))
    assert found.summary.endswith(f'failed it in round 302 ("{FAILURE}"). A stage has ended since.')


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Run(304, 21.0, r7=Action.FAILED), Run(302, 20.5, r7=Action.FAILED)),  # it failed on both
        (Run(304, 21.0, r7=Action.MOVED), Run(302, 20.5, r7=Action.MOVED)),
        (Run(304, 21.0, r7=Action.MOVED), Run(302, 20.5, r7=Action.KEPT)),  # legally a round behind
        (Run(304, 21.0, r7=Action.MOVED), Run(302, 20.5, r9=Action.FAILED)),
    ],
)
def test_stages_that_did_the_same_have_not_parted(first: Run, second: Run) -> None:
    assert judge(pipeline(*STAND), recorded(Kept(first), Kept(second))) == ()


def test_only_pipelines_that_stand_are_looked_at() -> None:
    computes = standing("model forward", computing=True)
    assert stages(pipeline(computes, STAND[1])) == []
    assert stages([Loop(identity(), standing(NEXT_STAGE))]) == [], "it has one stage"


# ---- batches -----------------------------------------------------------------------------------------------------------

FIRST = (Run(300, 10.0, visit=600, r4=Action.MOVED), Run(304, 21.0, visit=608, r7=Action.MOVED))
"""Room 4 tells how far the later stage is behind."""


def later(visit: int, *, repeat: int = 1, phase: Phase = Phase.APPLIED, anchor: int = 4) -> Kept:
    """The later stage, two turns behind, which has room 7 still in its turn ``visit``, or until the last one of ``repeat``."""
    newest = Run(304, 20.0, visit=visit, repeat=repeat, t_enter=22 * S, phase=phase, r7=Action.KEPT)
    return Kept(Run(298, 10.5, visit=602, **{f"r{anchor}": Action.MOVED}), newest)  # type: ignore[arg-type]


@pytest.mark.parametrize(("visit", "repeat"), [(610, 1), (612, 1), (603, 8)])
def test_a_stage_that_kept_what_the_other_took_on(visit: int, repeat: int) -> None:
    [found] = judge(pipeline(*STAND), recorded(Kept(*FIRST), later(visit, repeat=repeat)))
    assert (found.code, found.rooms) == ("PD115", (7,))
    assert (
        "parted at room 7: prefill dp0 pp0 tp0 took it on in round 304 of prefill.bootstrap, prefill dp0 pp1 tp0 kept it in"
        " round 304." in found.summary
    )
    assert found.evidence[1].endswith("kept it in round 304 of prefill.bootstrap, 128.0 s ago")


@pytest.mark.parametrize(
    "second",
    [
        later(609),  # it has not come to that turn yet
        later(603, repeat=7),
        later(610, phase=Phase.ENTERED),  # it is in that turn
        later(610, anchor=5),  # how far it is behind nobody knows
        Kept(Run(298, 10.5, visit=602, r4=Action.MOVED)),
    ],
)
def test_a_lag_of_a_turn_is_none(second: Kept) -> None:
    assert judge(pipeline(*STAND), recorded(Kept(*FIRST), second)) == ()


def test_a_stage_that_is_stopped_is_no_other_batch() -> None:
    """The others wait for it, and whatever it has not done yet it will do."""
    loops = pipeline(STAND[0], standing("scheduler loop", state=STOPPED))
    assert judge(loops, recorded(Kept(*FIRST), later(612))) == ()


def test_a_room_that_two_requests_share_is_not_compared() -> None:
    first = Kept(*FIRST, Run(306, 23.0, visit=611, r7=Action.MOVED))
    assert judge(pipeline(*STAND), recorded(first, later(612))) == ()


TOGETHER = Run(300, 10.0, visit=600, r7=Action.MOVED, r8=Action.MOVED)
APART = Run(298, 10.5, visit=602, r7=Action.MOVED), Run(300, 10.7, visit=604, r8=Action.MOVED)


def test_requests_that_only_one_stage_took_on_together() -> None:
    [found] = judge(pipeline(*STAND), recorded(Kept(TOGETHER), Kept(*APART)))
    assert (found.code, found.rooms) == ("PD115", (8,))
    assert (
        "prefill dp0 pp0 tp0 took it on with room 7 in round 300 of prefill.bootstrap, prefill dp0 pp1 tp0 took it on in"
        " round 300." in found.summary
    )
    [found] = judge(pipeline(*STAND), recorded(Kept(*APART), Kept(TOGETHER)))
    assert "prefill dp0 pp1 tp0 took it on with room 7 in round 300." in found.summary
    over = [Run(400 + n, 30.0 + n, visit=700 + 2 * n, **{f"r{20 + n}": Action.MOVED}) for n in range(2)]  # type: ignore[arg-type]
    assert judge(pipeline(*STAND), recorded(Kept(TOGETHER, *over), Kept(*APART, *over))) == ()
    same = Run(298, 10.5, visit=602, r7=Action.MOVED, r8=Action.MOVED)
    assert judge(pipeline(*STAND), recorded(Kept(TOGETHER), Kept(same))) == ()
