"""The map of rounds × ranks: a trace of real SGLang, and its picture."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from pdctl.recording.reader import read
from pdctl.replay.groups import GroupQueue
from pdctl.replay.heat import NONE, PARTS, STEP, Heat, heat
from pdctl.trace.reader import open_trace

REAL = Path(__file__).parents[2] / "data" / "sglang-0.5.12.post1-c1.pdtrace"


@pytest.fixture(scope="module")
def real() -> Heat:
    with open_trace(REAL) as there:
        folder = there.folder
        found = sorted((read(path) for path in folder.glob("*.pdrec")), key=lambda r: r.identity.tp)
        ranks = tuple(r for r in found if r.identity.role == "decode")
        return heat(GroupQueue("decode.transfer", "decode", ranks, ()))


def test_the_round_in_which_ranks_part(real: Heat) -> None:
    assert (real.parted, real.ranks, real.ordinals[-1]) == (247, ("tp0", "tp1"), 247)
    tp0, tp1 = (row[-1] for row in real.cells)
    assert (tp0.state, tp0.words) == (PARTS, "3→2")
    assert (tp1.state, tp1.words) == (PARTS, "3")
    assert {cell.state for row in real.cells for cell in row[:-1]} == {STEP}


def test_ranks_in_step_and_one_without_the_newest_rounds() -> None:
    with open_trace(REAL) as there:
        folder = there.folder
        found = sorted((read(path) for path in folder.glob("*.pdrec")), key=lambda r: r.identity.tp)
        ranks = tuple(r for r in found if r.identity.role == "decode")
        steady = heat(GroupQueue("decode.prealloc", "decode", ranks, ()))
        for stream in ranks[1].streams:
            stream.table, stream.ends = stream.table[:-1], stream.ends[:-1]
        short = heat(GroupQueue("decode.transfer", "decode", ranks, ()))
    assert steady.parted == -1
    assert {cell.state for row in steady.cells for cell in row} == {STEP}
    assert short.cells[1][-1].state == NONE
    assert short.cells[0][-1].state == STEP, "nobody to compare it with"


@pytest.mark.parametrize("form", ["svg", "html", "png"])
def test_the_picture(real: Heat, form: str) -> None:
    pytest.importorskip("matplotlib")
    from pdctl.replay.heat_plot import draw

    data = draw([real], form)
    if form == "png":
        assert data.startswith(b"\x89PNG")
        return
    text = data.decode()
    assert "the ranks part at round 247" in text
    assert "3→2" in text
    ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
