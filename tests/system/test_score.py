"""A sample of the score: known harm is told, its twin is clean, on one lab."""

from __future__ import annotations

import time

import pytest

from benchmarks.score.__main__ import runs
from benchmarks.score.cases import CASES
from tests.support.patience import patience

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]

SAMPLE = ("metadata that the gate waits for", "a transfer fails, and all ranks fail it")


def test_a_sample_is_told_and_nothing_is_made_up() -> None:
    those = [(case, 2, 1) for case in CASES if case.name in SAMPLE]
    rows = list(runs(those, time.monotonic() + patience(300)))
    assert len(rows) == len(those)
    for row in rows:
        assert (row["discarded"], row["false"], "not well" in row) == ("", [], False), row
        assert row["twin"] or (row["code"], row["room"], row["rank"]) == ("PD102", True, True), row
