"""Digests prove rounds equal however they are split into runs, and an excerpt reads what a whole recording does."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from zlib import crc32

import msgspec
import numpy as np
import pytest

from pdctl.probes.metadata.history import MAX_RUNS, history
from pdctl.probes.stuck.collect import last_words
from pdctl.protocol.model import EventKind
from pdctl.recording import answers, streams
from pdctl.recording import format as f
from pdctl.recording.answers import Answerer, Known, answer
from pdctl.recording.digest import Digests
from pdctl.recording.excerpt import Body, Excerpt, Part, Wanted, digests_of
from pdctl.recording.reader import BadRecording, read
from pdctl.recording.requests import last_sign_ns
from pdctl.recording.source import Source
from pdctl.recording.witness import witness
from tests.support import crafted
from tests.unit.agent.test_tap_recording import Engine, Request


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path / "x.pdrec")


def turns(engine: Engine, many: int, draw: random.Random) -> None:
    for _ in range(many):
        engine.queue = [*engine.queue[-3:], Request(draw.randrange(1, 1 << 60), 1)]
        polls = [draw.choice((1, 3, 3, 4)) for _ in engine.queue]
        for _ in range(draw.choice((1, 1, 5))):
            engine.turn(polls, polls, {request.room for request in engine.queue})


def split(table: np.ndarray, draw: random.Random) -> np.ndarray:
    """The same rounds in other runs."""
    rows = []
    for one in table:
        row = one
        repeat = int(row["repeat"])
        at = draw.randrange(1, repeat) if repeat > 1 else 0
        if at:
            first = row.copy()
            first["repeat"], first["flags"] = at, (int(row["flags"]) & 0xF0) | 3
            rows.append(first)
            row = row.copy()
            row["ordinal"], row["visit"], row["repeat"] = row["ordinal"] + at, row["visit"] + at, repeat - at
        rows.append(row)
    return np.array(rows, table.dtype)


@pytest.mark.parametrize("seed", range(3))
def test_a_digest_is_of_rounds_and_not_of_runs(engine: Engine, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    turns(engine, 300, draw)
    [stream] = read(tmp_path / "x.pdrec").streams
    mine, other = Digests(stream.table), Digests(split(stream.table, draw))
    for _ in range(50):
        cuts = sorted(draw.sample(range(stream.first, stream.last + 2), 7))
        assert mine.of(cuts[0], cuts[1:]) == other.of(cuts[0], cuts[1:]) is not None


@pytest.mark.parametrize("field", ["hash", "n", "after_hash", "visit"])
def test_whatever_differs_in_one_round_shows_in_its_ranges_only(engine: Engine, tmp_path: Path, field: str) -> None:
    draw = random.Random(5)
    turns(engine, 200, draw)
    [stream] = read(tmp_path / "x.pdrec").streams
    for at in (1, 77, len(stream.table) - 2):
        table = stream.table.copy()
        odd = table[at:] if field == "visit" else table[at : at + 1]
        odd[field] += 1
        where = int(table["ordinal"][at])
        cuts = [0, where, where + 1, stream.last + 1]
        mine, other = Digests(stream.table).of(0, cuts), Digests(table).of(0, cuts)
        assert mine is not None
        assert other is not None
        same = [a == b for a, b in zip(mine, other, strict=True)]
        assert same[:2] == [True, False]
        assert same[2] is (field != "visit" and int(table["repeat"][at]) == 1)


def test_no_digest_of_rounds_that_are_not_there(engine: Engine, tmp_path: Path) -> None:
    turns(engine, 20, random.Random(1))
    [stream] = read(tmp_path / "x.pdrec").streams
    digests = Digests(stream.table)
    for cuts in ([0], [], [0, stream.last + 2], [5, 5], [9, 3]):
        assert digests.of(0, cuts) is None
    assert digests.of(stream.last + 5, [0, 1]) is None


def test_an_excerpt_has_the_newest_list_and_what_was_asked_for(engine: Engine, tmp_path: Path) -> None:
    draw = random.Random(2)
    turns(engine, 300, draw)
    path = tmp_path / "x.pdrec"
    whole = read(path)
    [all_runs] = whole.streams
    asked = Answerer(path, whole.pid, whole.proc_start)
    first = asked.answer(Wanted(newest=3))
    assert len(first.packed) < 4096
    excerpt = Excerpt(first, "x")
    [stream] = excerpt.recording.streams
    assert (stream.first, stream.last, stream.tail) == (all_runs.first, all_runs.last, len(stream) - 3)
    for run in stream.runs[-3:]:
        assert stream.items(run) == all_runs.items(run) is not None
    turns(engine, 100, draw)  # it goes on meanwhile
    at = stream.last - 60
    cuts = [stream.first, stream.first, at, stream.last]
    part = asked.answer(Wanted(lists={0: [at]}, cuts={0: cuts}))
    assert digests_of(part, 0, 2) == Digests(all_runs.table).of(stream.first, cuts[1:]) is not None
    excerpt.add(part)
    [more] = excerpt.recording.streams
    run = more.at(at)
    assert run == all_runs.at(at)
    assert run is not None
    assert more.items(run) == all_runs.items(run) is not None
    assert more.last == stream.last


def test_what_is_overwritten_between_two_questions_is_still_told(engine: Engine, tmp_path: Path) -> None:
    draw = random.Random(3)
    capacity = f.layout(f.MIN_SIZE)[1]
    turns(engine, capacity + 200, draw)
    path = tmp_path / "x.pdrec"
    asked = Answerer(path, read(path).pid, read(path).proc_start)
    excerpt = Excerpt(asked.answer(Wanted(newest=1)), "x")
    [stream] = excerpt.recording.streams
    turns(engine, 300, draw)
    assert read(path).streams[0].first > stream.first
    assert digests_of(asked.answer(Wanted(cuts={0: [stream.first, stream.first, stream.last]})), 0, 1) is not None
    assert Excerpt(asked.answer(Wanted(newest=1)), "x").recording.streams[0].first > stream.first


def test_a_torn_record_is_said_and_the_whole_has_to_be_read(engine: Engine, tmp_path: Path) -> None:
    turns(engine, 50, random.Random(4))
    data = bytearray((tmp_path / "x.pdrec").read_bytes())
    data[f.RINGS_OFFSET + 10 * f.ROUND_SIZE + 40] ^= 1
    (tmp_path / "y.pdrec").write_bytes(data)
    recording = read(tmp_path / "y.pdrec")
    part = answer(Known(recording), Wanted(newest=1))
    assert "torn" in part.whole
    assert not part.packed


def test_an_answer_that_is_no_part_of_a_recording_is_refused(engine: Engine, tmp_path: Path) -> None:
    turns(engine, 50, random.Random(4))
    recording = read(tmp_path / "x.pdrec")
    head = recording.source.read(0, f.RINGS_OFFSET)
    excerpt = Excerpt(answer(Known(recording), Wanted(newest=1), head), "x")
    for bad in (
        answer(Known(recording), Wanted(newest=1)),  # without its header
        answer(Known(recording), Wanted(rounds={0: [3]})),
        type(answer(Known(recording), Wanted()))(packed=b"garbage"),
    ):
        with pytest.raises(BadRecording):
            Excerpt(bad, "x")
    with pytest.raises(BadRecording):
        excerpt.add(type(answer(Known(recording), Wanted()))(packed=b"garbage"))


def test_an_excerpt_tells_of_rooms_and_of_how_far_back_what_the_whole_does(engine: Engine, tmp_path: Path) -> None:
    draw = random.Random(6)
    for number in range(3):
        turns(engine, 60, draw)
        for request in engine.queue:
            engine.writer.event(EventKind.ENQUEUE, queue=4, room=request.room, text=f"r{number}")
            engine.writer.event(EventKind.FAILURE, room=request.room, text="it failed")
    whole = read(tmp_path / "x.pdrec")
    [stream] = whole.streams
    rooms = [request.room for request in engine.queue] + [item.room for item in stream.items(stream.run(20)) or ()]
    wanted = Wanted(newest=1, rooms=rooms, seen=True, oldest=True)
    [short] = [Excerpt(answer(Known(whole), wanted, whole.source.read(0, f.RINGS_OFFSET)), "x").recording]
    assert last_words(short, rooms, 10**18) == last_words(whole, rooms, 10**18) != {}
    assert witness(short) == witness(whole)
    assert last_sign_ns(short) == last_sign_ns(whole)


def test_an_excerpt_tells_of_slots_that_held_another_room(engine: Engine, tmp_path: Path) -> None:
    draw = random.Random(7)
    for number in range(40):
        engine.view.slots[1] = 99 if number % 10 == 3 else 0
        turns(engine, 5, draw)
        engine.turn([4] * len(engine.queue), [4] * len(engine.queue), set())
    whole = read(tmp_path / "x.pdrec")
    wanted = Wanted(newest=1, foreign=MAX_RUNS, kinds=[int(EventKind.FAILURE)])
    short = Excerpt(answer(Known(whole), wanted, whole.source.read(0, f.RINGS_OFFSET)), "x").recording
    assert len(short.streams[0]) < len(whole.streams[0])
    assert history(short).mismatches == history(whole).mismatches != []


def test_events_that_lie_apart_are_read_together(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns(engine, 5, random.Random(13))
    for number in range(400):
        engine.writer.event(EventKind.FAILURE if number % 4 == 0 else EventKind.STATE, room=number, text="why")
    whole = read(tmp_path / "x.pdrec")
    wanted = Wanted(newest=1, kinds=[int(EventKind.FAILURE)])
    short = Excerpt(answer(Known(whole), wanted, whole.source.read(0, f.RINGS_OFFSET)), "x").recording
    reads: list[tuple[int, int]] = []
    monkeypatch.setattr(short, "source", Noted(short.source, reads))
    assert short.events_told([EventKind.FAILURE]) == whole.events_told([EventKind.FAILURE]) != []
    assert len(reads) == 1, "one after the other would be a hundred"


@pytest.mark.parametrize("hole", [2, 60, 89, 96, 99])
def test_an_event_that_a_thread_is_about_to_write_hides_none_after_it(
    engine: Engine, tmp_path: Path, hole: int
) -> None:
    for number in range(100):
        engine.writer.event(EventKind.STATE, room=number)
    data = bytearray((tmp_path / "x.pdrec").read_bytes())
    offset = read(tmp_path / "x.pdrec").rings[4]
    begin = offset + (hole - 1) * f.EVENT_SIZE
    data[begin : begin + f.EVENT_SIZE] = bytes(f.EVENT_SIZE)
    (tmp_path / "y.pdrec").write_bytes(data)
    [(at, _)] = answers._newest_event(read(tmp_path / "y.pdrec"))
    assert at == offset + 99 * f.EVENT_SIZE


class Noted(Source):
    """Another source; every read of it is noted in ``reads``."""

    def __init__(self, source: Source, reads: list[tuple[int, int]]) -> None:
        self.size, self.pieces = source.size, source.pieces  # type: ignore[method-assign]
        self._source, self._reads = source, reads

    def read(self, offset: int, length: int) -> bytes:
        self._reads.append((offset, length))
        return self._source.read(offset, length)


class _Counted:
    """``range``, with the numbers that were taken of all of them counted."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, *bounds: int) -> range:
        found = range(*bounds)
        self.steps += len(found)
        return found


