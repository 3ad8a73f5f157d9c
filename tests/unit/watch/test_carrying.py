"""A check that could not look at everything disproves nothing that it did not see."""

from __future__ import annotations

from pdctl.probes.check.model import Outcome
from pdctl.report.findings import finding
from pdctl.watch.carrying import carried

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
