"""How ``check`` sums up: levels, what is suppressed, what fails, what could not be looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdctl.probes.check.judge import judge, parse_suppressed, wanted
from pdctl.probes.check.model import CheckDocument, Outcome
from pdctl.probes.registry import stages
from pdctl.report.findings import Finding, finding

FULL = finding("PD140", "Full.", rooms=(9,))
LATE = finding("PD141", "Late.", rooms=(7, 8))
LOST = finding("PD142", "Lost.", rooms=(7,))


def summed(*outcomes: Outcome, suppress: tuple[str, ...] = (), fail_on: str = "warning") -> CheckDocument:
    return judge(outcomes, suppressed=parse_suppressed(suppress), fail_on=fail_on)


def stage(*findings: Finding, problems: tuple[str, ...] = ()) -> Outcome:
    return Outcome("stuck", "nothing", findings, problems)


def test_nothing_found() -> None:
    document = summed(stage())
    [row] = document.stages
    assert (row.level, row.summary, document.level, document.failed) == ("ok", "nothing", "ok", False)


def test_what_recordings_do_not_tell_is_unknown_and_fails_nothing() -> None:
    untold = replace(stage(), untold="running batches")
    document = summed(untold, replace(untold, said=""), replace(untold, findings=(FULL,)))
    assert [row.level for row in document.stages] == ["unknown", "unknown", "info"]
    assert [row.summary for row in document.stages[:2]] == [
        "recordings do not tell of running batches; otherwise nothing",
        "recordings do not tell of running batches",
    ]
    assert (document.failed, document.partial) == (False, False)


def test_every_stage_says_what_recordings_do_not_tell_of_it() -> None:
    for probe in stages():
        assert probe.untold or not probe.offline or probe.live_stage or probe.name in ("ranks", "queues")


@pytest.mark.parametrize(
    ("fail_on", "failed"),
    [("info", (True, True, True)), ("warning", (False, True, True)), ("error", (False, False, True))],
)
def test_fail_on(fail_on: str, failed: tuple[bool, ...]) -> None:
    assert tuple(summed(stage(one), fail_on=fail_on).failed for one in (FULL, LATE, LOST)) == failed


def test_the_worst_of_a_stage_is_told_and_the_worst_finding_comes_first() -> None:
    document = summed(stage(FULL, LATE), stage(LOST), stage())
    assert [row.level for row in document.stages] == ["warning", "error", "ok"]
    assert document.stages[0].summary == "PD141 Late. (and 1 more)"
    assert document.stages[0].codes == ("PD140", "PD141")
    assert [found.code for found in document.findings] == ["PD142", "PD141", "PD140"]
    assert document.level == "error"


def test_a_stage_that_judged_nothing_claims_nothing() -> None:
    blind = Outcome("leaks", "", problems=("tp1: gone",))
    document = summed(blind, Outcome("config", ""))
    assert [row.summary for row in document.stages] == ["not seen or in part: tp1: gone", "there is nothing to judge"]


def test_a_stage_whose_findings_follow_from_those_of_another_says_so() -> None:
    parted = finding("PD101", "Parted.", units=("decode dp0 of d",))
    late = finding("PD141", "Late.", rooms=(7,), units=("decode dp0 of d",))
    document = summed(stage(parted), stage(late), stage(late, FULL))
    assert [row.summary for row in document.stages] == [
        "PD101 Parted.",
        "PD141 follows from PD101: Late.",
        "PD141 follows from PD101: Late. (and 1 more)",
    ]
    assert [(one.code, one.follows) for one in document.findings] == [
        ("PD101", ""), ("PD141", "PD101"), ("PD140", ""),
    ]  # fmt: skip


def test_what_could_not_be_looked_at() -> None:
    document = summed(stage(problems=("tp1: gone", "tp2: gone")), stage(LATE, problems=("tp1: gone",)), stage(FULL))
    assert [row.level for row in document.stages] == ["unknown", "warning", "info"]
    assert document.stages[0].summary == "not seen or in part: tp1: gone (and 1 more); otherwise nothing"
    assert document.problems == ("tp1: gone", "tp2: gone")
    assert document.partial


@pytest.mark.parametrize(
    ("suppress", "rooms"),
    [
        ((), (7, 8)),
        (("PD142",), (7, 8)),
        (("PD141=7",), (8,)),
        (("pd141=7", "PD141=8"), None),
        (("PD141",), None),
        (("PD141=7", "PD141"), None),
        (("PD141=9",), (7, 8)),
    ],
)
def test_suppressed(suppress: tuple[str, ...], rooms: tuple[int, ...] | None) -> None:
    left = wanted(LATE, parse_suppressed(suppress))
    assert (None if left is None else left.rooms) == rooms
    document = summed(stage(LATE), suppress=suppress)
    assert document.suppressed == int(rooms is None)
    assert document.failed == (rooms is not None)


def test_a_finding_about_no_room_is_not_suppressed_for_one() -> None:
    whole = finding("PD112", "tp1 is gone.")
    assert wanted(whole, parse_suppressed(["PD112=7"])) == whole


@pytest.mark.parametrize(
    ("text", "said"), [("PD999", "PD999"), ("nonsense", "NONSENSE"), ("PD142=x", "'X' is no room")]
)
def test_bad_suppressions(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_suppressed([text])
