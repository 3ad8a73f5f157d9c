"""The rings of a recording as numpy tables of the records that can be trusted.

All is done for many records together, their checksums too (:mod:`pdctl.recording.sums`), since a full ring has tens of
thousands and every command that reads recordings reads one for each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pdctl.protocol.model import QUEUES, UNKNOWN, Phase
from pdctl.recording import format as f
from pdctl.recording.source import Source
from pdctl.recording.sums import right_sums

ITEM = np.dtype(f.ITEM_DTYPE)
ROUND = np.dtype(f.ROUND_DTYPE)
EVENT = np.dtype(
    {
        "names": ["seq", "mono_ns", "kind", "queue", "slot", "room", "a", "b", "text", "crc"],
        "formats": ["<u8", "<i8", "u1", "u1", "<i4", "<u8", "<i8", "<i8", "S72", "<u4"],
        "offsets": [0, 8, 16, 17, 20, 24, 32, 40, 48, f.EVENT_CRC_OFFSET],
        "itemsize": f.EVENT_SIZE,
    }
)
"""An event record; ``queue`` and ``kind`` are codes, ``text`` is UTF-8 that may be cut in the middle of a character."""


def select_records(table: NDArray[Any], which: NDArray[Any]) -> NDArray[Any]:
    """Return ``table[which]`` of contiguous records: copied as bytes, at once, not field by field."""
    found: NDArray[Any] = table.view(f"V{table.dtype.itemsize}")[which].view(table.dtype)
    return found


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values in ascending order, each once.

    :func:`numpy.unique` does the same, and from numpy 2.3 on loads ``numpy.ma`` for it: 13 ms of CPU.
    """
    ordered: NDArray[Any] = np.sort(values)
    new = np.ones(len(ordered), np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    return ordered[new]


@dataclass(frozen=True, slots=True)
class Ring:
    """The sound records of a ring by number, the number of torn records, and the number with impossible values."""

    table: NDArray[Any]
    torn: int = 0
    untrue: int = 0


def rounds(source: Source, offset: int, capacity: int) -> Ring:
    """Return the runs in a ring of ``capacity`` records at ``offset`` of a recording, as ROUND."""
    return _ring(source, offset, capacity, ROUND, f.ROUND_BODY_SIZE, possible_rounds)


def later_rounds(source: Source, offset: int, capacity: int, last: int, most: int) -> Ring | None:
    """Return the runs after number ``last``, at most ``most``, in a ring as :func:`rounds` reads it.

    None: the writer is ahead by a whole ring, or what is there is damaged.
    """
    read = _later(source, offset, capacity, last, most, ROUND, f.ROUND_BODY_SIZE)
    if read is None:
        return None
    found, torn = read
    true = possible_rounds(found)
    return Ring(select_records(found, true), torn, int(np.count_nonzero(~true)))


def events(source: Source, offset: int, capacity: int, wanted: Wanted | None = None) -> NDArray[Any]:
    """Return the sound events of a ring as EVENT, by ``seq``; kinds a newer pdctl may write are among them.

    wanted: takes a table of events and returns which of them to check; the others are left out.
    """
    return _ring(source, offset, capacity, EVENT, f.EVENT.size, possible_events, wanted).table


def later_events(source: Source, offset: int, capacity: int, last: int, most: int) -> NDArray[Any] | None:
    """Return those of the ``most`` events after number ``last`` that are there and sound, in a ring as :func:`events` reads it.

    None: the writer is ahead by a whole ring, or what is there is damaged. Threads write events, so one may lack for a moment.
    """
    read = _later(source, offset, capacity, last, most, EVENT, f.EVENT.size)
    return None if read is None else select_records(read[0], possible_events(read[0]))


def _later(
    source: Source, offset: int, capacity: int, last: int, most: int, dtype: np.dtype[Any], body: int
) -> tuple[NDArray[Any], int] | None:
    """Return the records of a ring after number ``last`` that are there, and how many of them are torn and left out.

    most, None: as :func:`later_rounds`. body: bytes of a record that its checksum is of.
    """
    size, place = dtype.itemsize, last % capacity
    data = source.read(offset + place * size, min(most, capacity - place) * size)
    table = np.frombuffer(data, dtype, len(data) // size)
    expected = np.arange(last + 1, last + 1 + len(table), dtype=np.uint64)
    if (table["seq"] > expected).any():
        return None
    places = np.flatnonzero(table["seq"] == expected)
    right = right_sums(data, places, table["crc"][places], size, body)
    return select_records(table, places[right]), int(np.count_nonzero(~right))


def possible_rounds(table: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which runs are possible: known codes, and numbers and times in range."""
    found: NDArray[np.bool_] = (table["queue"] < len(QUEUES)) & (table["stream"] < f.MAX_STREAMS)
    phase = table["flags"] & 15
    found &= (phase >= int(Phase.ENTERED)) & (phase <= int(Phase.APPLIED))
    found &= (table["repeat"] > 0) & (table["repeat"] < 1 << f.REPEAT_BITS)
    for name in ("seq", "ordinal", "visit", "items_start"):
        found &= table[name] < f.MAX_COUNT
    for name in ("t_enter", "t_done", "t_first"):
        found &= (table[name] >= 0) & (table[name] < f.MAX_MONO_NS)
    return found


def possible_events(table: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which events have a number and a time in range."""
    mono = table["mono_ns"]
    found: NDArray[np.bool_] = (table["seq"] < f.MAX_COUNT) & (mono >= 0) & (mono < f.MAX_MONO_NS)
    return found


Wanted = Callable[[NDArray[Any]], NDArray[np.bool_]]
_BLOCK = 8192
"""Records that are read at once: what is kept of a ring grows with what it holds, not with its size."""
_NEAR = 128
"""Records that are read though nobody asks for them, where that saves a read."""
_PIECE = 1 << 20
"""Bytes of items that are read at once."""


def _ring(
    source: Source,
    offset: int,
    capacity: int,
    dtype: np.dtype[Any],
    body: int,
    possible: Wanted,
    wanted: Wanted | None = None,
) -> Ring:
    """Read a ring. Records begin with their number, from 1 on; 0 is an empty place."""
    size = dtype.itemsize
    parts, torn, untrue = [], 0, 0
    for first, last in _spans(source.pieces(offset, capacity * size), offset, size):
        for place in range(first, last, _BLOCK):
            data = source.read(offset + place * size, min(_BLOCK, last - place) * size)
            table = np.frombuffer(data, dtype, len(data) // size)
            numbers = table["seq"]
            places = np.flatnonzero(numbers if wanted is None else (numbers > 0) & wanted(table))
            fits = (numbers[places] - np.uint64(1)) % np.uint64(capacity) == (places + place).astype(np.uint64)
            good = places[right_sums(data, places, table["crc"][places], size, body) & fits]
            torn += len(places) - len(good)
            if len(good):
                found = table if len(good) == len(table) else select_records(table, good)
                true = possible(found)
                untrue += len(found) - int(np.count_nonzero(true))
                parts.append(found if true.all() else select_records(found, true))
    return Ring(joined(parts, dtype), torn, untrue)


def _spans(pieces: Iterable[tuple[int, int]], offset: int, size: int) -> list[tuple[int, int]]:
    """Return (first, end) of the records in these pieces of a ring; empty places that are few are read with what is around."""
    found: list[tuple[int, int]] = []
    for at, length in pieces:
        first, end = (at - offset) // size, -(-(at + length - offset) // size)
        if found and first <= found[-1][1] + _NEAR:
            found[-1] = found[-1][0], end
        else:
            found.append((first, end))
    return found


def joined(parts: list[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return one table of all these records, by number. ``parts`` is empty afterwards: there are never two copies of all."""
    numbers = np.concatenate([np.zeros(0, np.uint64), *(part["seq"] for part in parts)])
    places = np.empty(len(numbers), np.int64)
    places[np.argsort(numbers, kind="stable")] = np.arange(len(numbers))
    bare = f"V{dtype.itemsize}"  # bytes, not field by field: a dtype may have holes
    found: NDArray[Any] = np.empty(len(numbers), bare)
    at = 0
    for part in _taken(parts):
        to = places[at : at + len(part)]
        in_turn = len(to) > 0 and bool((to[1:] == to[:-1] + 1).all())  # as most are: no look at each
        found[slice(to[0], to[0] + len(to)) if in_turn else to] = part.view(bare)
        at += len(part)
    return found.view(dtype)


def _taken(parts: list[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    parts.reverse()
    while parts:
        yield parts.pop()


def among(values: NDArray[np.uint64], wanted: Collection[int]) -> NDArray[np.bool_]:
    """Return which of many values are in ``wanted``, which are few: no sorting of the many."""
    if not wanted:
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(np.fromiter(wanted, np.uint64, len(wanted)))
    found = np.zeros(len(values), np.bool_)
    for at in range(0, len(values), _BLOCK):
        some = values[at : at + _BLOCK]
        found[at : at + _BLOCK] = ordered[np.searchsorted(ordered[:-1], some)] == some
    return found


class ItemSpan:
    """Items of some runs, copied from the ring at one moment and unwrapped. data: the items in sequence.

    firsts: number of the first item of each stretch, in order. at: index of these items in ``data``.
    """

    def __init__(self, data: bytearray, firsts: Sequence[int], at: Sequence[int]) -> None:
        self.data = data
        self._firsts = np.array(firsts, np.int64)
        self._at = np.array([*at, len(data) // f.ITEM_SIZE], np.int64)

    @classmethod
    def read(cls, source: Source, offset: int, capacity: int, runs: NDArray[Any]) -> ItemSpan:
        """Read the items of ``runs`` (ROUND) that a ring of ``capacity`` items at ``offset`` can still hold.

        Holes in the file are not read, so a span is no larger than the written part of the file.
        """
        some = runs[runs["items_count"] > 0]
        starts = some["items_start"].astype(np.int64)
        ends = starts + some["items_count"].astype(np.int64)
        data = bytearray()
        firsts: list[int] = []
        at: list[int] = []
        for first, end in _stretches(starts, ends, capacity):
            for number, place, count in _unwrapped(first, end, capacity):
                for begin, length in source.pieces(offset + place * f.ITEM_SIZE, count * f.ITEM_SIZE):
                    skip = -(-(begin - offset) // f.ITEM_SIZE) - place
                    start = offset + (place + skip) * f.ITEM_SIZE
                    have = len(data) // f.ITEM_SIZE
                    for piece in range(start, begin + length, _PIECE):
                        data += source.read(piece, min(_PIECE, begin + length - piece))
                    del data[len(data) // f.ITEM_SIZE * f.ITEM_SIZE :]
                    if len(data) == have * f.ITEM_SIZE:
                        continue
                    if not firsts or firsts[-1] + have - at[-1] != number + skip:
                        firsts.append(number + skip)
                        at.append(have)
        return cls(data, firsts, at)

    @property
    def table(self) -> NDArray[Any]:
        """The items as ITEM. Items without a run of right checksum are meaningless."""
        return np.frombuffer(self.data, ITEM)

    def numbers(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the items in these rows of :attr:`table`."""
        stretch = np.searchsorted(self._at[:-1], rows, "right") - 1
        found: NDArray[np.int64] = self._firsts[stretch] + rows - self._at[stretch]
        return found

    def _places(self, runs: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return for each run the row of its first item, and whether all of its items are here."""
        counts = runs["items_count"].astype(np.int64)
        if not len(self._firsts):
            return np.zeros(len(runs), np.int64), counts == 0
        starts = runs["items_start"].astype(np.int64)
        stretch = np.maximum(np.searchsorted(self._firsts, starts, "right") - 1, 0)
        begin = self._at[stretch] + starts - self._firsts[stretch]
        here = (starts >= self._firsts[stretch]) & (begin + counts <= self._at[stretch + 1]) | (counts == 0)
        return begin, here

    def sound(self, runs: NDArray[Any]) -> NDArray[np.bool_]:
        """Return for each of ``runs`` whether its items are complete and unchanged."""
        begin, here = self._places(runs)
        end = np.where(here, begin + runs["items_count"].astype(np.int64), begin)
        view = memoryview(self.data)
        sums = np.zeros(len(runs), np.uint32)
        for at in range(0, len(runs), _BLOCK):
            some = slice(at, at + _BLOCK)
            bounds = zip((begin[some] * f.ITEM_SIZE).tolist(), (end[some] * f.ITEM_SIZE).tolist(), strict=True)
            sums[some] = [crc32(view[a:b]) if b > a else 0 for a, b in bounds]
        found: NDArray[np.bool_] = here & (sums == runs["items_crc"])
        return found

    def of(self, runs: NDArray[Any], known: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return (items, row of ``runs`` each belongs to) of the runs that are ``known`` to have their items here.

        Items of a run follow one another as they were written. They may be those of :attr:`table` itself.
        """
        counts = np.where(known, runs["items_count"].astype(np.int64), 0)
        row = np.repeat(np.arange(len(runs), dtype=np.int64), counts)
        begin, _ = self._places(runs)
        skip = begin - (np.cumsum(counts) - counts)
        there = skip[counts > 0]
        if len(there) and (there == there[0]).all():  # one after the other, as a rank writes them: no copy
            return self.table[there[0] : there[0] + len(row)], row
        places = np.arange(len(row), dtype=np.int64) + skip[row]
        return select_records(self.table, places), row

    def bytes_of(self, start: int, count: int) -> bytes:
        """Return the bytes of ``count`` items from number ``start`` on, b"" where they are not all here."""
        stretch = int(np.searchsorted(self._firsts, start, "right")) - 1
        if stretch < 0:
            return b""
        at = int(self._at[stretch]) + start - int(self._firsts[stretch])
        if at + count > int(self._at[stretch + 1]):
            return b""
        return bytes(self.data[at * f.ITEM_SIZE : (at + count) * f.ITEM_SIZE])


def _stretches(starts: NDArray[np.int64], ends: NDArray[np.int64], capacity: int) -> list[tuple[int, int]]:
    """Return (first, end) of the stretches of item numbers that runs name, of those that the ring can still hold."""
    if not len(starts):
        return []
    oldest = int(ends.max()) - capacity
    order = np.argsort(starts, kind="stable")
    starts, ends = np.maximum(starts[order], oldest), ends[order]
    kept = ends > starts
    starts, reach = starts[kept], np.maximum.accumulate(ends[kept])
    new = np.flatnonzero(starts[1:] > reach[:-1] + _NEAR) + 1
    firsts, lasts = starts[np.r_[0, new]], reach[np.r_[new - 1, len(reach) - 1]]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _unwrapped(first: int, end: int, capacity: int) -> list[tuple[int, int, int]]:
    """Return (number, place, count) of the one or two parts of the ring that hold these items."""
    place, count = first % capacity, end - first
    head = min(count, capacity - place)
    parts = [(first, place, head), (first + head, 0, count - head)]
    return [part for part in parts if part[2]]


def hide(found: NDArray[Any], runs: NDArray[Any], row: NDArray[np.int64]) -> None:
    """Set fields that a run's phase has not reached to UNKNOWN, and flags to 0. Only unfinished runs have such fields.

    ``row`` says which of ``runs`` each item of ``found`` belongs to.
    """
    phase = runs["flags"] & 15
    once = runs["repeat"] == 1
    for least, fields in ((Phase.REDUCED, ("reduced", "flags")), (Phase.APPLIED, ("action",))):
        open_runs = np.flatnonzero(once & (phase < int(least)))
        if len(open_runs):
            rows = np.isin(row, open_runs)
            for name in fields:
                found[name][rows] = UNKNOWN if name != "flags" else 0
