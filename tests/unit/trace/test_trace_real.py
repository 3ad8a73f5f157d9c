"""A trace of real SGLang 0.5.12.post1, recorded while it hung (tests/engine/test_hang.py): it goes on being told alike."""

from __future__ import annotations

from pathlib import Path

import pdctl
from pdctl.probes.queues.collect import collect
from pdctl.probes.queues.judge import judge
from pdctl.probes.view import View
from pdctl.targets.client import Client
from pdctl.targets.find import load_source

FILE = Path(__file__).parents[2] / "data" / "sglang-0.5.12.post1-c1.pdtrace"
ROOM = 16851422098683615


def test_the_divergence_is_told_as_it_was_when_it_was_recorded() -> None:
    with Client() as client:
        document = judge(collect(View(load_source(FILE), client), sockets=False), stalled_s=5.0, confirmed=True)
    [finding] = document.findings
    assert (finding.code, finding.rooms) == ("PD101", (ROOM,))
    [group] = [group for group in document.groups if group.verdict == "DIVERGED"]
    assert (group.queue, group.round) == ("decode.transfer", 247)
    assert group.age_s is not None
    assert 1.0 < group.age_s < 3.0  # as of the moment it was recorded
    [split] = group.splits
    assert [(side.rank, side.action, side.found) for side in split.sides] == [
        ("tp0", "committed", ROOM),
        ("tp1", "kept", 0),
    ]


def test_its_frames_hold_the_lists_that_parted() -> None:
    trace = pdctl.load_trace(FILE)
    assert trace.problems == ()
    lists = {rank: trace.lists("decode.transfer", rank, first=247) for rank in trace.ranks.index[1:]}
    tp0, tp1 = (list_["room"].tolist() for list_ in lists.values())
    assert tp0 == tp1
    assert len(tp0) == 3
    assert {rank: list_["action"].tolist().count("committed") for rank, list_ in lists.items()} == {
        "decode dp0 pp0 tp0": 1,
        "decode dp0 pp0 tp1": 0,
    }
    assert not trace.events["text"].str.contains("127.0.0.1", regex=False).any()
