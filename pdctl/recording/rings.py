"""The rings of a recording, all records of one at once: what can be trusted of them as numpy tables.

A checksum is computed for each record; everything else is done for all of them together, since a full ring has tens of
thousands and every command that reads recordings reads one for each rank.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pdctl.model import UNKNOWN, Phase
from pdctl.recording import format as f
from pdctl.recording.source import Source

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


def chosen(table: NDArray[Any], which: NDArray[Any]) -> NDArray[Any]:
    """Return ``table[which]`` of contiguous records: copied as bytes, at once, not field by field."""
    found: NDArray[Any] = table.view(f"V{table.dtype.itemsize}")[which].view(table.dtype)
    return found


def record_sums(data: bytes, places: NDArray[np.int64], size: int, body: int) -> NDArray[np.uint32]:
    """Return the CRC-32 of the first ``body`` bytes of the records of ``size`` bytes at these places."""
    return np.array([crc32(data[at : at + body]) for at in (places * size).tolist()], np.uint32)


def sound(
    data: bytes, dtype: np.dtype[Any], body: int, capacity: int, wanted: NDArray[np.bool_] | None = None
) -> tuple[NDArray[Any], int]:
    """Return the records of a ring that can be trusted, by number, and how many it holds, trusted or not.

    wanted: only those at these places are looked at. Records begin with their number, from 1 on; 0 is an empty place.
    """
    table = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
    numbers = table["seq"]
    places = np.flatnonzero(numbers if wanted is None else (numbers > 0) & wanted)
    fits = (numbers[places] - np.uint64(1)) % np.uint64(capacity) == places.astype(np.uint64)
    good = places[(record_sums(data, places, dtype.itemsize, body) == table["crc"][places]) & fits]
    return chosen(table, good[np.argsort(numbers[good], kind="stable")]), len(places)


def events(data: bytes, capacity: int, wanted: NDArray[np.bool_] | None = None) -> NDArray[Any]:
    """Return the sound events of a ring's bytes as EVENT, by ``seq``; kinds a newer pdctl may write are among them."""
    return sound(data, EVENT, f.EVENT.size, capacity, wanted)[0]


def among(values: NDArray[np.uint64], wanted: Collection[int]) -> NDArray[np.bool_]:
    """Return which of many values are in ``wanted``, which are few: no sorting of the many."""
    if not wanted:
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(np.fromiter(wanted, np.uint64, len(wanted)))
    found: NDArray[np.bool_] = ordered[np.searchsorted(ordered[:-1], values)] == values
    return found


@dataclass(frozen=True, slots=True)
class ItemSpan:
    """The items numbered ``first`` and on, as they were in the ring at one moment, without its wrapping round."""

    first: int
    data: bytes

    @classmethod
    def read(cls, source: Source, offset: int, capacity: int, runs: NDArray[Any]) -> ItemSpan:
        """Read the items of ``runs`` (ROUND) that a ring of ``capacity`` items at ``offset`` can still hold."""
        some = runs[runs["items_count"] > 0]
        if not len(some):
            return cls(0, b"")
        starts = some["items_start"].astype(np.int64)
        end = int((starts + some["items_count"].astype(np.int64)).max())
        first = max(int(starts.min()), end - capacity)
        place, count = first % capacity, end - first
        parts = [(place, min(count, capacity - place)), (0, max(0, count - (capacity - place)))]
        return cls(
            first,
            b"".join(
                source.read(offset + at * f.ITEM_SIZE, many * f.ITEM_SIZE).ljust(many * f.ITEM_SIZE, b"\0")
                for at, many in parts
                if many
            ),
        )

    @property
    def table(self) -> NDArray[Any]:
        """The items as ITEM; what is not of a run with a right checksum means nothing."""
        return np.frombuffer(self.data, ITEM)

    def sound(self, runs: NDArray[Any]) -> NDArray[np.bool_]:
        """Return for each of ``runs`` whether its items are here as they were written."""
        begin = (runs["items_start"].astype(np.int64) - self.first) * f.ITEM_SIZE
        end = begin + runs["items_count"].astype(np.int64) * f.ITEM_SIZE
        data = self.data
        sums = [crc32(data[a:b]) for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
        here = (begin >= 0) & (end <= len(data)) | (begin == end)
        found: NDArray[np.bool_] = here & (np.array(sums, np.uint32) == runs["items_crc"])
        return found

    def of(self, runs: NDArray[Any], known: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return (items, row of ``runs`` each belongs to) of the runs that are ``known`` to have their items here.

        Items of a run follow one another as they were written.
        """
        counts = np.where(known, runs["items_count"].astype(np.int64), 0)
        row = np.repeat(np.arange(len(runs), dtype=np.int64), counts)
        skip = runs["items_start"].astype(np.int64) - self.first - (np.cumsum(counts) - counts)
        places = np.arange(len(row), dtype=np.int64) + skip[row]
        return chosen(self.table, places), row


def hide(found: NDArray[Any], runs: NDArray[Any], row: NDArray[np.int64]) -> None:
    """Make UNKNOWN, and flags 0, what a run's phase has not reached: only a stream's last run, or one that was left so.

    ``row`` says which of ``runs`` each item of ``found`` belongs to.
    """
    phase = runs["flags"] & 15
    once = runs["repeat"] == 1
    for least, fields in ((Phase.REDUCED, ("reduced", "flags")), (Phase.APPLIED, ("action",))):
        open_runs = np.flatnonzero(once & (phase < least))
        if len(open_runs):
            rows = np.isin(row, open_runs)
            for name in fields:
                found[name][rows] = UNKNOWN if name != "flags" else 0
