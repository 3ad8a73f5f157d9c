"""How runs are held against what was done, and counted."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from benchmarks.score import report, rows
from benchmarks.score.__main__ import done, plan
from benchmarks.score.cases import CASES
from benchmarks.score.stage import Truth
from pdctl.faults.kinds import KINDS
from pdctl.report.findings import catalogue

TRUTH = Truth(("PD101",), 7, ("decode dp0 pp0 tp1",), ("PD114",))


def found(code: str, level: str = "error", *, rooms: tuple[int, ...] = (), summary: str = "", follows: str = "") -> Any:
    return {
        "code": code, "level": level, "rooms": list(rooms), "ranks": [], "summary": summary, "evidence": [], "follows": follows,
    }  # fmt: skip


def row(
    case: str = "a", *, twin: bool = False, code: str = "", discarded: str = "", false: tuple[str, ...] = ()
) -> Any:
    return {
        "case": case, "kind": case, "ranks": 2, "seed": 0, "twin": twin, "code": code, "discarded": discarded,
        "false": list(false), "looks": 1, "partial": [], "load": 1.0, "room": True if code else None, "rank": None,
        "round": None, "seconds": 2.0 if code else None,
    }  # fmt: skip


def test_the_finding_with_the_room_is_the_one() -> None:
    document = {"findings": [found("PD101", rooms=(8,)), found("PD101", rooms=(7,)), found("PD102", rooms=(7,))]}
    assert rows.right(TRUTH, document) == document["findings"][1]
    assert rows.right(Truth(("PD113",)), document) is None


def test_what_is_not_true_and_follows_from_nothing_true_is_false() -> None:
    document = {
        "findings": [
            found("PD101"), found("PD114"), found("PD160", follows="PD101"), found("PD140", "info"),
            found("PD143", "warning", summary="room 9"), found("PD112", "warning", follows="PD113"),
        ]
    }  # fmt: skip
    assert rows.false(TRUTH, document) == ["PD143 room 9", "PD112 "]
    assert len(rows.false(Truth(), document)) == 5


@pytest.mark.parametrize(
    ("summary", "group", "ranks", "rank"),
    [
        ("room 7: decode dp0 pp0 tp1 kept it", "", (), True),
        ("room 7", "decode dp0 pp0 · attention-TP group of 2", ("tp1",), True),
        ("room 7", "decode dp0 · stages", ("pp0 tp1",), True),
        ("room 7", "decode dp0 pp0", ("tp0", "tp11"), False),
        ("room 7", "prefill dp0 pp0", ("tp1",), False),
        ("room 7", "decode dp0 pp1", ("tp1",), False),
        ("room 7: tp1", "", (), False),
    ],
)
def test_a_rank_is_named_whole_or_by_its_place(summary: str, group: str, ranks: tuple[str, ...], rank: bool) -> None:
    one = {**found("PD101", summary=summary), "group": group, "ranks": ranks}
    assert rows.names(one, TRUTH) == {"room": True, "rank": rank}
    assert rows.names(one, Truth(("PD101",))) == {"room": None, "rank": None}


def test_what_did_not_happen_counts_for_nothing() -> None:
    those = [
        row(code="PD101"), row(), row(discarded="it has not fired"), row("b", twin=True),
        row("b", twin=True, false=("PD143 a room",)),
    ]  # fmt: skip
    total = rows.totals(those)
    assert {key: total[key] for key in ("runs", "discarded", "sick", "told", "twins", "false")} == {
        "runs": 5, "discarded": 1, "sick": 2, "told": 1, "twins": 2, "false": 1,
    }  # fmt: skip
    assert (total["recall"], total["precision"], total["room"]) == (0.5, 0.5, (1, 1))
    assert rows.confusion(those) == {
        ("a", "PD101"): 1, ("a", "nothing"): 1, ("a", "discarded"): 1, ("b", "nothing"): 1, ("b", "PD143 (false)"): 1,
    }  # fmt: skip
    text = "\n".join(report.lines(those))
    assert "recall 0.5000 (1 of 2), precision 0.5000, runs with a false finding 1" in text
    assert "false: b, 2 ranks, seed 0: PD143 a room" in text
    assert "missed: a, 2 ranks, seed 0" in text


def test_nothing_is_no_score() -> None:
    assert "recall - (0 of 0)" in "\n".join(report.lines([]))


def test_each_kind_of_fault_is_there_and_each_code_is_known() -> None:
    assert {case.kind for case in CASES} >= KINDS.keys()
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.sizes for case in CASES if not case.twin} <= {(2, 4, 8), (2, 4)}
    assert set(rows.BAD) < {one.level for one in catalogue().values()}


def test_a_seed_has_each_case_in_each_size_and_runs_that_share_a_lab_together() -> None:
    batches = len({case.up(n) if case.again else (case.name, n) for case in CASES for n in case.sizes})
    runs = [run for batch in islice(plan(3), batches) for run in batch]
    assert {(case.name, n, seed) for case, n, seed in runs} == {(case.name, n, 3) for case in CASES for n in case.sizes}
    assert len(runs) == len(set(runs))
    assert {seed for batch in islice(plan(3), batches, 2 * batches) for _, _, seed in batch} == {4}


def test_a_line_that_was_cut_off_counts_for_nothing(tmp_path: Any) -> None:
    path = tmp_path / "rows.jsonl"
    assert done(path) == []
    path.write_text('{"case": "a"}\n{"case": "b', encoding="utf-8")
    assert done(path) == [{"case": "a"}]
