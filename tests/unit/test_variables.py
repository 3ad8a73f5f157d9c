"""docs/variables.md has every variable that pdctl reads, once, and no other."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "variables.md"


@cache
def read_by_the_code() -> set[str]:
    found: set[str] = set()
    for file in (ROOT / "pdctl").rglob("*.py"):
        found |= set(re.findall(r"\"(PDCTL_[A-Z_]*[A-Z])\"|\b(?:env|environ)\.get\(\"(PDCTL_\w+)\"", file.read_text()))
    return {name for pair in found for name in pair if name}


def test_the_page_has_each_variable_once() -> None:
    listed = re.findall(r"^\| `(PDCTL_[A-Z_]+)", PAGE.read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == read_by_the_code()


def test_other_pages_name_only_variables_that_there_are() -> None:
    tests_own = "PDCTL_TEST_"
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        named = set(re.findall(r"\bPDCTL_[A-Z_]*[A-Z]\b", page.read_text()))
        assert {name for name in named if not name.startswith(tests_own)} <= read_by_the_code(), page.name
