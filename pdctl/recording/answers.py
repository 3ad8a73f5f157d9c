"""Answers for excerpts (:mod:`pdctl.recording.excerpt`): what is wanted of a recording, read from its file in a rank's gateway.

Each answer is of its own moment. What it costs grows with the file and with what is asked for, and not faster.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from pdctl.protocol.model import EventKind
from pdctl.recording import format as f
from pdctl.recording.digest import Digests, whole
from pdctl.recording.excerpt import GATED, MAX_BODY, MAX_ROWS, Body, Part, Wanted
from pdctl.recording.header import parse_header
from pdctl.recording.reader import Recording
from pdctl.recording.rings import among, distinct, events, later_rounds, select_records
from pdctl.recording.source import FileSource
from pdctl.recording.streams import Stream, foreign, gated
from pdctl.recording.sums import right_sums
from pdctl.recording.tail import Tail
from pdctl.recording.witness import oldest

MAX_EVENTS, MAX_ITEM_BYTES = 32768, 4 << 20
MAX_RUNS = 49152
"""Runs of an answer that has all of a stream."""
TOO_MUCH = "more is asked for than an excerpt may have"


class Answerer:
    """Answers for one recording whose file this process can open. Raises OSError where it can't."""

    def __init__(self, path: Path, pid: int, proc_start: int) -> None:
        self._tail = _Kept(path, pid, proc_start)
        self._known: Known | None = None

    def answer(self, wanted: Wanted) -> Part:
        """Return what is wanted. Raises OSError, BadRecording as :meth:`Tail.read` does.

        A first question is answered from the recording as it is now. Later ones, without ``newest``, are answered from the same
        runs.
        """
        if self._known is None or (wanted.newest and self._tail.grew()):
            recording = self._tail.read()
            self._known = Known(recording, self._known, self._tail.overwritten(recording))
        return answer(self._known, wanted, self._tail.head)


class _Kept(Tail):
    """A tail of all runs in the file, and of some that are overwritten: a client may still ask for them."""

    def __init__(self, path: Path, pid: int, proc_start: int) -> None:
        super().__init__(path, pid, proc_start)
        self._source = self._heard = _Heard(path)

    @property
    def head(self) -> bytes:
        """The bytes up to the rings that the last recording was read from."""
        return self._heard.head

    def grew(self) -> bool:
        """Return whether a recording that is read now would be another one, but for its events."""
        last, head = self._heard.head, self._heard.read(0, f.HEADER_SIZE)
        head += self._heard.read(f.LIVE_OFFSET, f.RINGS_OFFSET - f.LIVE_OFFSET)
        if head != last or self._runs is None:
            return True
        offset, capacity = parse_header(head).rings[:2]
        more = later_rounds(self._heard, offset, capacity, int(self._runs["seq"][-1]), 1) if len(self._runs) else None
        return more is None or bool(len(more.table) or more.torn or more.untrue)

    def overwritten(self, recording: Recording) -> int:
        """Return the number of the newest run that was overwritten when ``recording`` was read."""
        newest = int(self._runs["seq"][-1]) if self._runs is not None and len(self._runs) else 0
        return max(0, newest - recording.rings[1])

    def _most(self, capacity: int) -> int:
        return capacity + capacity // 8


