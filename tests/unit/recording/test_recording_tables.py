"""What is read of all records at once is what they say one by one, damaged and overwritten ones left out alike."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path
from unittest.mock import patch
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.probes.metadata import history as module
from pdctl.probes.metadata.history import history
from pdctl.probes.metadata.model import History, Mismatch, WrongKV
from pdctl.probes.stuck.collect import last_words
from pdctl.protocol.model import QUEUES, UNKNOWN, Action, EventKind, KVPoll, Phase, poll_name
from pdctl.protocol.notes import WRONG_ELSEWHERE, WRONG_KV
from pdctl.recording import format as f
from pdctl.recording.reader import Event, Item, Recording, parse
from pdctl.recording.streams import Run, Stream
from tests.unit.agent.test_tap_recording import Engine, Request

KINDS = [EventKind.ENQUEUE, EventKind.META_SENT, EventKind.LANDED, EventKind.STATE, EventKind.SLOT_FREE]
KINDS += [EventKind.FAULT_FIRED, EventKind.FAILURE]
SLOTS = 24
TEXTS = ("", "hold-metadata", "räume" * 20, f"{WRONG_KV} req=r1 expected=0x1 got=0x2", f"{WRONG_ELSEWHERE} req=r1")


@cache
def driven(seed: int, turns: int, open_phase: int) -> bytes:
    """Return the recording of a queue that was driven at random; open_phase: how far its last round got, 0 through it."""
    draw = random.Random(seed)
    rooms = count(1 << 63)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Path(folder) / "r")
        for _ in range(turns):
            free = sorted(set(range(SLOTS)) - {request.slot for request in engine.queue})
            for slot in free[: draw.choice((0, 0, 1, 3))]:
                engine.queue = [*engine.queue, Request(next(rooms), slot)]
            if engine.queue and draw.random() < 0.02:
                del engine.queue[draw.randrange(len(engine.queue))]  # somebody else takes one out
                engine.queue = list(engine.queue)
            for request in engine.queue:
                engine.view.slots[request.slot] = draw.choice((0, request.room, request.room, request.room - 1))
            polls = [draw.choice((0, 1, 3, 3, 3, 3, 4)) for _ in engine.queue]
            engine.turn(polls, polls, {r.room for r in engine.queue if draw.random() < 0.3})
            for _ in range(draw.choice((0, 0, 1, 2))):
                room, slot = draw.choice((0, 1 << 63 | draw.randrange(200))), draw.randrange(-1, SLOTS)
                kind, text = draw.choice(KINDS), draw.choice(TEXTS)
                queue = draw.choice((4, f.NO_QUEUE))
                a, b = draw.randrange(-1, 5), draw.randrange(2)
                engine.writer.event(kind, queue=queue, room=room, slot=slot, a=a, b=b, text=text)
        if open_phase and engine.queue:
            polls = [draw.choice((3, 4)) for _ in engine.queue]
            engine.tap.visit(engine.queue)
            engine.tap.polled([request.poller for request in engine.queue])
            engine.tap.raw(polls)
            engine.tap.entering(0, bytes(polls), 1)
            if open_phase > 1:
                engine.tap.left(0, bytes(polls), 1)
        return (Path(folder) / "r").read_bytes()


def recorded(seed: int, turns: int, open_phase: int, flips: Sequence[int]) -> bytes:
    """Return the same with some of its bits flipped."""
    data = bytearray(driven(seed, turns, open_phase))
    used = [at for at in range(f.HEADER_SIZE, len(data), 8) if any(data[at : at + 8])]
    for flip in flips if used else ():
        data[used[flip % len(used)] + flip % 8] ^= 1 << flip % 7
    return bytes(data)


SEEDS = st.tuples(st.integers(0, 99), st.integers(0, 60), st.integers(0, 2))
LONG = st.tuples(st.integers(0, 2), st.sampled_from([400, 1400]), st.integers(0, 2))
"""The longer ones wrap all three rings."""
FLIPS = st.lists(st.integers(0, 1 << 40), max_size=6)
RECORDINGS = st.tuples(SEEDS | LONG, FLIPS).map(lambda drawn: (*drawn[0], tuple(drawn[1])))
Recorded = tuple[int, int, int, tuple[int, ...]]


def one_by_one(data: bytes) -> list[Event]:
    """Return the events of a recording, each unpacked by itself."""
    *_, offset, capacity = f.layout(len(data))
    found = []
    for place in range(capacity):
        record = data[offset + place * f.EVENT_SIZE :][: f.EVENT_SIZE]
        seq, mono, kind, queue, _, slot, room, a, b, text = f.EVENT.unpack_from(record)
        torn = crc32(record[: f.EVENT.size]) != int.from_bytes(record[f.EVENT_CRC_OFFSET :], "little")
        if not seq or torn or (seq - 1) % capacity != place:
            continue
        name = QUEUES[queue] if queue < len(QUEUES) else ""
        words = text.rstrip(b"\0").decode("utf-8", "replace")
        found.append(Event(seq, mono, EventKind(kind), name, slot, room, a, b, words))
    return sorted(found, key=lambda event: event.seq)


@settings(max_examples=60, deadline=None)
@given(RECORDINGS)
def test_events_are_those_unpacked_one_by_one(drawn: Recorded) -> None:
    data = recorded(*drawn)
    recording = parse(data)
    expected = one_by_one(data)
    assert recording.events() == expected
    rooms = {1 << 63 | number for number in range(0, 200, 9)}
    wanted = [EventKind.STATE, EventKind.LANDED]
    assert recording.events_of(rooms, wanted) == [e for e in expected if e.room in rooms and e.kind in wanted]


def test_an_event_of_a_kind_that_a_newer_writer_has_is_left_out() -> None:
    data = bytearray(recorded(1, 40, 0, []))
    *_, offset, _ = f.layout(len(data))
    before = parse(bytes(data)).events()
    data[offset + 16] = 200
    body = bytes(data[offset : offset + f.EVENT.size])
    data[offset + f.EVENT_CRC_OFFSET : offset + f.EVENT_SIZE] = crc32(body).to_bytes(4, "little")
    assert parse(bytes(data)).events() == before[1:]


@settings(max_examples=60, deadline=None)
@given(RECORDINGS, st.none() | st.integers(0, 300))
def test_lists_rebuilt_from_changes_are_those_of_the_runs(drawn: Recorded, least: int | None) -> None:
    for stream in parse(recorded(*drawn)).streams:
        changes = stream.changes(least)
        assert changes.first <= (0 if least is None else max(0, len(stream) - least))
        listed: dict[int, list[list[int]]] = {}
        for row, item in zip(changes.row.tolist(), changes.items.tolist(), strict=True):
            listed.setdefault(row, []).append(list(item[:9]))
        kept: list[list[int]] | None = None
        for number, known in enumerate(changes.known.tolist()):
            run = stream.run(changes.first + number)
            items = stream.items(run)
            assert known == (items is not None)
            own = listed.get(changes.first + number, [])
            if items is None:
                assert not own
                kept = None
                continue
            whole = [] if run.full or kept is None else kept
            whole += [[]] * (run.n - len(whole))
            for record in own:
                whole[record[3]] = record
            kept = [record for record in whole if record[7] == Action.KEPT]
            assert items == [_as_item(record, run) for record in whole]


def _as_item(record: list[int], run: Run) -> Item:
    room, found, slot, _, local, gated, reduced, action, flags = record
    if run.repeat == 1 and run.phase < Phase.REDUCED:
        reduced, flags = UNKNOWN, 0
    if run.repeat == 1 and run.phase < Phase.APPLIED:
        action = UNKNOWN
    return Item(room, slot, local, gated, reduced, action, found if flags & f.ITEM_FOUND_KNOWN else None)


@settings(max_examples=60, deadline=None)
@given(RECORDINGS, st.sets(st.integers(0, 400), max_size=40))
def test_rooms_are_sighted_where_a_run_names_them(drawn: Recorded, numbers: set[int]) -> None:
    rooms = {1 << 63 | number for number in numbers}
    for stream in parse(recorded(*drawn)).streams:
        expected = []
        for row in range(len(stream)):
            batch = stream._batch(row)
            named = [] if batch is None else [r for r in batch.tolist() if r[0] in rooms]
            expected += [(row, record[0], record[2], record[4], record[5]) for record in named]
        sightings = stream.sightings(rooms)
        assert [(row, i.room, i.slot, i.local, i.gated) for row, i in sightings] == expected
        for row, item in sightings:
            items = stream.items(stream.run(row))
            assert items is None or item in items


def told(recording: Recording, most: int) -> History:
    """Return the history that full lists tell, run by run, request by request."""
    to_wall = recording.start_wall_ns - recording.start_mono_ns
    events = recording.events()
    found = History(whole=bool(events) and events[0].seq == 1)

    def owned(slot: int, room: int) -> None:
        if slot >= 0 and room and found.owners.setdefault(slot, [0])[-1] != room:
            found.owners[slot].append(room)

    for e in events:
        when = (e.mono_ns + to_wall) / 1e9
        found.rooms |= {e.room} - {0}
        if e.kind is EventKind.ENQUEUE:
            owned(e.slot, e.room)
        elif e.kind is EventKind.META_SENT and e.b == 0:
            found.sent[e.room, e.slot, e.a] = when
        elif e.kind is EventKind.LANDED:
            found.landed[e.slot, e.room] = (when, e.a / 1e9)
        elif (e.kind is EventKind.STATE and e.a == KVPoll.FAILED) or (e.kind is EventKind.SLOT_FREE and e.room):
            found.ended[e.room] = when
        elif e.kind is EventKind.FAULT_FIRED:
            found.faults[e.room] = e.text
        elif e.kind is EventKind.FAILURE and e.text.startswith(WRONG_KV):
            found.wrong_kv[e.room] = WrongKV(e.room, when, not e.text.startswith(WRONG_ELSEWHERE))
    for stream in recording.streams:
        found.whole &= _tell_lists(found, stream, stream.changes(most).first, to_wall, owned)
    found.owners = {slot: rooms[1:] for slot, rooms in found.owners.items()}
    found.mismatches.sort(key=lambda mismatch: mismatch.when_s)
    return found


def _tell_lists(found: History, stream: Stream, first: int, to_wall: int, owned: object) -> bool:
    assert callable(owned)
    lists = [(run, stream.items(run)) for run in stream.runs[first:]]
    for run, items in lists:
        when = ((run.t_done or run.t_enter) + to_wall) / 1e9
        for item in items or ():
            found.rooms.add(item.room)
            owned(item.slot, item.room)
            if item.action not in (Action.KEPT, UNKNOWN):
                found.ended[item.room] = when
            if item.action in (Action.COMMITTED, Action.ABORTED) and item.found not in (None, 0, item.room):
                found.mismatches.append(Mismatch(item.slot, item.room, item.found or 0, item.action, when))
    return first == 0 and stream.first == 0 and all(items is not None for _, items in lists)


@settings(max_examples=60, deadline=None)
@given(RECORDINGS, st.integers(0, 500))
def test_history_is_what_the_lists_tell(drawn: Recorded, most: int) -> None:
    recording = parse(recorded(*drawn))
    with patch.object(module, "MAX_RUNS", most):
        found = history(recording)
    expected = told(recording, most)
    for name in ("whole", "rooms", "owners", "ended", "landed", "sent", "faults", "wrong_kv", "mismatches"):
        assert getattr(found, name) == getattr(expected, name), name


@settings(max_examples=40, deadline=None)
@given(SEEDS | LONG, st.sets(st.integers(0, 400), max_size=40))
def test_last_words_are_the_last_of_all_that_is_said(drawn: tuple[int, int, int], numbers: set[int]) -> None:
    recording = parse(driven(*drawn))
    rooms, now = {1 << 63 | number for number in numbers}, recording.start_mono_ns + 10**12
    said: dict[int, list[tuple[bool, int, str]]] = {room: [] for room in rooms}
    reasons = {e.room: e.text for e in recording.events() if e.kind is EventKind.FAILURE}
    for e in recording.events():
        if e.room in rooms and e.kind is EventKind.STATE:
            said[e.room].append((e.a in (KVPoll.FAILED, KVPoll.SUCCESS), e.mono_ns, poll_name(e.a)))
        elif e.room in rooms and e.kind is EventKind.ENQUEUE:
            said[e.room].append((False, e.mono_ns, f"entered {e.queue}"))
    words = {Action.COMMITTED: "Success", Action.FAILED: "Failed", Action.ABORTED: "aborted"}
    for stream in recording.streams:
        for row in range(len(stream)):
            batch = stream._batch(row)
            run = stream.run(row)
            for room, *_, action, _, _ in [] if batch is None else batch.tolist():
                if room in rooms and run.phase is Phase.APPLIED and action in words:
                    said[room].append((True, run.t_done, words[action]))
    expected = {
        room: (what, (now - ns) / 1e9, ended, reasons.get(room, ""))
        for room, all_said in said.items()
        if all_said
        for ended, ns, what in [max(all_said, key=lambda one: one[:2])]
    }
    found = last_words(recording, rooms, now)
    assert {room: (x.what, x.age_s, x.ended, x.reason) for room, x in found.items()} == expected


def test_the_recordings_drawn_have_all_that_is_compared() -> None:
    """So that the comparisons above are of something."""
    small, long, torn = (
        parse(recorded(*arguments))
        for arguments in ((1, 200, 0, []), (2, 1400, 0, []), (3, 600, 0, [9**9 + 7919 * n for n in range(40)]))
    )
    past = history(small)
    assert past.whole
    assert all((past.rooms, past.owners, past.ended, past.landed, past.sent, past.faults, past.mismatches))
    [stream] = long.streams
    assert stream.first > 0
    assert long.events()[0].seq > 1
    assert not stream.changes().known.all()
    assert 100 < len(stream.changes(300).known) < len(stream)
    assert torn.problems or not torn.streams[0].changes().known.all()
