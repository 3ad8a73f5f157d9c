"""What is compared of pipeline stages and of the dp ranks of one dp attention, and what they legally differ in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_

from pdctl.probes.queues.lockstep import locksteps
from pdctl.probes.queues.model import GroupReport, QueuesDocument, RankView
from pdctl.probes.queues.probe import PROBE
from pdctl.probes.queues.stages import pipelines
from pdctl.probes.turns import ENDED, LOST, RUNNING, STOPPED, TRACED, Turn
from pdctl.protocol.model import (
    NEXT_STAGE,
    STAGE_BEFORE,
    Action,
    Call,
    GroupCount,
    GroupInfo,
    QueueEntry,
    Snapshot,
    Status,
)
from pdctl.recording.header import Visits
from pdctl.report.findings import Finding
from tests.support.identities import identity
from tests.unit.probes import test_parting
from tests.unit.probes.test_parting import Run, S

TURNS = Turn(turned=True, age_s=0.1, doing="recv_requests", state=RUNNING)
SYNC = Call("all_gather_into_tensor", "tp", 4, "dp attention sync", seq=7, pg="3")
NOW_S = 150


def waits(inside: str, op: str = "", age_s: float = 30.0) -> Turn:
    call = Call(op, inside=inside)
    return Turn(turned=False, age_s=age_s, doing=inside, state=RUNNING, stood_s=2.0, call=call)


class Kept(test_parting.Kept):
    """A recording of one queue. tick_s: when its last turn began."""

    entered_last = None

    def __init__(self, *runs: Run, tick_s: float = NOW_S, visits: int = 9999) -> None:
        super().__init__(*runs)
        self.tick_mono_ns = int(tick_s * S)
        self.visits = {"prefill.bootstrap": Visits(visits, False, self.tick_mono_ns)}


def run(last: int, done_s: float, repeat: int = 1, entered_s: float = NOW_S, **rooms: Action) -> Run:
    return Run(last, done_s, repeat=repeat, t_enter=int(entered_s * S), **rooms)


def stage(pp: int, recording: Any, turn: Turn | None = TURNS, *rooms: int, **more: Any) -> RankView:
    entries = [QueueEntry(room, f"r{room}") for room in rooms]
    snapshot = Snapshot(0, 0, {"prefill.bootstrap": entries}, [], {})
    who = identity(role="prefill", pp=pp, pp_size=2, world_rank=pp)
    given = {"state": "live", "snapshot": snapshot, "recording": recording, "now_ns": NOW_S * S, "turn": turn, **more}
    return RankView(who, **given)


def judged(*views: RankView) -> tuple[GroupReport, list[Finding]]:
    [(report, found)] = pipelines(views, stalled_s=10.0)
    return report, found


def test_stages_that_did_the_same_agree_and_what_was_not_compared_is_said() -> None:
    both = [run(9, 20.0, r4=Action.MOVED), run(11, 30.0, r5=Action.FAILED)]
    report, found = judged(stage(0, Kept(*both)), stage(1, Kept(run(8, 21.0, r4=Action.MOVED, r5=Action.FAILED))))
    assert (report.title, report.kind, report.verdict) == ("prefill dp0 · pipeline of 2 stages", "stages", "AGREE")
    assert found == []
    assert report.compared == {"prefill.bootstrap": 2}
    assert "Not compared: what stages send each other" in report.said
    summary = PROBE.summary(QueuesDocument(groups=(report,)))
    assert summary == "1 pipeline, 2 requests compared, in step"


PARTED = (Kept(run(304, 21.0, r7=Action.MOVED), tick_s=21.1), Kept(run(302, 20.5, r7=Action.FAILED), tick_s=20.6))


@pytest.mark.parametrize("live", [True, False])
def test_stages_that_parted_and_went_no_further_diverged(live: bool) -> None:
    """Live, their loops stand; of recordings no turn began after that, ten seconds before they end."""
    turns = (waits(NEXT_STAGE), waits(STAGE_BEFORE)) if live else (Turn(), Turn())
    report, found = judged(*(stage(pp, PARTED[pp], turns[pp], stands=live) for pp in (0, 1)))
    assert (report.verdict, report.queue) == ("DIVERGED", "prefill.bootstrap")
    assert [(one.code, one.rooms) for one in found] == [("PD115", (7,))]
    [split] = report.splits
    assert [(side.rank, side.action) for side in split.sides] == [("pp0", "moved on"), ("pp1", "failed")]


@pytest.mark.parametrize(
    ("turns", "ages", "found"),
    [
        ((waits(NEXT_STAGE, age_s=2.9), waits(STAGE_BEFORE, age_s=2.4)), (2.9, 2.4), ["PD115"]),
        ((waits(NEXT_STAGE, age_s=2.9), Turn(turned=False, computing=True)), (2.9, 2.4), []),
        ((waits(NEXT_STAGE, age_s=2.9), None), (2.9, 2.4), []),
        ((waits(NEXT_STAGE, age_s=2.9), replace(waits(STAGE_BEFORE), stood_s=0.9)), (2.9, 2.4), []),
        ((waits("model forward", "all_reduce"), waits(STAGE_BEFORE)), (2.9, 2.4), []),  # it ends, however slowly
        ((waits(NEXT_STAGE), waits(STAGE_BEFORE)), (0.9, 0.4), []),  # turns began after that
    ],
)
def test_stages_that_decided_differently_are_told_at_once(
    turns: tuple[Turn | None, ...], ages: tuple[float, ...], found: list[str]
) -> None:
    """They parted 3.1 s ago, where all wait since: no lag makes one stage fail what another took on."""
    acts = (Action.MOVED, Action.FAILED)
    kept = [Kept(run(300, NOW_S - 3.1, r7=act), tick_s=NOW_S - age) for act, age in zip(acts, ages, strict=True)]
    _, findings = judged(*(stage(pp, kept[pp], turns[pp]) for pp in (0, 1)))
    assert [one.code for one in findings] == found


@pytest.mark.parametrize(("polled", "found"), [(21, ["PD115"]), (20, [])])
def test_a_stage_that_kept_what_the_one_before_it_took_on_is_told_at_once(polled: int, found: list[str]) -> None:
    """The later stage is one turn behind. In turn 20 it may not have heard yet; in turn 21 it has parted."""
    first = Kept(
        Run(10, 20.0, visit=10, r4=Action.MOVED), Run(20, NOW_S - 1.7, visit=20, r7=Action.MOVED), tick_s=NOW_S - 1.6
    )
    kept = Run(polled, NOW_S - 1.5, visit=polled, r7=Action.KEPT)
    later = Kept(Run(11, 20.1, visit=11, r4=Action.MOVED), kept, tick_s=NOW_S - 1.5)
    turns = [replace(waits(inside, age_s=1.5), stood_s=1.0) for inside in (NEXT_STAGE, STAGE_BEFORE)]
    _, findings = judged(stage(0, first, turns[0]), stage(1, later, turns[1]))
    assert [one.code for one in findings] == found


def test_what_is_over_is_no_divergence() -> None:
    """They turned on after it, so whatever became of the request, nobody waits for it."""
    report, found = judged(*(stage(pp, PARTED[pp], TURNS) for pp in (0, 1)))
    assert (report.verdict, found) == ("AGREE", [])
    later = [Kept(*one._stream.runs, tick_s=90) for one in PARTED]
    report, found = judged(*(stage(pp, later[pp], Turn()) for pp in (0, 1)))
    assert found == []


def test_a_transfer_that_failed_on_one_stage_is_over_on_both() -> None:
    class Inflight(Kept):
        def stream(self, queue: str, kind: str | None = None) -> Any:
            return self._stream if queue == "prefill.inflight" else None

    views = [
        stage(pp, Inflight(run(30, 21.0, r7=action), tick_s=21.1), waits(NEXT_STAGE), stands=True)
        for pp, action in enumerate((Action.COMMITTED, Action.FAILED))
    ]
    report, found = judged(*views)
    assert (report.verdict, found) == ("WAITING", [])


@pytest.mark.parametrize(
    ("keeper", "code", "did"), [(0, "PD116", "failed it"), (1, "PD152", "failed it"), (1, "PD116", "took it on")]
)
def test_a_request_that_only_one_stage_has_let_go(keeper: int, code: str, did: str) -> None:
    kept = Kept(run(900, 30.0, repeat=800, r7=Action.KEPT))
    failed = Kept(run(302, 20.5, r7=Action.FAILED if did == "failed it" else Action.MOVED))
    views = [stage(keeper, kept, TURNS, 7), stage(1 - keeper, failed)]
    report, found = judged(*views)
    assert (report.verdict, [(one.code, one.rooms) for one in found]) == ("KEPT", [(code, (7,))])
    [row] = report.queues
    assert row.text.startswith(
        f"room 7 is in prefill.bootstrap of pp{keeper} only: prefill dp0 pp{1 - keeper} tp0 {did} in round 302"
    )


@pytest.mark.parametrize(("version", "code"), [("0.5.12.post1", "PD152"), ("0.5.14", "PD116"), ("nightly", "PD152")])
def test_a_version_that_drains_what_failed_is_not_said_to_lack_that(version: str, code: str) -> None:
    views = [
        stage(1, Kept(run(900, 30.0, repeat=800, r7=Action.KEPT)), TURNS, 7),
        stage(0, Kept(run(302, 20.5, r7=Action.FAILED))),
    ]
    of_one = [
        replace(view, identity=replace_(view.identity, engine="sglang", engine_version=version)) for view in views
    ]
    assert [one.code for one in judged(*of_one)[1]] == [code]


def differ(
    *,
    repeat: int = 800,
    entered_s: float = NOW_S,
    turn: Turn = TURNS,
    has: tuple[int, ...] = (),
    visits: int = 9999,
    act: Action = Action.FAILED,
) -> list[RankView]:
    """Stage 0 has room 7; stage 1 let it go and has the rooms ``has``."""
    kept = Kept(run(900, 30.0, repeat=repeat, entered_s=entered_s, r7=Action.KEPT))
    return [stage(0, kept, TURNS, 7), stage(1, Kept(run(1, 20.5, r7=act), visits=visits), turn, *has)]


@pytest.mark.parametrize(
    "views",
    [
        differ(entered_s=25.0),  # a moment after
        differ(repeat=3),  # a few rounds behind
        differ(turn=Turn(turned=False, computing=True)),  # the other one computes
        differ(has=(7,)),  # another request with the room, which both have
        differ(visits=20, act=Action.MOVED),  # a forward of both has just ended, and this one has not been told yet
    ],
)
def test_a_stage_that_is_behind_keeps_nothing(views: list[RankView]) -> None:
    report, found = judged(*views)
    assert (report.verdict, found) == ("UNKNOWN", [])  # nothing has left both


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (Kept(run(11, 30.0, r5=Action.MOVED)), "no request that left a queue of every stage"),
        (Kept(), "no request that left a queue of every stage"),
        (None, "not every stage has a recording"),
    ],
)
def test_stages_of_which_nothing_was_compared_do_not_agree(second: Kept | None, why: str) -> None:
    report, found = judged(stage(0, Kept(run(9, 20.0, r4=Action.MOVED))), stage(1, second))
    assert (report.verdict, report.compared, found) == ("UNKNOWN", {}, [])
    assert why in report.said
    assert "not known of prefill dp0 · pipeline" in PROBE.summary(QueuesDocument(groups=(report,)))


def test_no_agreement_without_all_stages() -> None:
    report, _ = judged(stage(0, Kept()), stage(1, None, None, silence="no answer"))
    assert (report.verdict, "not every stage was heard" in report.said) == ("UNKNOWN", True)
    report, _ = judged(stage(0, Kept()))
    assert (report.verdict, report.ranks) == ("UNKNOWN", ("pp0", "pp1"))
    assert "not known of prefill dp0 · pipeline" in PROBE.summary(QueuesDocument(groups=(report,)))


# ---- who keeps others waiting ----------------------------------------------------------------------------------------

STOPPED_TURN = Turn(turned=False, age_s=34.0, state=STOPPED, stood_s=2.0)
ASKS = waits("question to a bootstrap server")
COMPUTES = Turn(turned=False, age_s=30.0, doing="model forward", computing=True, state=RUNNING)


STOPPED_IN_A_RECEIVE = replace(waits(STAGE_BEFORE), state=STOPPED)
"""As it is read from outside: where it stood when it was stopped."""


@pytest.mark.parametrize("late", [STOPPED_TURN, STOPPED_IN_A_RECEIVE, Turn(age_s=34.0, state=ENDED), ASKS])
def test_a_stage_that_keeps_another_waiting(late: Turn) -> None:
    report, found = judged(stage(0, Kept(), late), stage(1, Kept(), waits(STAGE_BEFORE)))
    assert (report.verdict, report.stragglers) == ("WAITING", ("pp0",))
    assert [(one.code, one.ranks) for one in found] == [("PD110", ("prefill dp0 pp0 tp0",))]
    assert found[0].summary == "pp1 of prefill dp0 · pipeline of 2 stages has waited 30 s for pp0"


@pytest.mark.parametrize(
    "turns",
    [
        (COMPUTES, waits(STAGE_BEFORE)),
        (Turn(state=LOST), waits(STAGE_BEFORE)),  # of another host, and not reached: it may compute
        (ASKS, waits(STAGE_BEFORE, age_s=4.0)),
        (TURNS, waits(STAGE_BEFORE)),
        (None, waits(STAGE_BEFORE)),
    ],
)
def test_a_long_forward_keeps_nobody_waiting(turns: tuple[Turn | None, Turn]) -> None:
    assert judged(*(stage(pp, Kept(), turn) for pp, turn in enumerate(turns)))[1] == []


# ---- dp attention ----------------------------------------------------------------------------------------------------


def dp_rank(dp: int, turn: Turn | None, *, seq: int = 7, **more: Any) -> RankView:
    groups = (GroupInfo("attn-tp", (dp,), "w"), GroupInfo("tp", (0, 1), "w"))
    who = identity(dp=dp, dp_size=2, dp_attention=True, world_rank=dp, groups=groups)
    status = Status(
        identity=who, mono_ns=0, ticks=5, tick_mono_ns=0, call=SYNC, stack=(), rounds={}, seams=(), recording="",
        recording_off="", hook_errors={}, hooks_removed=(), faults=(), agent_cpu_s=0.0,
        counts=(GroupCount("3", "tp", 2, seq),),
    )  # fmt: skip
    return RankView(who, **{"state": "live", "status": status, "turn": turn, **more})


def lockstep(*views: RankView) -> tuple[GroupReport, list[Finding]]:
    [(report, found)] = locksteps(views, stalled_s=10.0)
    return report, found


def test_dp_ranks_whose_loops_turn_are_in_step() -> None:
    report, found = lockstep(dp_rank(0, TURNS), dp_rank(1, TURNS))
    assert (report.title, report.verdict, found) == ("decode · dp attention of 2 dp ranks", "AGREE", [])
    assert report.ranks == ("dp0 tp0", "dp1 tp0 (DP1 TP1)")
    assert PROBE.summary(QueuesDocument(groups=(report,))) == "1 dp attention, every loop turns"


def test_a_stopped_dp_rank_keeps_the_others_waiting_and_who_entered_what_is_said() -> None:
    sits = waits("dp attention sync", "all_gather_into_tensor")
    report, [found] = lockstep(dp_rank(0, sits, stands=True), dp_rank(1, STOPPED_TURN, seq=6, stands=True))
    assert report.verdict == "WAITING"
    assert (found.code, found.ranks) == ("PD110", ("decode dp1 pp0 tp0",))
    assert report.pairing == ("collectives of group tp: dp1 tp0 (DP1 TP1) at #6, dp0 tp0 at #7",)


@pytest.mark.parametrize(
    ("views", "said"),
    [
        ([dp_rank(0, COMPUTES), dp_rank(1, waits("dp attention sync", "all_gather"))], "dp0 tp0 computes"),
        ([dp_rank(0, TURNS), dp_rank(1, None, silence="no answer", status=None)], "not every rank was heard"),
        ([dp_rank(0, TURNS)], "not every rank was heard"),
        ([dp_rank(0, None), dp_rank(1, None)], "whether their loops turn is not known"),
    ],
)
def test_what_is_not_known_is_not_called_in_step(views: list[RankView], said: str) -> None:
    report, found = lockstep(*views)
    assert (report.verdict, found) == ("UNKNOWN", [])
    assert said in report.said


def test_dp_ranks_that_all_wait_keep_nobody_in_particular_waiting() -> None:
    sits = waits("dp attention sync", "all_gather_into_tensor")
    report, found = lockstep(dp_rank(0, sits, stands=True), dp_rank(1, sits, seq=6, stands=True))
    assert (report.verdict, found) == ("WAITING", [])
    assert "which of them keeps the others waiting is not known" in report.said


def test_a_process_that_a_debugger_holds_keeps_the_others_waiting() -> None:
    sits = waits("dp attention sync", "all_gather_into_tensor")
    _, [found] = lockstep(dp_rank(0, sits, stands=True), dp_rank(1, replace(sits, state=TRACED), stands=True))
    assert (found.code, found.ranks) == ("PD110", ("decode dp1 pp0 tp0",))
    assert found.evidence == ("dp1 tp0 (DP1 TP1): its process is stopped by a debugger",)


def test_a_cluster_without_groups_has_nothing_to_compare() -> None:
    assert PROBE.summary(QueuesDocument(groups=())) == "every group has one rank: nothing to compare"
