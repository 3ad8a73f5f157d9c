"""Copy a rank's recording while it grows: new records go into a recording with larger rings.

The format allows this: a file may have any size, a record is at its number modulo the ring's capacity, and no checksum covers
the position. So copied records get new positions, and readers see a rank that had a larger file. Copied records are kept on
the disk: memory holds what is new since the last look.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pdctl.recording import format as f
from pdctl.recording.header import parse_header
from pdctl.recording.reader import live_runs
from pdctl.recording.rings import (
    EVENT,
    ROUND,
    ItemSpan,
    events,
    joined,
    possible_events,
    possible_rounds,
    rounds,
    select_records,
)
from pdctl.recording.source import OpenSource, Source, check_dense
from pdctl.recording.sums import right_sums
from pdctl.trace.manifest import Gap

MAX_GAPS = 64
"""Gaps told one by one; the last one stands for all that follow."""
_BLOCK = 64
_MAX_BLOCK = 4096
_PAGE = 4096
_ROUNDS_AT, _MOST_ROUNDS, _ITEMS_AT, _MOST_ITEMS, _EVENTS_AT, _MOST_EVENTS = f.layout(f.MAX_SIZE)


class Spill:
    """An unnamed file in TMPDIR for the records of all followed recordings. Raises OSError where none can be made."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # as long as it is read from
        self._shares = 0

    def share(self) -> Share:
        """Return the part of the file that is for one more recording. Raises OSError where the file can't be as long."""
        base = self._shares * f.MAX_SIZE
        os.ftruncate(self._file.fileno(), base + f.MAX_SIZE)
        self._shares += 1
        return Share(self._file, f.MAX_SIZE, base)


class Share(OpenSource):
    """The rings of one recording in a spill, as long as rings can be. Nearly all of it are holes."""

    def put(self, offset: int, data: bytes) -> None:
        """Write ``data`` at ``offset``. Raises OSError with the place where it can't be written."""
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._file.fileno(), view, self._base + offset)
                view, offset = view[written:], offset + written
        except OSError as error:
            where = tempfile.gettempdir()
            raise OSError(f"its records can't be kept in {where}: {error.strerror or error}") from None


