"""A tail reads what a whole reading does, of the newest runs: over many rings, and where records are torn."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pdctl.protocol.model import EventKind
from pdctl.recording import format as f
from pdctl.recording import rings
from pdctl.recording import tail as tails
from pdctl.recording.reader import BadRecording, read
from pdctl.recording.source import Source
from pdctl.recording.tail import Tail
from tests.unit.agent.test_tap_recording import Engine, Request

MOST = 300


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(tails, "MOST_RUNS", MOST)
    return Engine(tmp_path / "x.pdrec")


def turns(engine: Engine, many: int, draw: random.Random) -> None:
    """Turns that each end a run: another request comes, and one of those before goes now and then."""
    for _ in range(many):
        engine.queue = [*engine.queue[-3:], Request(draw.randrange(1, 1 << 60), 1)]
        polls = [draw.choice((1, 3, 3, 4)) for _ in engine.queue]
        engine.turn(polls, polls, set())


def opened(tmp_path: Path) -> Tail:
    recording = read(tmp_path / "x.pdrec")
    return Tail(tmp_path / "x.pdrec", recording.pid, recording.proc_start)


def same(tail: Tail, tmp_path: Path) -> None:
    """What the tail has is the end of what a whole reading has."""
    mine, whole = tail.read(), read(tmp_path / "x.pdrec")
    [one], [all_runs] = mine.streams, whole.streams
    assert min(MOST, len(all_runs)) <= len(one) <= MOST + 1
    assert np.array_equal(one.table, all_runs.table[-len(one) :])
    assert (mine.ticks, mine.visits, mine.problems) == (whole.ticks, whole.visits, [])


@pytest.mark.parametrize("seed", range(2))
def test_it_reads_what_a_whole_reading_does(engine: Engine, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    turns(engine, 1, draw)
    tail = opened(tmp_path)
    rounds_cap = f.layout(f.MIN_SIZE)[1]
    for many in (0, 1, 5, 63, 64, 65, 200, rounds_cap // 2, rounds_cap - 1, rounds_cap, 3 * rounds_cap, 7):
        turns(engine, many, draw)
        same(tail, tmp_path)
    [one], [all_runs] = tail.read().streams, read(tmp_path / "x.pdrec").streams
    for run in one.runs[-50:]:
        assert one.items(run) == all_runs.items(run) is not None


def test_only_new_runs_are_read(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    turns(engine, 50, draw)
    tail = opened(tmp_path)
    tail.read()
    whole: Callable[..., object] = lambda *_: pytest.fail("the whole ring is read")  # noqa: E731
    monkeypatch.setattr(tails, "rounds", whole)
    for many in (0, 3, 100):
        turns(engine, many, draw)
        same(tail, tmp_path)


def test_a_torn_run_is_left_out_and_said_and_read_once_it_is_whole(engine: Engine, tmp_path: Path) -> None:
    draw = random.Random(2)
    turns(engine, 50, draw)
    tail = opened(tmp_path)
    tail.read()
    before = (tmp_path / "x.pdrec").read_bytes()
    turns(engine, 10, draw)
    offset = f.layout(f.MIN_SIZE)[0]
    at = next(
        at for at in range(offset, len(before), f.ROUND_SIZE) if not any(before[at : at + 8])
    )  # the first run of the ten
    with (tmp_path / "x.pdrec").open("r+b") as file:
        whole = os.pread(file.fileno(), f.ROUND_SIZE, at)
        os.pwrite(file.fileno(), bytes(8), at + 40)
        torn = tail.read()
        assert torn.problems == ["1 round record(s) torn and left out"]
        os.pwrite(file.fileno(), whole, at)
    same(tail, tmp_path)


def test_a_recording_of_another_process_is_none(engine: Engine, tmp_path: Path) -> None:
    turns(engine, 1, random.Random(3))
    with pytest.raises(BadRecording, match="of another process"):
        Tail(tmp_path / "x.pdrec", 1, 2).read()
    with pytest.raises(FileNotFoundError):
        Tail(tmp_path / "y.pdrec", 1, 2)


def tell(engine: Engine, many: int) -> None:
    """Events come."""
    for number in range(many):
        engine.writer.event(int(EventKind.ENQUEUE), room=number + 1, text=f"r{number}")


def told(tail: Tail, tmp_path: Path) -> None:
    """The tail has the events that a whole reading has."""
    assert np.array_equal(tail.read().event_table(), read(tmp_path / "x.pdrec").event_table())


def test_events_are_those_of_a_whole_reading_over_many_rings(engine: Engine, tmp_path: Path) -> None:
    turns(engine, 1, random.Random(4))
    tail, capacity = opened(tmp_path), f.layout(f.MIN_SIZE)[5]
    for many in (0, 1, 5, 63, 64, 65, capacity // 2, capacity - 1, capacity, 3 * capacity, 7):
        tell(engine, many)
        told(tail, tmp_path)


def test_only_new_events_are_read_and_they_are_forgotten_once_nobody_asks(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns(engine, 1, random.Random(5))
    tail = opened(tmp_path)
    tell(engine, 100)
    told(tail, tmp_path)
    whole: list[int] = []
    monkeypatch.setattr(tails, "events", lambda *place: whole.append(1) or rings.events(*place))
    for many in (0, 3, 100):
        tell(engine, many)
        told(tail, tmp_path)
    assert not whole
    tail.read()  # and no event is asked for
    told(tail, tmp_path)
    assert whole == [1]


def test_an_event_that_a_thread_writes_late_is_read(engine: Engine, tmp_path: Path) -> None:
    turns(engine, 1, random.Random(6))
    tell(engine, 20)
    offset, path = f.layout(f.MIN_SIZE)[4], tmp_path / "x.pdrec"
    tail = opened(tmp_path)
    with path.open("r+b") as file:
        late = os.pread(file.fileno(), f.EVENT_SIZE, offset + 9 * f.EVENT_SIZE)
        os.pwrite(file.fileno(), bytes(f.EVENT_SIZE), offset + 9 * f.EVENT_SIZE)
        told(tail, tmp_path)
        tell(engine, 100)
        told(tail, tmp_path)
        os.pwrite(file.fileno(), late, offset + 9 * f.EVENT_SIZE)
    assert 10 in tail.read().event_table()["seq"]
    told(tail, tmp_path)


def test_a_rank_that_writes_as_fast_as_it_is_read_is_followed_for_one_lap(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns(engine, 5, random.Random(4))
    tail = opened(tmp_path)
    tail.read()
    capacity = f.layout(f.MIN_SIZE)[1]
    later, lasts = tails.later_rounds, []

    def more(source: Source, offset: int, rounds_cap: int, last: int, most: int) -> rings.Ring | None:
        lasts.append(last)
        if len(lasts) > rounds_cap:
            pytest.fail("it is followed for ever")
        turns(engine, 1, random.Random(last))
        return later(source, offset, rounds_cap, last, most)

    monkeypatch.setattr(tails, "later_rounds", more)
    tail.read()
    assert lasts[-1] - lasts[0] < capacity
    monkeypatch.undo()
    same(tail, tmp_path)