class _Heard(FileSource):
    """A file of which the bytes before the rings are remembered as they were read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.head = b""

    def read(self, offset: int, length: int) -> bytes:
        data = super().read(offset, length)
        if offset == 0:
            self.head = data
        elif offset == f.LIVE_OFFSET:
            self.head += data
        return data


class Known:
    """A recording, and what several answers of it need.

    before: the same of an earlier moment. overwritten: the number of the newest run that is not in the file any more.
    """

    def __init__(self, recording: Recording, before: Known | None = None, overwritten: int = 0) -> None:
        self.recording = recording
        self.streams = {stream.number: stream for stream in recording.streams}
        gaps = not all(whole(stream.table) for stream in recording.streams)
        self.odd = "; ".join(recording.problems)[:500] or ("rounds are missing in it" if gaps else "")
        self._digests: dict[int, Digests] = dict(before._digests) if before is not None else {}
        self._full: dict[int, NDArray[np.int64]] = {}
        self._overwritten = overwritten

    def oldest(self, stream: Stream) -> int:
        """Return the row of the oldest run of a stream that is in the file."""
        return int(np.count_nonzero(stream.table["seq"][:-1] <= self._overwritten))

    def digests(self, number: int, cuts: Sequence[int]) -> bytes:
        """Return the digests that a part has of a stream."""
        stream, old = self.streams.get(number), self._digests.get(number)
        if stream is None or len(cuts) < 3:
            return b""
        if old is None or old.first > min(cuts) or old.last < max(cuts):  # of the last round the outcome may be new
            old = self._digests[number] = Digests(stream.table)
        return b"".join(old.of(cuts[0], cuts[1:]) or ())

    def full(self, number: int) -> NDArray[np.int64]:
        """Return the rows of the runs of a stream that have their whole list themselves."""
        if number not in self._full:
            self._full[number] = np.flatnonzero(self.streams[number].table["flags"] >> 4 & f.FLAG_FULL)
        return self._full[number]


def answer(known: Known, wanted: Wanted, head: bytes = b"") -> Part:
    """Return what is wanted of a recording. head: its bytes up to the rings."""
    if known.odd:
        return Part(known.odd)
    try:
        body = _body(known, wanted, head)
    except _OddError as error:
        return Part(str(error))
    digests = {number: known.digests(number, cuts) for number, cuts in wanted.cuts.items()}
    data = msgspec.msgpack.encode(body) if body is not None else b""
    if len(data) > MAX_BODY:
        return Part(TOO_MUCH)
    return Part(digests=digests, packed=zlib.compress(data, 1) if data else b"")


class _OddError(Exception):
    """Says why the whole recording has to be read instead."""


class _TooMuchError(_OddError):
    def __init__(self) -> None:
        super().__init__(TOO_MUCH)


def _body(known: Known, wanted: Wanted, head: bytes) -> Body | None:
    recording, streams = known.recording, known.streams
    rows, listed = {}, {}
    tails = {}
    for number, stream in streams.items():
        size = len(stream)
        asked = [stream.index(n) for n in wanted.rounds.get(number, ())]
        lists = [stream.index(n) for n in wanted.lists.get(number, ())]
        if wanted.newest:
            at_gate = wanted.held[0] and stream.queue == GATED
            many = max(wanted.newest, _held(stream, *wanted.held) if at_gate else 0)
            tail = max(0, size - many)
            tails[number] = int(stream.table["ordinal"][tail])
            asked += [known.oldest(stream), size - 1]
            lists += range(tail, size) if many > 1 else ()
        if number in wanted.runs:
            asked += range(known.oldest(stream), size)
        if wanted.foreign and stream.queue == GATED:
            changes = stream.changes(wanted.foreign)
            lists += distinct(changes.row[foreign(changes.items)]).tolist()
        chains = _chains(known.full(number), [n for n in lists if n >= 0])
        listed[number] = np.array(chains, np.int64)
        if wanted.seen:
            listed[number] = distinct(np.concatenate([listed[number], stream.sighted(wanted.rooms)]))
        rows[number] = distinct(np.concatenate([listed[number], np.array([n for n in asked if n >= 0], np.int64)]))
    if sum(map(len, rows.values())) > (MAX_RUNS if wanted.runs else MAX_ROWS):
        raise _TooMuchError
    found = [select_records(stream.table, rows[number]) for number, stream in streams.items() if len(rows[number])]
    pieces: list[tuple[int, bytes]] = []
    if wanted.rooms or wanted.kinds or wanted.oldest or wanted.rids or wanted.slots:
        pieces += _events(recording, wanted)
    elif wanted.newest:
        pieces += _newest_event(recording) or _events(recording, wanted)
    left = MAX_ITEM_BYTES
    for number, stream in streams.items():
        for at, data in _items(recording, select_records(stream.table, listed[number])):
            left -= len(data)
            if left < 0:
                raise _TooMuchError
            pieces.append((at, data))
    if not found and not pieces and not wanted.newest:
        return None
    sealed = (_sealed(table).tobytes() for table in found)
    return Body(recording.source.size, head if wanted.newest else b"", b"".join(sealed), pieces, tails)


def _sealed(table: NDArray[Any]) -> NDArray[Any]:
    """Return the records as they are in the file: the run in the live cells is put together anew there."""
    right = right_sums(table.tobytes(), np.arange(len(table)), table["crc"], f.ROUND_SIZE, f.ROUND_BODY_SIZE)
    return select_records(table, right)


def _held(stream: Stream, least: int, most: int) -> int:
    """Return how many of the newest runs tell of the requests that the gate held in the newest ``least`` of them."""
    begin = max(0, len(stream) - least)
    changes = stream.changes(least)
    if changes.known.all() and not gated(changes.items).any():
        return 0
    since, now = _gated(stream, begin), _gated(stream, len(stream) - 1)
    return least + most if begin and since & now else least


def _gated(stream: Stream, index: int) -> set[int]:
    rows = stream.rows(index)
    return set() if rows is None else set(rows["room"][gated(rows)].tolist())


def _chains(full: NDArray[np.int64], indices: Collection[int]) -> list[int]:
    """Return the rows of these runs and of those that their lists build on. full: rows of runs with their whole list."""
    found: list[int] = []
    for index in sorted(set(indices)):
        at = int(np.searchsorted(full, index, "right")) - 1
        after = found[-1] + 1 if found else 0
        begin = max(int(full[at]), after) if at >= 0 else index  # else its list is lost
        if len(found) + index + 1 - begin > MAX_ROWS:
            raise _TooMuchError
        found += range(begin, index + 1)
    return found


def _items(recording: Recording, runs: NDArray[Any]) -> Iterable[tuple[int, bytes]]:
    _, _, offset, capacity, _, _ = recording.rings
    some = runs[(runs["items_count"] > 0) & (runs["items_count"] <= capacity)]
    if not len(some):
        return
    starts = some["items_start"].astype(np.int64)
    ends = starts + some["items_count"].astype(np.int64)
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    firsts, lasts = starts[np.r_[0, breaks]], ends[np.r_[breaks - 1, len(ends) - 1]]
    for first, end in zip(firsts.tolist(), lasts.tolist(), strict=True):
        begin = max(first, end - capacity)
        while begin < end:
            place = begin % capacity
            count = min(end - begin, capacity - place)
            at, length = offset + place * f.ITEM_SIZE, count * f.ITEM_SIZE
            yield at, recording.source.read(at, length)
            begin += count


def _newest_event(recording: Recording) -> list[tuple[int, bytes]]:
    """Return the newest event, found by halves, since their numbers rise up to it; nothing where it is not sound.

    A thread that is about to write one leaves a hole: what follows it tells that it is not the end.
    """
    _, _, _, _, offset, capacity = recording.rings

    def record(place: int) -> bytes:
        return recording.source.read(offset + place * f.EVENT_SIZE, f.EVENT_SIZE)

    def number(data: bytes) -> int:
        return int.from_bytes(data[:8], "little")

    begin = number(record(0))
    low, high = 0, capacity  # the newest is from low on, before high
    while high - low > 1:
        middle = (low + high) // 2
        there = next((p for p in (middle, middle + 1) if p < high and number(record(p)) == begin + p), -1)
        low, high = (low, middle) if there < 0 else (there, high)
    data = record(low)
    sound = len(data) == f.EVENT_SIZE and begin > 0 and (begin - 1) % capacity == 0
    if not sound or crc32(data[: f.EVENT.size]) != int.from_bytes(data[f.EVENT_CRC_OFFSET :], "little"):
        return []
    return [(offset + low * f.EVENT_SIZE, data)]


def _events(recording: Recording, wanted: Wanted) -> list[tuple[int, bytes]]:
    _, _, _, _, offset, capacity = recording.rings
    rooms = set(wanted.rooms)

    def kept(table: NDArray[Any]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = table["seq"] == table["seq"].max(initial=0)  # one of these is the newest of all
        return found | _meant(table, rooms, wanted) | oldest(table)

    every = wanted.sound or bool(wanted.rids)
    table = events(recording.source, offset, capacity, None if every else kept)
    if wanted.sound and len(table) and int(table["seq"][-1]) - int(table["seq"][0]) + 1 != len(table):
        raise _OddError("events are missing in it")
    rooms |= _called(table, wanted.rids)
    named = _meant(table, rooms, wanted) | (oldest(table) if wanted.oldest else False)
    named[-1:] |= wanted.newest > 0
    table = select_records(table, named)
    if len(table) > MAX_EVENTS:
        raise _TooMuchError
    if not len(table):
        return []
    data = table.view(f"V{f.EVENT_SIZE}").tobytes()
    places = (table["seq"].astype(np.int64) - 1) % capacity
    starts = np.flatnonzero(np.diff(places, prepend=-2) != 1)  # of those that follow one another in the file
    ends = np.r_[starts[1:], len(places)]
    return [
        (offset + place * f.EVENT_SIZE, data[start * f.EVENT_SIZE : end * f.EVENT_SIZE])
        for place, start, end in zip(places[starts].tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]


_SLOTTED = (int(EventKind.SLOT_ALLOC), int(EventKind.SLOT_FREE))


def _meant(table: NDArray[Any], rooms: Collection[int], wanted: Wanted) -> NDArray[np.bool_]:
    """Return which events are about these rooms, of the kinds that are wanted, or about its slots."""
    kind = table["kind"]
    found = np.isin(kind, np.array(wanted.kinds, np.uint8)) | among(table["room"], rooms)
    if rooms:
        found |= (kind == int(EventKind.LANDED)) & among(table["b"].astype(np.uint64), rooms)
    if wanted.slots:
        found |= np.isin(kind, _SLOTTED) & np.isin(table["slot"], wanted.slots)
    return found


def _called(table: NDArray[Any], rids: Collection[str]) -> set[int]:
    """Return the rooms that entered a queue under one of these ids."""
    entered = np.flatnonzero(table["kind"] == int(EventKind.ENQUEUE)) if rids else np.zeros(0, np.int64)
    names = zip(table["room"][entered].tolist(), table["text"][entered].tolist(), strict=True)
    return {room for room, text in names if room and text and text.decode("utf-8", "replace") in rids}
