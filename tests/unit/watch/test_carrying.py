"""A check that could not look at everything disproves nothing that it did not see."""

from __future__ import annotations

from pdctl.probes.check.model import Outcome
from pdctl.protocol.rank import FoundRank, Silence
from pdctl.report.findings import finding
from pdctl.targets.bridges import unreached
from pdctl.watch.carrying import Behind, carried, lost
from tests.support.identities import identity

TP0, TP1 = "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"
LEAK = finding("PD150", "A slot is taken.", ranks=(TP1,))
BEFORE = (Outcome("leaks", "", (LEAK,)),)


def test_a_stage_that_saw_everything_stands_alone() -> None:
    assert carried(Outcome("leaks", "none"), BEFORE, [TP0, TP1]).findings == ()


def test_what_was_found_of_a_rank_that_was_not_seen_stands() -> None:
    silent = Outcome("leaks", "", problems=(f"{TP1}: no answer within 2 s",))
    assert carried(silent, BEFORE, [TP0, TP1]).findings == (LEAK,)
    assert carried(Outcome("leaks", "not run", problems=("leaks: no time left",)), BEFORE, [TP1]).findings == (LEAK,)
    assert carried(silent, (Outcome("stuck", "", (LEAK,)),), [TP1]).findings == ()


def test_what_was_found_of_a_rank_that_was_seen_or_is_gone_does_not() -> None:
    assert carried(Outcome("leaks", "", problems=(f"{TP0}: no answer",)), BEFORE, [TP0, TP1]).findings == ()
    assert carried(Outcome("leaks", "", problems=(f"{TP1}: process has ended",)), BEFORE, [TP0]).findings == ()


def test_what_is_found_again_is_there_once() -> None:
    again = Outcome("leaks", "", (LEAK,), problems=(f"{TP1}: in part",))
    assert carried(again, BEFORE, [TP1]).findings == (LEAK,)


def test_what_was_found_of_ranks_behind_a_host_that_is_not_reached_stands() -> None:
    known: dict[str, Behind] = {}
    ranks = [FoundRank(identity(tp=tp), "live", via=f"gpu{tp}") for tp in (0, 1)]
    assert not lost(ranks, known)
    away = lost([ranks[0], unreached("gpu1", Silence.TIMED_OUT, "no answer of ssh in time")], known)
    assert set(away) == {(TP1, ranks[1].identity.unit)}
    assert carried(Outcome("leaks", "none"), BEFORE, [TP0], away).findings == (LEAK,)
    others = finding("PD150", "A slot is taken.", ranks=(TP0,))
    assert carried(Outcome("leaks", "none"), (Outcome("leaks", "", (others,)),), [TP0], away).findings == ()
    empty = lost([ranks[0], unreached("gpu1", Silence.NO_AGENT, "no rank found there")], known)
    assert not empty, "it was reached, and they are gone"
