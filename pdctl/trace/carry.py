"""Copy a rank's recording while it grows: new records go into a recording with larger rings.

The format allows this: a file may have any size, a record is at its number modulo the ring's capacity, and no checksum covers
the position. So copied records get new positions, and readers see a rank that had a larger file.
"""

from __future__ import annotations

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
    possible_events,
    possible_rounds,
    record_sums,
    rounds,
)
from pdctl.recording.source import Source, check_dense
from pdctl.trace.manifest import Gap

MAX_GAPS = 64
"""Gaps told one by one; the last one stands for all that follow."""
_BLOCK = 64
_MAX_BLOCK = 4096
_PAGE = 4096


@dataclass
class _Ring:
    """One ring of numbered records. next: the lowest number not copied yet. ahead: copied numbers above next."""

    offset: int
    capacity: int
    dtype: np.dtype[Any]
    body: int
    next: int = 1
    ahead: set[int] = field(default_factory=set)
    parts: list[NDArray[Any]] = field(default_factory=list)
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
        if int(numbers[-1]) - (self.first or int(numbers[0])) >= f.MAX_SIZE // f.ROUND_SIZE // 4:
            raise ValueError("its records skip more than a recording can hold")
        self.first = self.first or int(numbers[0])
        self.last = max(self.last, int(numbers[-1]))
        self.parts.append(new)
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
        return np.concatenate(found) if found else np.zeros(0, self.dtype)

    def _whole(self, source: Source) -> NDArray[Any]:
        """Return the new sound records of the whole ring, by number. Missing numbers are lost."""
        table = self.all_of(source)
        numbers = table["seq"].astype(np.int64)
        found = table[(numbers >= self.next) & ~np.isin(numbers, np.fromiter(self.ahead, np.int64, len(self.ahead)))]
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
        found = table[places]
        sums = record_sums(table.tobytes(), places, self.dtype.itemsize, self.body)
        possible = possible_events if self.dtype is EVENT else possible_rounds
        sound: NDArray[Any] = found[(found["crc"] == sums) & possible(found)]
        return sound

    def records(self) -> NDArray[Any]:
        """Return all copied records, by number."""
        table = np.concatenate(self.parts) if self.parts else np.zeros(0, self.dtype)
        ordered: NDArray[Any] = table[np.argsort(table["seq"], kind="stable")]
        return ordered

    @property
    def span(self) -> int:
        """The capacity that gives every copied record its own position."""
        return self.last - self.first + 1 if self.first else 0


class Carried:
    """The records of one recording copied so far. Raises ValueError if ``source`` is no recording, and OSError from reading."""

    def __init__(self, source: Source) -> None:
        top = source.read(0, f.RINGS_OFFSET)
        header = parse_header(top[: f.HEADER_SIZE])
        if source.size < header.size:
            raise ValueError(f"cut off: {source.size} of {header.size} bytes")
        check_dense(source)
        self._size = header.size
        rounds_at, rounds, self._items_at, self._items, events_at, events = header.rings
        self._source = source
        self._top = top
        self._rounds = _Ring(rounds_at, rounds, ROUND, f.ROUND_BODY_SIZE)
        self._events = _Ring(events_at, events, EVENT, f.EVENT.size)
        self._kept: dict[int, bytes] = {}
        self._live: dict[int, bytes] = {}
        self._first_item = self._end_item = -1
        self._kept_bytes = 0
        self._had = 0

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
        runs = [(int(r["items_start"]), int(r["items_count"]), int(r["items_crc"])) for r in closed if r["items_count"]]
        now = [(int(r["items_start"][0]), int(r["items_count"][0]), int(r["items_crc"][0])) for r in live]
        now = [run for run in now if run[1]]
        before, self._live = self._live, {}
        every = runs + now
        if not every:
            return 0
        named = np.zeros(len(every), ROUND)
        named["items_start"], named["items_count"] = [run[0] for run in every], [run[1] for run in every]
        span = ItemSpan.read(self._source, self._items_at, self._items, named)
        for kept, batch in ((self._kept, runs), (self._live, now)):
            for start, count, crc in batch:
                found = span.bytes_of(start, count)
                if len(found) != count * f.ITEM_SIZE or crc32(found) != crc:
                    found = before.get(start, b"")  # overwritten since it was seen while the run went on
                if len(found) == count * f.ITEM_SIZE and crc32(found) == crc:
                    self._first_item = start if self._first_item < 0 else min(self._first_item, start)
                    self._end_item = max(self._end_item, start + count)
                    self._check_items(kept is self._kept and start not in kept, len(found))
                    kept[start] = found
        return sum(count for _, count, _ in runs)

    def _check_items(self, new: bool, size: int) -> None:
        """Raise ValueError where runs share items, or skip more of them than a recording can hold."""
        span = (self._end_item - self._first_item) * f.ITEM_SIZE
        self._kept_bytes += size if new else 0
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

    def build(self) -> bytes:
        """Return the recording: header and live cells as last read, and all copied records."""
        size = self.size
        out = bytearray(size)
        out[: f.RINGS_OFFSET] = self._top
        fixed = list(f.FIXED.unpack_from(self._top))
        fixed[3], fixed[9:] = size, f.layout(size)
        f.FIXED.pack_into(out, 0, *fixed)
        rounds_at, rounds, items_at, items, events_at, events = f.layout(size)
        for ring, at, capacity in ((self._rounds, rounds_at, rounds), (self._events, events_at, events)):
            table = ring.records()
            places = (table["seq"].astype(np.int64) - 1) % capacity
            np.frombuffer(out, ring.dtype, capacity, at)[places] = table
            # A dtype with holes copies fields only; what is between them is zero in every sound record.
        ring_view = np.frombuffer(out, f"V{f.ITEM_SIZE}", items, items_at)
        for start, data in (*self._kept.items(), *self._live.items()):
            batch = np.frombuffer(data, f"V{f.ITEM_SIZE}")
            ring_view[(start + np.arange(len(batch))) % items] = batch
        return bytes(out)

    def gaps(self) -> tuple[Gap, ...]:
        """Return the gaps: records overwritten between two reads. Records lost before the first read don't count."""
        rounds, events = self._rounds.records(), self._events.records()
        found = [
            *_holes("rounds", rounds["seq"], rounds["t_enter"]),
            *_holes("events", events["seq"], events["mono_ns"]),
        ]
        later = rounds[(rounds["seq"] > self._had) & (rounds["items_count"] > 0)]
        lost = [row for row in later if int(row["items_start"]) not in self._kept]
        if lost:
            found.append(Gap("items", len(lost), int(lost[0]["t_enter"]), int(lost[-1]["t_enter"])))
        return tuple(found)


def _holes(ring: str, numbers: NDArray[Any], times: NDArray[Any]) -> list[Gap]:
    seq = numbers.astype(np.int64)
    at = np.flatnonzero(np.diff(seq) > 1)
    found = [Gap(ring, int(seq[n + 1] - seq[n] - 1), int(times[n]), int(times[n + 1])) for n in at.tolist()]
    if len(found) > MAX_GAPS:
        rest = found[MAX_GAPS - 1 :]
        found[MAX_GAPS - 1 :] = [Gap(ring, sum(gap.lost for gap in rest), rest[0].after_ns, rest[-1].before_ns)]
    return found
