"""Looks at a growing recording, put together, are the recording with large rings; what was missed is said."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.protocol.errors import PdctlError
from pdctl.recording import format as f
from pdctl.recording.reader import Recording, parse, read_from
from pdctl.recording.source import FileSource, Source
from pdctl.targets.find import Found
from pdctl.targets.follow import begin
from pdctl.trace.carry import MAX_GAPS, Carried
from tests.support.tiny_ranks import ROOT
from tests.unit.agent.test_tap_recording import IDENTITY, Engine, Request

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
    built = read_from(carried.build())
    assert built.problems == []
    runs, events = told(built)
    all_runs, all_events = told(large)
    # What the first look came too late for is the only thing that may be missing.
    assert [run[:-1] for run in runs] == [run[:-1] for run in all_runs[len(all_runs) - len(runs) :]]
    assert events == all_events[len(all_events) - len(events) :]
    if not late:
        assert len(events) == len(all_events)
        assert runs == all_runs
    assert built.identity == large.identity


def test_it_outgrows_the_ring_many_times(tmp_path: Path) -> None:
    twins = Twins(tmp_path)
    carried = Carried(FileSource(tmp_path / "small.pdrec"))
    for number in range(60):
        twins.turns(number, 40)
        carried.look()
    small = parse((tmp_path / "small.pdrec").read_bytes())
    built = read_from(carried.build())
    assert sum(map(len, built.streams)) > 2 * sum(map(len, small.streams))
    assert told(built) == told(parse((tmp_path / "large.pdrec").read_bytes()))
    assert carried.size == carried.build().size > f.MIN_SIZE


def test_a_quiet_recording_is_carried_as_it_is(tmp_path: Path) -> None:
    twins = Twins(tmp_path)
    twins.turns(1, 30)
    carried = Carried(FileSource(tmp_path / "small.pdrec"))
    assert carried.look() > 0
    assert carried.look() == 0
    assert told(read_from(carried.build())) == told(parse((tmp_path / "small.pdrec").read_bytes()))
    assert carried.build().size == f.MIN_SIZE


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
    runs, events = told(read_from(carried.build()))
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
    assert told(read_from(carried.build())) == told(parse(bytes(data)))


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a pdctl recording"):
        Carried(Source(b"x" * f.MIN_SIZE))
    Twins(tmp_path)
    source = Source((tmp_path / "small.pdrec").read_bytes())
    carried = Carried(source)
    source._data = source._data[:1000]
    with pytest.raises(OSError, match="cut off"):
        carried.look()


def test_of_many_gaps_the_last_stands_for_all_that_follow(tmp_path: Path) -> None:
    twins = Twins(tmp_path)
    carried = Carried(FileSource(tmp_path / "small.pdrec"))
    carried.look()
    capacity = f.layout(f.MIN_SIZE)[5]
    for number in range(MAX_GAPS + 10):
        for at in range(capacity + 3 if number else 1):
            twins.small.writer.event(1, mono_ns=number * 1000 + at + 1)
        carried.look()
    gaps = carried.gaps()
    assert [gap.ring for gap in gaps] == ["events"] * MAX_GAPS
    assert {gap.lost for gap in gaps[:-1]} == {3}
    assert gaps[-1].lost == 3 * 10
    assert gaps[-1].before_ns == (MAX_GAPS + 9) * 1000 + 4
    assert [a.before_ns - a.after_ns for a in gaps[1:-1]] == [1000 + 4 - capacity - 3] * (MAX_GAPS - 2)


FOLLOWS = """
import sys
from pathlib import Path
from pdctl.protocol.model import QUEUES
from pdctl.recording.header import parse_header
from pdctl.recording import format as f
from pdctl.recording.source import FileSource
from pdctl.recording.writer import RecordingWriter
from pdctl.trace import manifest
from pdctl.trace.carry import Carried, Spill
from pdctl.trace.writer import Member, write_trace
from pdctl.trace.manifest import TraceRank
from tests.unit.trace.test_trace_carry import peak, JSON

folder, spill, members = Path(sys.argv[1]), Spill(), []
before = peak()
for rank in range(3):
    writer = RecordingWriter.create(folder / f"{rank}.pdrec", JSON, size=f.MIN_SIZE)
    carried = Carried(FileSource(folder / f"{rank}.pdrec"), spill)
    for look in range(150):
        for event in range(400):
            writer.event(1, mono_ns=look * 1000 + event + 1, room=event, text=f"request {event}")
        carried.look()
    assert carried.gaps() == ()
    made = carried.build()
    identity = parse_header(made.read(0, f.HEADER_SIZE)).identity
    members.append(Member(TraceRank(rank="rank", state="live", kept="whole", identity=identity), made))
done = write_trace(folder / "made.pdtrace", members, manifest.new("test"))
print(sum(rank.size for rank in done.ranks), peak() - before)
"""
JSON = msgspec.json.encode(IDENTITY)


def peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10


def test_what_is_followed_takes_disk_and_no_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FOLLOWS, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    size, grown = map(int, done.stdout.split())
    print(f"{size >> 20} MiB were followed in {grown >> 20} MiB")
    assert size > 80 << 20
    assert grown < 20 << 20


def test_a_full_disk_is_a_reason_and_what_was_copied_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(tmp_path)
    twins.turns(1, 20)
    carried = Carried(FileSource(tmp_path / "small.pdrec"))
    carried.look()
    had = told(read_from(carried.build()))
    twins.turns(2, 20)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match=r"its records can't be kept in .*: No space left on device"):
            carried.look()
    assert told(read_from(carried.build()))[1] == had[1]


def test_without_a_place_to_keep_it_nothing_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(**_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", none)
    with pytest.raises(PdctlError, match="what is followed can't be kept: Permission denied") as error:
        begin(Found(), None)  # type: ignore[arg-type]  # nobody is asked
    assert error.value.next_step == "Set TMPDIR to a directory with room."
