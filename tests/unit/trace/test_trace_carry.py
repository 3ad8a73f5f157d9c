"""Looks at a growing recording, put together, are the recording with large rings; what was missed is said."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.recording import format as f
from pdctl.recording.reader import Recording, parse
from pdctl.recording.source import FileSource, Source
from pdctl.trace.carry import Carried
from pdctl.trace.writer import member_of
from tests.unit.agent.test_tap_recording import Engine, Request

LARGE = 4 << 20


class Twins:
    """The same queue recorded twice: into the smallest file, and into one that never laps."""

    def __init__(self, folder: Path) -> None:
        self.small = Engine(folder / "small.pdrec")
        self.large = Engine(folder / "large.pdrec", LARGE)
        self.room = 0

    def turns(self, seed: int, count: int) -> None:
        for engine in (self.small, self.large):
            rng = random.Random(seed)
            room = self.room
            for _ in range(count):
                for _ in range(rng.choice([0, 0, 1, 2])):
                    room += 1
                    engine.queue.append(Request(room, room % 32))
                    engine.writer.event(1, mono_ns=room, room=room, text=f"r{room}")
                local = [rng.choice([2, 3, 3, 4]) for _ in engine.queue]
                engine.turn(local, [poll if rng.random() < 0.9 else 0 for poll in local], set())
        self.room = room


def told(recording: Recording) -> tuple[list[Any], list[Any]]:
    """Return all that a recording tells but the times of rounds, which two files of one queue have each its own."""
    runs = [
        (stream.queue, run.ordinal, run.repeat, run.phase, run.n, run.hash, run.after_hash, stream.items(run))
        for stream in recording.streams
        for run in stream.runs
    ]
    return runs, [(e.seq, e.mono_ns, e.kind, e.room, e.text) for e in recording.events()]


@settings(max_examples=25, deadline=None)
@given(looks=st.lists(st.integers(0, 60), min_size=1, max_size=30), seed=st.integers(0, 1 << 30), late=st.booleans())
def test_looks_put_together_are_the_recording_with_large_rings(
    looks: list[int], seed: int, late: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("carry")
    twins = Twins(folder)
    carried = Carried(FileSource(folder / "small.pdrec"))
    for number, turns in enumerate(looks):
        twins.turns(seed + number, turns * (30 if late and number == 0 else 1))
        carried.look()
    large = parse((folder / "large.pdrec").read_bytes())
    assert carried.gaps() == ()
    built = parse(carried.build())
    assert built.problems == []
    runs, events = told(built)
    all_runs, all_events = told(large)
    # What the first look came too late for is the only thing that may be missing.
    assert [run[:-1] for run in runs] == [run[:-1] for run in all_runs[len(all_runs) - len(runs) :]]
    assert events == all_events[len(all_events) - len(events) :]
    if not late:
        assert len(events) == len(all_events)
        assert runs == all_runs
    assert member_of(carried.build()).rank.identity == large.identity


def test_it_outgrows_the_ring_many_times(tmp_path: Path) -> None:
    twins = Twins(tmp_path)
    carried = Carried(FileSource(tmp_path / "small.pdrec"))
    for number in range(60):
        twins.turns(number, 40)
        carried.look()
    small = parse((tmp_path / "small.pdrec").read_bytes())
    built = parse(carried.build())
    assert sum(map(len, built.streams)) > 2 * sum(map(len, small.streams))
    assert told(built) == told(parse((tmp_path / "large.pdrec").read_bytes()))
    assert carried.size == len(carried.build()) > f.MIN_SIZE


def test_a_quiet_recording_is_carried_as_it_is(tmp_path: Path) -> None:
    twins = Twins(tmp_path)
    twins.turns(1, 30)
    carried = Carried(FileSource(tmp_path / "small.pdrec"))
    assert carried.look() > 0
    assert carried.look() == 0
    assert told(parse(carried.build())) == told(parse((tmp_path / "small.pdrec").read_bytes()))
    assert len(carried.build()) == f.MIN_SIZE


def test_what_was_overwritten_between_two_looks_is_a_gap(tmp_path: Path) -> None:
    twins = Twins(tmp_path)
    carried = Carried(FileSource(tmp_path / "small.pdrec"))
    twins.turns(1, 20)
    carried.look()
    twins.turns(2, 2500)
    carried.look()
    twins.turns(3, 20)
    carried.look()
    gaps = {gap.ring: gap for gap in carried.gaps()}
    assert set(gaps) >= {"rounds", "events"}
    runs, events = told(parse(carried.build()))
    all_runs, all_events = told(parse((tmp_path / "large.pdrec").read_bytes()))
    assert gaps["events"].lost == len(all_events) - len(events) > 0
    assert gaps["rounds"].lost == len(all_runs) - len(runs) > 0
    assert gaps["events"].before_ns > gaps["events"].after_ns > 0
    assert [event for event in all_events if event in events] == events
    assert len(carried.gaps()) <= 3


def test_a_torn_event_is_had_at_the_next_look(tmp_path: Path) -> None:
    twins = Twins(tmp_path)
    twins.turns(1, 20)
    data = bytearray((tmp_path / "small.pdrec").read_bytes())
    source = Source(bytes(data))
    at = f.layout(len(data))[4] + 2 * f.EVENT_SIZE + 20
    data[at] ^= 1
    source._data = bytes(data)
    carried = Carried(source)
    carried.look()
    assert [gap.lost for gap in carried.gaps()] == [1]
    data[at] ^= 1
    source._data = bytes(data)
    carried.look()
    assert carried.gaps() == ()
    assert told(parse(carried.build())) == told(parse(bytes(data)))


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a pdctl recording"):
        Carried(Source(b"x" * f.MIN_SIZE))
    Twins(tmp_path)
    source = Source((tmp_path / "small.pdrec").read_bytes())
    carried = Carried(source)
    source._data = source._data[:1000]
    with pytest.raises(OSError, match="cut off"):
        carried.look()
