"""What a liveness probe is told: a restart is due for a proven divergence or a loop that stands, and for nothing else."""

from __future__ import annotations

import pytest

from pdctl.report.findings import Finding, catalogue, finding
from pdctl.watch.livez import Liveness
from pdctl.watch.metrics import VERDICTS
from pdctl.watch.model import GroupState, RankState, WatchState

TP0 = "decode dp0 pp0 tp0"


def state(
    *,
    rank: str = "live",
    age_s: float | None = 1.0,
    verdict: str = "AGREE",
    found: tuple[Finding, ...] = (),
    at: int = 0,
    checked: int = 0,
    of: str = "s",
) -> WatchState:
    one = RankState(rank=TP0, role="decode", state=rank, service="s", instance="i", tick_age_s=age_s)
    group = GroupState(
        title="G", kind="polls", verdict=verdict, service=of, ranks=(TP0,), queue="decode.transfer", round=881
    )
    return WatchState(
        at_wall_ns=at * 10**9,
        took_s=0.1,
        ranks=(one,),
        groups=(group,),
        findings=found,
        checked_wall_ns=checked * 10**9,
    )


def reasons(*states: WatchState, stall_s: float = 30.0) -> tuple[str, ...]:
    liveness = Liveness(stall_s)
    for one in states:
        liveness.take(one)
    return liveness.reasons


def stands(unit: str = "decode dp0 of i") -> tuple[Finding, ...]:
    return (finding("PD114", "It stands.", ranks=(TP0,), units=(unit,)),)


def test_a_divergence_is_due() -> None:
    assert reasons(state(verdict="DIVERGED")) == ("G diverged at round 881 of decode.transfer",)
    assert reasons(state(verdict="DIVERGED"), state()) == ()


@pytest.mark.parametrize("rank", ["dead", "no agent", "recorded"])
def test_recordings_of_a_server_that_ended_are_no_reason(rank: str) -> None:
    assert reasons(state(rank=rank, verdict="DIVERGED")) == ()
    assert reasons(state(rank=rank, age_s=500, found=stands())) == ()


def test_a_rank_of_the_same_name_on_another_server_is_no_member_of_the_group() -> None:
    assert reasons(state(verdict="DIVERGED", of="one that ended")) == ()


@pytest.mark.parametrize("rank", ["silent", "outside"])
def test_a_diverged_rank_that_does_not_answer_still_runs(rank: str) -> None:
    assert reasons(state(rank=rank, verdict="DIVERGED"))


@pytest.mark.parametrize("verdict", sorted(set(VERDICTS) - {"DIVERGED"}))
def test_no_other_verdict_is_a_reason(verdict: str) -> None:
    assert reasons(state(verdict=verdict)) == ()


def test_no_other_finding_is_a_reason_however_long_it_stands() -> None:
    found = tuple(finding(code, "It is so.", ranks=(TP0,)) for code in catalogue() if code != "PD114")
    assert reasons(*(state(age_s=1000, found=found, at=at) for at in range(0, 1000, 100))) == ()


def test_a_loop_without_a_turn_is_due_only_where_it_can_not_turn() -> None:
    assert reasons(state(age_s=55)) == ()  # a long forward
    assert reasons(state(age_s=29, found=stands())) == ()
    assert reasons(state(age_s=31, found=stands())) == (
        f"PD114: the scheduler loop of {TP0} has not turned for 31 s and can't",
    )
    assert reasons(state(age_s=11, found=stands()), stall_s=10.0)
    assert reasons(state(age_s=1, found=stands())) == ()  # it has turned since


def test_where_the_last_turn_is_not_known_it_counts_from_when_it_was_seen_to_stand() -> None:
    standing = [state(rank="outside", age_s=None, found=stands(), at=at, checked=at) for at in (100, 120, 131)]
    assert reasons(*standing[:2]) == ()
    assert reasons(*standing)
    between = state(rank="outside", age_s=None, at=125, checked=125)
    assert reasons(*standing[:2], between, standing[2]) == ()


def test_where_the_last_turn_is_not_known_time_that_no_check_has_seen_does_not_count() -> None:
    seen, later = (state(rank="outside", age_s=None, found=stands(), at=at, checked=100) for at in (100, 145))
    assert reasons(seen, later) == ()
    again = state(rank="outside", age_s=None, found=stands(), at=146, checked=146)
    assert reasons(seen, later, again) == (f"PD114: the scheduler loop of {TP0} has not turned for 46 s and can't",)


def test_the_rank_of_the_same_name_on_another_server_does_not_count() -> None:
    assert reasons(state(age_s=50, found=stands("decode dp0 of another"))) == ()