@dataclass(frozen=True)
class _Place:
    """A ring in a share, or in the recording that is made: its offset, its capacity, and the size of a record."""

    offset: int
    capacity: int
    size: int

    def stretches(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield (record, records, offset) of the stretches that ``count`` records have here, ``first`` counted from 0."""
        at = first
        while at < first + count:
            place = at % self.capacity
            here = min(first + count - at, self.capacity - place)
            yield at - first, here, self.offset + place * self.size
            at += here

    def put(self, share: Share, first: int, data: bytes) -> None:
        """Write these records."""
        for begin, count, offset in self.stretches(first, len(data) // self.size):
            share.put(offset, data[begin * self.size : (begin + count) * self.size])

    def get(self, share: Share, first: int, count: int) -> bytes:
        """Return these records; those that were never written are zero."""
        return b"".join(share.read(offset, here * self.size) for _, here, offset in self.stretches(first, count))


_ITEMS = _Place(_ITEMS_AT, _MOST_ITEMS, f.ITEM_SIZE)


@dataclass
class _Ring:
    """One ring of numbered records. next: the lowest number not copied yet. ahead: copied numbers above next.

    kept: where copied records are in ``share``. first, last: the lowest and the highest number copied, 0 for none.
    """

    offset: int
    capacity: int
    dtype: np.dtype[Any]
    body: int
    share: Share
    kept: _Place
    next: int = 1
    ahead: set[int] = field(default_factory=set)
    first: int = 0
    last: int = 0

    def look(self, source: Source) -> NDArray[Any]:
        """Read, keep and return the new records, by number."""
        new = self._forward(source)
        if new is None:
            new = self._whole(source)
        if not len(new):
            return new
        numbers = new["seq"].astype(np.int64)
        first, last = min(self.first or f.MAX_COUNT, int(numbers[0])), max(self.last, int(numbers[-1]))
        if last - first >= self.kept.capacity - 1:
            raise ValueError("its records skip more than a recording can hold")
        for part in np.split(new.view(f"V{new.itemsize}"), np.flatnonzero(np.diff(numbers) != 1) + 1):
            self.kept.put(self.share, int(part.view(self.dtype)["seq"][0]) - 1, part.tobytes())
        self.first, self.last = first, last
        self.ahead.update(numbers.tolist())
        while self.next in self.ahead:
            self.ahead.remove(self.next)
            self.next += 1
        return new

    def _forward(self, source: Source) -> NDArray[Any] | None:
        """Return the sound records from ``next`` on, None if the rank has overwritten some of them."""
        found, at, block = [], self.next, _BLOCK
        end = self.next + self.capacity
        while at < end:
            place = (at - 1) % self.capacity
            count = min(block, self.capacity - place, end - at)
            table = self._read(source, place, count)
            numbers = table["seq"].astype(np.int64)
            expected = np.arange(at, at + len(table), dtype=np.int64)
            if np.any((numbers > expected) & ((numbers - expected) % self.capacity == 0)):
                return None
            found.append(self._sound(table, numbers == expected))
            if len(table) < count or numbers[-1] != expected[-1]:
                break
            at, block = at + count, min(2 * block, _MAX_BLOCK)
        return joined(found, self.dtype)

    def _whole(self, source: Source) -> NDArray[Any]:
        """Return the new sound records of the whole ring, by number. Missing numbers are lost."""
        table = self.all_of(source)
        numbers = table["seq"].astype(np.int64)
        known = np.isin(numbers, np.fromiter(self.ahead, np.int64, len(self.ahead)))
        found = select_records(table, (numbers >= self.next) & ~known)
        if len(found):
            oldest = int(found["seq"][-1]) - self.capacity + 1
            self.next = max(self.next, oldest)
            self.ahead = {number for number in self.ahead if number >= self.next}
        return found

    def all_of(self, source: Source) -> NDArray[Any]:
        """Return the sound records of the whole ring, by number."""
        if self.dtype is EVENT:
            return events(source, self.offset, self.capacity)
        return rounds(source, self.offset, self.capacity).table

    def _read(self, source: Source, place: int, count: int) -> NDArray[Any]:
        size = self.dtype.itemsize
        data = source.read(self.offset + place * size, count * size)
        return np.frombuffer(data, self.dtype, len(data) // size)

    def _sound(self, table: NDArray[Any], wanted: NDArray[np.bool_]) -> NDArray[Any]:
        new = [at for at in np.flatnonzero(wanted).tolist() if int(table["seq"][at]) not in self.ahead]
        places = np.array(new, np.int64)
        found = select_records(table, places)
        right = right_sums(table.tobytes(), places, found["crc"], self.dtype.itemsize, self.body)
        possible = possible_events if self.dtype is EVENT else possible_rounds
        return select_records(found, right & possible(found))

    def copied(self) -> Iterator[NDArray[Any]]:
        """Yield all copied records in pieces, by number."""
        for number in range(self.first, self.last + 1 if self.first else 0, _MAX_BLOCK):
            data = self.kept.get(self.share, number - 1, min(_MAX_BLOCK, self.last + 1 - number))
            table = np.frombuffer(data, self.dtype)
            yield table[table["seq"] > 0]

    @property
    def span(self) -> int:
        """The capacity that gives every copied record its own position."""
        return self.last - self.first + 1 if self.first else 0


class PutTogether(Source):
    """A recording that is put together as it is read. Bytes that are in no part of it are zero.

    top: its first bytes. parts: (offset, length, offset in ``share``) of what is copied from there.
    """

    def __init__(self, top: bytes, size: int, share: Share, parts: list[tuple[int, int, int]]) -> None:
        self.size = size
        self._top, self._share, self._parts = top, share, parts

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at ``offset``."""
        end = min(offset + length, self.size)
        out = bytearray(max(0, end - offset))
        top = self._top[offset:end]
        out[: len(top)] = top
        for begin, size, at in self._parts:
            start, stop = max(offset, begin), min(end, begin + size)
            if start < stop:
                out[start - offset : stop - offset] = self._share.read(at + start - begin, stop - start)
        return bytes(out)

    def pieces(self, offset: int, length: int) -> list[tuple[int, int]]:
        """Return the pieces that something was copied to."""
        every = sorted([(0, len(self._top)), *((begin, size) for begin, size, _ in self._parts)])
        cut = [(max(offset, begin), min(offset + length, begin + size)) for begin, size in every]
        return [(start, stop - start) for start, stop in cut if start < stop]


class Carried:
    """The records of one recording copied so far. Raises ValueError if ``source`` is no recording, and OSError from reading.

    spill: where copied records are kept; a file of its own by default.
    """

    def __init__(self, source: Source, spill: Spill | None = None) -> None:
        top = source.read(0, f.RINGS_OFFSET)
        header = parse_header(top[: f.HEADER_SIZE])
        if source.size < header.size:
            raise ValueError(f"cut off: {source.size} of {header.size} bytes")
        check_dense(source)
        self._size = header.size
        rounds_at, rounds, self._items_at, self._items, events_at, events = header.rings
        self._source = source
        self._top = top
        self._share = share = (spill or Spill()).share()
        kept = _Place(_ROUNDS_AT, _MOST_ROUNDS, f.ROUND_SIZE)
        self._rounds = _Ring(rounds_at, rounds, ROUND, f.ROUND_BODY_SIZE, share, kept)
        kept = _Place(_EVENTS_AT, _MOST_EVENTS, f.EVENT_SIZE)
        self._events = _Ring(events_at, events, EVENT, f.EVENT.size, share, kept)
        self._first_item = self._end_item = -1
        self._live: dict[int, int] = {}
        self._kept_bytes = 0
        self._had = 0
        self._lost = 0
        self._lost_first: tuple[int, int] = (f.MAX_COUNT, 0)
        self._lost_last: tuple[int, int] = (0, 0)

    def look(self) -> float:
        """Copy new records. Return the largest share of a ring that was new. Raises OSError if the recording can't be read."""
        top = self._source.read(0, f.RINGS_OFFSET)
        if len(top) < f.RINGS_OFFSET:
            raise OSError("its file was cut off")
        parse_header(top[: f.HEADER_SIZE])
        live = live_runs(top[: f.HEADER_SIZE], top[f.LIVE_OFFSET :])
        self._top = top
        closed = self._rounds.look(self._source)
        items = self._look_at_items(closed, live)
        events = self._events.look(self._source)
        self._had = self._had or self._rounds.last or 1
        shares = len(closed) / self._rounds.capacity, items / self._items, len(events) / self._events.capacity
        return max(shares)

    def _look_at_items(self, closed: NDArray[Any], live: list[NDArray[Any]]) -> int:
        """Keep the available items of these runs. Return the number of items of ended runs."""
        before, self._live = self._live, {}
        every = np.concatenate([closed, *live])
        runs = every[every["items_count"] > 0]
        if not len(runs):
            return 0
        span = ItemSpan.read(self._source, self._items_at, self._items, runs)
        ended = np.count_nonzero(closed["items_count"])
        fields = (runs[name].tolist() for name in ("seq", "t_enter", "items_start", "items_count", "items_crc"))
        for number, (seq, t_enter, start, count, crc) in enumerate(zip(*fields, strict=True)):
            found = span.bytes_of(start, count)
            if len(found) != count * f.ITEM_SIZE or crc32(found) != crc:
                # Overwritten since it was seen while the run went on.
                found = _ITEMS.get(self._share, start, count) if before.get(start) == count else b""
            if len(found) == count * f.ITEM_SIZE and crc32(found) == crc:
                self._first_item = start if self._first_item < 0 else min(self._first_item, start)
                self._end_item = max(self._end_item, start + count)
                self._check_items(len(found) if number < ended else 0)
                _ITEMS.put(self._share, start, found)
                if number >= ended:
                    self._live[start] = count
            elif number < ended and 0 < self._had < seq:
                self._lost += 1
                self._lost_first = min(self._lost_first, (seq, t_enter))
                self._lost_last = max(self._lost_last, (seq, t_enter))
        return int(closed["items_count"].sum())

    def _check_items(self, ended: int) -> None:
        """Raise ValueError where ended runs share items, or skip more of them than a recording can hold."""
        span = (self._end_item - self._first_item) * f.ITEM_SIZE
        self._kept_bytes += ended
        if span > f.MAX_SIZE // 4 or self._kept_bytes > span:
            raise ValueError("the requests of its rounds can't be where it says")

    @property
    def size(self) -> int:
        """Bytes of the recording that :meth:`build` makes now, at least those of the rank's own."""
        span = self._end_item - self._first_item
        need = 4 * max(self._rounds.span * f.ROUND_SIZE, self._events.span * f.EVENT_SIZE, span * f.ITEM_SIZE // 2)
        size = max(self._size, f.RINGS_OFFSET + need + _PAGE)
        if size > self._size:
            size = -(-size // _PAGE) * _PAGE
        _, rounds, _, items, _, events = f.layout(size)
        assert rounds >= self._rounds.span
        assert events >= self._events.span
        assert items >= span
        return size

    def build(self) -> Source:
        """Return the recording: header and live cells as last read, and all records copied so far."""
        size = self.size
        top = bytearray(self._top)
        fixed = list(f.FIXED.unpack_from(top))
        fixed[3], fixed[9:] = size, f.layout(size)
        f.FIXED.pack_into(top, 0, *fixed)
        rounds_at, rounds, items_at, items, events_at, events = f.layout(size)
        parts: list[tuple[int, int, int]] = []
        for ring, offset, capacity in ((self._rounds, rounds_at, rounds), (self._events, events_at, events)):
            made = _Place(offset, capacity, ring.dtype.itemsize)
            parts += _moved(ring.kept, made, ring.first - 1, ring.span)
        parts += _moved(
            _ITEMS, _Place(items_at, items, f.ITEM_SIZE), self._first_item, self._end_item - self._first_item
        )
        return PutTogether(bytes(top), size, self._share, parts)

    def gaps(self) -> tuple[Gap, ...]:
        """Return the gaps: records overwritten between two reads. Records lost before the first read don't count."""
        found = [*_holes("rounds", self._rounds, "t_enter"), *_holes("events", self._events, "mono_ns")]
        if self._lost:
            found.append(Gap("items", self._lost, self._lost_first[1], self._lost_last[1]))
        return tuple(found)


def _moved(kept: _Place, made: _Place, first: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Yield (offset, bytes, offset where it is kept) of records that are kept in one ring and wanted in another."""
    for begin, here, offset in made.stretches(first, count):
        for skip, part, at in kept.stretches(first + begin, here):
            yield offset + skip * made.size, part * made.size, at


def _holes(name: str, ring: _Ring, time: str) -> list[Gap]:
    found: list[Gap] = []
    last, last_time = 0, 0
    for table in ring.copied():
        if not len(table):
            continue
        numbers, times = table["seq"].astype(np.int64), table[time]
        numbers, times = np.r_[last or numbers[0], numbers], np.r_[last_time, times]
        for at in np.flatnonzero(np.diff(numbers) > 1).tolist():
            gap = Gap(name, int(numbers[at + 1] - numbers[at] - 1), int(times[at]), int(times[at + 1]))
            if len(found) == MAX_GAPS:
                rest = found.pop()
                gap = Gap(name, rest.lost + gap.lost, rest.after_ns, gap.before_ns)
            found.append(gap)
        last, last_time = int(numbers[-1]), int(times[-1])
    return found
