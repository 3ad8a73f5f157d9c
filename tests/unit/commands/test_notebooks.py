"""The pages of docs/notebooks print what they show, from the trace that lies beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.gen_notebooks import BLOCK, FOLDER, executed

PAGES = sorted(FOLDER.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_page_shows_what_it_prints(page: Path) -> None:
    assert executed(page) == page.read_text()


def test_s1_is_there_and_finds_the_round() -> None:
    text = (FOLDER / "s1.md").read_text()
    assert len(BLOCK.findall(text)) >= 7
    assert "first difference: round" in text
