"""Traces of real SGLang, and of the first format, are judged by excerpts as by their whole recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.probes.queues.model import RankView
from pdctl.recording.reader import read
from pdctl.trace.reader import Trace, open_trace
from tests.support.excerpted import excerpted, judge

DATA = Path(__file__).parents[2] / "data"


def _views(trace: Trace) -> list[RankView]:
    views = []
    for rank in trace.manifest.ranks:
        recording = read(trace.folder / Path(rank.member).name) if rank.member else None
        now_ns = rank.taken_mono_ns
        views.append(RankView(rank.identity, "dead", recording=recording, recording_off=rank.reason, now_ns=now_ns))
    return views


@pytest.mark.parametrize("path", sorted(DATA.glob("*.pdtrace")), ids=lambda path: path.name)
def test_a_trace_is_judged_alike(path: Path) -> None:
    with open_trace(path) as trace:
        views = _views(trace)
        assert judge(views).groups
        short, sent = excerpted(views)
    recorded = [n for n, view in enumerate(views) if view.recording is not None]
    assert recorded
    assert all(sent[n] for n in recorded), sent  # none is read whole
    assert all(short[n].recording is not views[n].recording for n in recorded)
