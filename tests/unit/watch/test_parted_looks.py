"""A look at a group that has parted reads what is new in its recordings, not their rings again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from pdctl.probes.queues.model import QueuesDocument, RankView
from pdctl.protocol.model import EventKind
from pdctl.recording import format as f
from pdctl.recording.reader import read
from pdctl.recording.source import OpenSource
from pdctl.recording.tail import Tail
from pdctl.watch.eye import _judged
from tests.unit.agent.test_tap_recording import IDENTITY, Engine, Request

SIZE = 4 << 20
ROOM = 7
LITTLE = 128 << 10
"""Bytes that a look at both ranks may read where nothing is new: the heads of two recordings, and a block of each ring."""


@pytest.fixture
def parted(tmp_path: Path) -> list[Tail]:
    """Two ranks with full rings of events, of which one commits a room that the other keeps."""
    tails = []
    for rank, keep in enumerate((set(), {ROOM})):
        path = tmp_path / f"{rank}.pdrec"
        engine = Engine(path, SIZE)
        engine.writer.event(int(EventKind.ENQUEUE), room=1, text="first")
        for number in range(f.layout(SIZE)[5]):
            engine.writer.event(int(EventKind.ENQUEUE), room=100 + number, text="other")
        engine.writer.event(int(EventKind.ENQUEUE), room=ROOM, text="rid of 7")
        engine.writer.event(int(EventKind.LANDED), room=ROOM, slot=3, a=2_000_000_000, b=ROOM)
        engine.queue = [Request(ROOM, 3)]
        engine.turn([3], [3], set())
        engine.turn([4], [4], keep)
        recording = read(path)
        tails.append(Tail(path, recording.pid, recording.proc_start))
    return tails


def look(tails: Sequence[Tail]) -> QueuesDocument:
    ranks = [msgspec.structs.replace(IDENTITY, world_rank=number, tp=number, tp_size=2) for number in range(len(tails))]
    return _judged(
        [RankView(rank, "live", recording=tail.read(), now_ns=1) for rank, tail in zip(ranks, tails, strict=True)]
    )


def test_a_second_look_at_ranks_that_have_parted_reads_little(
    parted: list[Tail], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    reads = OpenSource.read
    monkeypatch.setattr(
        OpenSource, "read", lambda source, at, length: asked.append(length) or reads(source, at, length)
    )
    first = look(parted)
    [group] = first.groups
    assert group.verdict == "DIVERGED"
    [split] = group.splits
    assert (split.room, split.rid, [side.landed_s for side in split.sides]) == (ROOM, "rid of 7", [2.0, 2.0])
    assert sum(asked) > SIZE // 4  # the rings of events
    asked.clear()
    assert look(parted) == first
    assert sum(asked) < LITTLE