def test_lists_that_build_on_one_another_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = _Counted()
    monkeypatch.setattr(answers, "range", counted, raising=False)
    full = np.array([0], np.int64)  # one whole list, and 16,000 runs that build on it
    every = range(answers.MAX_ROWS)
    assert answers._chains(full, every) == list(every)
    assert answers._chains(full, every[::-1]) == list(every)
    assert counted.steps == 2 * len(every)
    with pytest.raises(answers._TooMuchError):
        answers._chains(full, [1 << 40])
    assert counted.steps == 2 * len(every)


def test_a_list_needs_the_runs_from_its_whole_list_on() -> None:
    full = np.array([3, 7], np.int64)
    assert answers._chains(full, [9, 1, 5, 4, 9]) == [1, 3, 4, 5, 7, 8, 9]


def test_lists_that_begin_at_one_place_of_the_ring_are_both_kept(engine: Engine, tmp_path: Path) -> None:
    turns(engine, 20, random.Random(8))
    whole = read(tmp_path / "x.pdrec")
    head = whole.source.read(0, f.RINGS_OFFSET)
    at = whole.rings[2]
    data = whole.source.read(at, 96)
    for pieces in ([(at, data), (at, data[:32])], [(at, data[:32]), (at, data)]):
        excerpt = Excerpt(_part(Body(size=whole.source.size, head=head, pieces=pieces)), "x")
        assert excerpt.recording.source.read(at, 96) == data
        excerpt.add(_part(Body(pieces=[(at, data[:64]), (at + 96, b"x")])))
        assert excerpt.recording.source.read(at, 97) == data + b"x"


