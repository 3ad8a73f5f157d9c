"""``make gpu`` without a card: each check says why it is left out, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import __main__ as gpu
from tests.gpu import checks


def test_without_a_card_each_check_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if checks.cards():
        pytest.skip("there is a card")
    rows = tmp_path / "rows.md"
    rows.write_text("# Track record\n")
    assert gpu.main(["--rows", str(rows)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "0 cards · no CUDA device"
    assert [line.split()[:2] for line in lines] == [[name, "skipped"] for name in checks.CHECKS]
    assert all("torch sees 0" in line for line in lines)
    assert rows.read_text() == "# Track record\n"


def test_what_was_done_becomes_a_section_before_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails() -> str:
        raise checks.FailedError("2 of 5")

    monkeypatch.setattr(checks, "cards", lambda: 1)
    monkeypatch.setattr(checks, "card", lambda: "a card")
    monkeypatch.setattr(
        checks, "CHECKS", {"one": checks.Check("First", lambda: "7"), "two": checks.Check("Second", fails)}
    )
    rows = tmp_path / "rows.md"
    rows.write_text("# Track record\n\nIntro.\n\n## 2026-01-01, before\n")
    assert gpu.main(["--rows", str(rows)]) == 1
    intro, new, before = rows.read_text().split("\n## ")
    assert (intro, before) == ("# Track record\n\nIntro.\n", "2026-01-01, before\n")
    assert "| First | a card | `make gpu` | 7 |" in new
    assert "**failed**: 2 of 5" in new


def test_traffic_counts_what_operations_read_and_write() -> None:
    import torch

    a, b, out = (torch.zeros(1000, dtype=torch.uint8) for _ in range(3))
    with checks.Traffic() as traffic:
        torch.bitwise_and(a, b, out=out)
        a.bitwise_or_(b)
        a.view(10, 100)
    assert traffic.bytes == 3000 + 3000
