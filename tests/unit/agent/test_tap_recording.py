"""What a tap records is what the queue did: an engine-like queue is driven through random turns and read back."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.agent.tap import QueueTap
from pdctl.protocol.model import UNKNOWN, Action, EventKind, GroupInfo, Identity, KVPoll, Phase
from pdctl.recording import format as f
from pdctl.recording.reader import BadRecording, Recording, parse, read, read_events
from pdctl.recording.writer import RecordingWriter

GROUP = GroupInfo(kind="attn-tp", ranks=(0, 1), world="w")
IDENTITY = Identity(
    engine="test",
    engine_version="1",
    pdctl_version="0",
    role="decode",
    host="h",
    pid=os.getpid(),
    proc_start=1,
    started_wall_ns=1,
    started_mono_ns=1,
    instance="i",
    service="s",
    cluster="c",
    world="w",
    world_rank=0,
    groups=(GROUP,),
)


@dataclass(eq=False)
class Request:
    room: int
    slot: int
    poller: object = field(default_factory=object)


class View:
    def __init__(self) -> None:
        self.slots: dict[int, int] = {}

    def describe(self, entry: Any) -> tuple[int, int]:
        return entry.room, entry.slot

    def found(self, slots: Any) -> list[int]:
        return [self.slots.get(slot, 0) for slot in slots]


class Engine:
    """A decode transfer queue reduced to what a tap sees: the list, the polls of this rank, what the group made of them."""

    def __init__(self, path: Path, size: int = f.MIN_SIZE) -> None:
        self.writer = RecordingWriter.create(path, msgspec.json.encode(IDENTITY), size=size)
        self.view = View()
        streams = count()
        self.tap = QueueTap("decode.transfer", self.view, self.writer, lambda: next(streams))
        self.queue: list[Request] = []
        self.log: list[tuple[list[int], list[int], list[int], list[int]]] = []

    def turn(self, local: list[int], reduced: list[int], keep: set[int], gate: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """One turn: ``keep`` are rooms that stay although their poll would let them go; ``gate`` rooms are held back."""
        self.tap.visit(self.queue)
        self.last_was_empty = not self.queue
        if not self.queue:
            return
        self.tap.polled([request.poller for request in self.queue])
        self.tap.raw(local)
        gated = [3 if poll == 4 and r.room in gate else poll for poll, r in zip(local, self.queue, strict=True)]
        self.tap.entering(0, bytes(gated), 1)
        self.tap.left(0, bytes(reduced), 1)
        stays = []
        actions = []
        for request, poll in zip(self.queue, reduced, strict=True):
            if poll == 4:
                kept = request.room in keep
                found = 0 if kept else self.view.slots.get(request.slot, request.room)
                self.tap.decided(request, Action.KEPT if kept else Action.COMMITTED, found)
            else:
                kept = poll != 0
            actions.append(0 if kept else (1 if poll == 4 else 2))
            if kept:
                stays.append(request)
        self.log.append(([r.room for r in self.queue], gated, reduced, actions))
        self.queue = stays
        self.tap.leave(self.queue)


def rounds_of(recording: Recording) -> list[tuple[list[int], list[int], list[int], list[int]]]:
    stream = recording.stream("decode.transfer")
    if stream is None:
        return []
    out = []
    for run in stream.runs:
        items = stream.items(run)
        assert items is not None
        row = ([i.room for i in items], [i.gated for i in items], [i.reduced for i in items], [i.action for i in items])
        out += [row] * run.repeat
    return out


TURN = st.tuples(
    st.integers(0, 3),  # requests that arrive
    st.lists(st.sampled_from([0, 1, 3, 3, 3, 4]), min_size=40, max_size=40),  # polls, cut to the queue's length
    st.integers(0, 255),  # which of the successes stay
    st.booleans(),  # repeat the polls of the turn before
)


@settings(max_examples=150, deadline=None)
@given(turns=st.lists(TURN, max_size=40), abort_at=st.integers(0, 60))
def test_what_is_read_is_what_happened(
    turns: list[Any], abort_at: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rec") / "r"
    engine = Engine(path)
    rooms = count(1)
    previous: list[int] = []
    for number, (arrivals, polls, stay, repeat) in enumerate(turns):
        for _ in range(min(arrivals, 40 - len(engine.queue))):
            room = next(rooms)
            engine.queue = [*engine.queue, Request(room, room % 64)]
        if number == abort_at and engine.queue:
            engine.queue = engine.queue[1:]  # somebody else takes one out between two turns
        local = previous if repeat and len(previous) == len(engine.queue) else polls[: len(engine.queue)]
        previous = local
        keep = {r.room for n, r in enumerate(engine.queue) if stay >> (n % 8) & 1}
        engine.turn(local, local, keep)
    recording = read(path)
    assert rounds_of(recording) == engine.log
    assert recording.ticks == len(turns)
    if turns:
        visits = recording.visits["decode.transfer"]
        assert (visits.count, visits.empty) == (len(turns), engine.last_was_empty)
    stream = recording.stream("decode.transfer")
    if stream is not None:
        assert stream.last == len(engine.log) - 1
        assert all(run.phase is Phase.APPLIED for run in stream.runs)
        for run, following in pairwise(stream.runs):
            assert following.ordinal == run.last + 1
            assert run.t_enter <= following.t_first
        for run in stream.runs:
            assert run.t_enter > run.t_first if run.repeat > 1 else run.t_enter == run.t_first <= run.t_done


def test_equal_rounds_only_raise_the_repeat_count(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "r")
    engine.queue = [Request(7, 1), Request(8, 2)]
    for _ in range(5000):
        engine.turn([3, 3], [3, 3], set())
    stream = read(tmp_path / "r").stream("decode.transfer")
    assert stream is not None
    assert [(run.ordinal, run.repeat) for run in stream.runs] == [(0, 5000)]


def test_a_success_that_is_kept_again_and_again_is_one_run_until_it_commits(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "r")
    engine.queue = [Request(7, 1)]
    for _ in range(300):
        engine.turn([4], [4], {7})
    engine.view.slots[1] = 7
    engine.turn([4], [4], set())
    stream = read(tmp_path / "r").stream("decode.transfer")
    assert stream is not None
    assert [(run.ordinal, run.repeat, run.n_after) for run in stream.runs] == [(0, 300, 1), (300, 1, 0)]
    first, last = (stream.items(run) for run in stream.runs)
    assert first is not None
    assert last is not None
    assert (first[0].action, first[0].found) == (Action.KEPT, 0)
    assert (last[0].action, last[0].found) == (Action.COMMITTED, 7)


def test_a_hung_round_is_in_the_file_before_its_collective(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "r")
    engine.queue = [Request(7, 1)]
    engine.turn([3], [3], set())
    engine.tap.visit(engine.queue)
    engine.tap.polled([engine.queue[0].poller])
    engine.tap.raw([4])
    engine.tap.entering(0, bytes([3]), 1)  # held back by a gate; the collective never returns
    stream = read(tmp_path / "r").stream("decode.transfer")
    assert stream is not None
    run = stream.newest
    assert (run.ordinal, run.phase) == (1, Phase.ENTERED)
    items = stream.items(run)
    assert items is not None
    assert (items[0].local, items[0].gated) == (KVPoll.SUCCESS, KVPoll.TRANSFERRING)


def test_a_round_whose_result_differs_is_in_the_file_when_the_rank_stops_after_it(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "r")
    engine.queue = [Request(7, 1)]
    for _ in range(3):
        engine.turn([3], [3], set())
    engine.tap.visit(engine.queue)
    engine.tap.polled([request.poller for request in engine.queue])
    engine.tap.raw([3])
    engine.tap.entering(0, bytes([3]), 1)
    engine.tap.left(0, bytes([1]), 1)
    stream = read(tmp_path / "r").stream("decode.transfer")
    assert stream is not None
    assert [(run.ordinal, run.repeat, run.phase) for run in stream.runs] == [
        (0, 3, Phase.APPLIED),
        (3, 1, Phase.REDUCED),
    ]
    assert [item.reduced for item in stream.items(stream.newest) or []] == [1]
    assert engine.tap.ordinals() == {0: stream.last}


def test_a_result_that_was_not_written_is_not_told(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "r")
    engine.queue = [Request(7, 1), Request(8, 2)]
    engine.turn([3, 3], [3, 3], set())
    engine.tap.visit(engine.queue)
    engine.tap.polled([request.poller for request in engine.queue])
    engine.tap.raw([3, 2])
    engine.tap.entering(0, bytes([3, 2]), 1)
    engine.tap.left(0, bytes([1, 2]), 1)  # and then the engine raises
    engine.turn([3, 2], [3, 2], set())
    stream = read(tmp_path / "r").stream("decode.transfer")
    assert stream is not None
    assert [run.phase for run in stream.runs] == [Phase.APPLIED, Phase.ENTERED, Phase.APPLIED]
    assert [item.reduced for item in stream.items(stream.runs[1]) or []] == [UNKNOWN, UNKNOWN]


def test_a_request_that_can_not_be_described_keeps_its_place_and_its_round(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "r")
    engine.queue = [Request(7, 1), Request(-1, 2), Request(9, 3)]
    engine.tap.visit(engine.queue)
    with pytest.raises(OverflowError):
        engine.tap.polled([request.poller for request in engine.queue])
    engine.tap.entering(0, bytes([3, 3, 3]), 1)
    engine.tap.left(0, bytes([3, 3, 3]), 1)
    engine.tap.leave(engine.queue)
    engine.turn([3, 3, 3], [3, 3, 3], set())
    stream = read(tmp_path / "r").stream("decode.transfer")
    assert stream is not None
    assert stream.last == 1
    assert [item.room for item in stream.items(stream.newest) or []] == [7, 0, 9]


def test_a_cell_written_long_after_is_not_taken_for_applied(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "r")
    engine.queue = [Request(7, 1)]
    for _ in range(2):
        engine.turn([3], [3], set())  # the second is applied as a repeat
    live = engine.tap._streams[0].live
    tag, states = live.tag, (1, 2)
    for turn in range(40_000):
        engine.turn([states[turn % 2]], [states[turn % 2]], set())
        if live.tag == tag:
            break
    assert live.tag == tag, "the tag never came again"
    local = [engine.log[-1][1][0]]
    engine.tap.visit(engine.queue)
    engine.tap.polled([request.poller for request in engine.queue])
    engine.tap.raw(local)
    engine.tap.entering(0, bytes(local), 1)
    stream = read(tmp_path / "r").stream("decode.transfer")
    assert stream is not None
    assert (stream.newest.repeat, stream.newest.phase) == (2, Phase.ENTERED)


def test_rings_wrap_and_the_rest_can_still_be_trusted(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "r")
    rooms = count(1)
    for number in range(6000):
        if number % 3 == 0:
            room = next(rooms)
            engine.queue = [*engine.queue, Request(room, room % 64)]
        engine.turn([3 if number % 2 else 2] * len(engine.queue), [3 if number % 2 else 2] * len(engine.queue), set())
        if len(engine.queue) > 30:
            engine.turn([4] * len(engine.queue), [4] * len(engine.queue), set())
    stream = read(tmp_path / "r").stream("decode.transfer")
    assert stream is not None
    assert stream.first > 0
    known = 0
    for run in stream.runs:
        items = stream.items(run)
        if items is not None:
            known += 1
            assert [i.room for i in items] == engine.log[run.ordinal][0]
    assert known > 100
    assert stream.items(stream.newest) is not None


@settings(max_examples=120, deadline=None)
@given(cut=st.integers(0, f.MIN_SIZE), flip=st.integers(0, f.MIN_SIZE - 1), bit=st.integers(0, 7))
def test_torn_or_flipped_at_any_byte_never_yields_a_round_that_was_not(cut: int, flip: int, bit: int) -> None:
    data, log = _sample()
    damaged = bytearray(data[:cut])
    if flip < len(damaged):
        damaged[flip] ^= 1 << bit
    try:
        recording = parse(bytes(damaged))
    except BadRecording:
        return
    for stream in recording.streams:
        for run in stream.runs:
            items = stream.items(run)
            if items is not None:
                assert [i.room for i in items] == log[run.ordinal][0]
    recording.events()


_SAMPLE: list[Any] = []


def _sample() -> tuple[bytes, Any]:
    if not _SAMPLE:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            engine = Engine(Path(folder) / "r")
            for number in range(200):
                if number % 2 == 0:
                    engine.queue = [*engine.queue, Request(number + 1, number % 64)]
                polls = [4 if n == 0 and number % 5 == 0 else 3 for n in range(len(engine.queue))]
                engine.turn(polls, polls, set())
                engine.writer.event(EventKind.ENQUEUE, queue=4, room=number, text=f"rid {number}")
            _SAMPLE.extend([(Path(folder) / "r").read_bytes(), engine.log])
    return _SAMPLE[0], _SAMPLE[1]


def test_events_come_back_in_order_with_their_text(tmp_path: Path) -> None:
    writer = RecordingWriter.create(tmp_path / "r", msgspec.json.encode(IDENTITY), size=f.MIN_SIZE)
    for number in range(2000):
        writer.event(EventKind.ENQUEUE, queue=4, room=2**63 + number, slot=3, a=-1, b=number, text="räume" * 30)
    events = read(tmp_path / "r").events()
    assert [event.seq for event in events] == list(range(2001 - len(events), 2001))
    assert events[-1].room == 2**63 + 1999
    assert events[-1].queue == "decode.transfer"
    assert events[-1].text.startswith("räumeräume")


def test_events_of_some_rooms_are_the_same_as_among_all(tmp_path: Path) -> None:
    writer = RecordingWriter.create(tmp_path / "r", msgspec.json.encode(IDENTITY), size=f.MIN_SIZE)
    kinds = (EventKind.DP_REGISTER, EventKind.DP_QUERY, EventKind.STATE)
    for number in range(3000):
        writer.event(kinds[number % 3], room=2**63 + number % 50, a=number)
    recording = read(tmp_path / "r")
    rooms, asked = {2**63 + 3, 2**63 + 7, 5}, {EventKind.DP_REGISTER, EventKind.STATE}
    expected = [event for event in recording.events() if event.room in rooms and event.kind in asked]
    assert recording.events_of(rooms, asked) == read_events(tmp_path / "r", rooms, asked) == expected
    assert len(expected) > 10
    assert recording.events_of((), asked) == recording.events_of(rooms, ()) == []
    data = bytearray((tmp_path / "r").read_bytes())
    body = f.EVENT.pack(
        expected[-1].seq, expected[-1].mono_ns, expected[-1].kind, 255, 0, -1, expected[-1].room, 0, 0, b""
    )
    data[data.index(body[:16]) + 40] ^= 1  # torn
    assert parse(bytes(data)).events_of(rooms, asked) == expected[:-1]


def test_a_round_that_is_being_written_is_looked_at_again(tmp_path: Path) -> None:
    data, _ = _sample()
    whole = bytearray(data)
    seqs = [
        at
        for at in range(f.RINGS_OFFSET, len(whole), f.ROUND_SIZE)
        if any(whole[at : at + 8]) and at < f.layout(len(whole))[2]
    ]
    path = tmp_path / "r"
    half = bytearray(whole)
    half[seqs[1] + 40] ^= 0xFF
    path.write_bytes(half)
    writer = threading.Timer(0.03, lambda: path.open("r+b").write(whole))
    writer.start()
    assert read(path).problems == []
    writer.join()
    path.write_bytes(half)
    assert read(path).problems == ["1 round record(s) torn and left out"], "a writer that never goes on"


def test_foreign_short_and_future_files_say_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match="not a pdctl recording"):
        parse(b"GIF89a" * 1000)
    with pytest.raises(BadRecording, match="empty"):
        parse(b"")
    data = bytearray(_sample()[0])
    data[8] = 9
    with pytest.raises(BadRecording, match="format 9"):
        parse(bytes(data))


def test_no_space_is_an_error_at_the_start_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"File too large|No space left"):
        RecordingWriter.create(tmp_path / "r", b"{}", size=1 << 55)
    assert not list(tmp_path.iterdir())