def _part(body: Body) -> Part:
    return Part(packed=zlib.compress(msgspec.msgpack.encode(body)))


def test_an_answer_names_no_more_streams_than_there_can_be(engine: Engine, tmp_path: Path) -> None:
    turns(engine, 5, random.Random(9))
    whole = read(tmp_path / "x.pdrec")
    head = whole.source.read(0, f.RINGS_OFFSET)
    for tails in (dict.fromkeys(range(10_000), 0), {0: 1 << 63}):
        with pytest.raises(BadRecording, match="can't be read"):
            Excerpt(_part(Body(size=whole.source.size, head=head, tails=tails)), "x")
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(Part(digests=dict.fromkeys(range(300), b""))), type=Part)


def test_a_list_of_holes_is_none(engine: Engine, tmp_path: Path) -> None:
    """Some hundred bytes of an answer name a list as long as the ring of the largest recording, of zeros."""
    turns(engine, 5, random.Random(10))
    whole = read(tmp_path / "x.pdrec")
    size = 1 << 26
    head = bytearray(whole.source.read(0, f.RINGS_OFFSET))
    crafted.set_size(head, size)
    count = f.layout(size)[3]
    row = whole.streams[0].table[:1].copy()
    row["flags"] = int(row["flags"][0]) & 15 | f.FLAG_FULL << 4
    row["n"] = row["items_count"] = count
    row["items_start"], row["items_crc"] = 0, crc32(bytes(count * f.ITEM_SIZE))
    row["crc"] = crc32(row.tobytes()[: f.ROUND_BODY_SIZE])
    head[f.LIVE_OFFSET :] = bytes(f.RINGS_OFFSET - f.LIVE_OFFSET)
    excerpt = Excerpt(_part(Body(size=size, head=bytes(head), rows=row.tobytes())), "x")
    [stream] = excerpt.recording.streams
    assert stream.run(0).items_count == count
    assert stream.rows(0) is None
    assert not stream.changes().known.any()  # as in all lists together


def test_runs_that_tell_of_a_room_are_found_without_making_each_of_their_requests(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns(engine, 100, random.Random(11))
    whole = read(tmp_path / "x.pdrec")
    [stream] = whole.streams
    rooms = [item.room for item in stream.items(stream.newest) or ()]
    rows = sorted({row for row, _ in stream.sightings(rooms)})
    assert len(rows) > 1
    assert stream.sighted(rooms).tolist() == rows
    monkeypatch.setattr(streams, "_item", lambda *_: pytest.fail("a request was made"))
    part = answer(Known(whole), Wanted(newest=1, rooms=rooms, seen=True), whole.source.read(0, f.RINGS_OFFSET))
    short = Excerpt(part, "x").recording.streams[0]
    assert {int(one) for one in stream.table["ordinal"][rows]} <= {int(one) for one in short.table["ordinal"]}
