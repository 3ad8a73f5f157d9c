"""The columns of a recording's rings, for all records at once: checked as the reader checks them, one by one nowhere else."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pdctl.model import UNKNOWN, Phase
from pdctl.recording import format as f
from pdctl.recording.streams import ITEM, ROUND, Stream

EVENT = np.dtype(
    {
        "names": ["seq", "mono_ns", "kind", "queue", "slot", "room", "a", "b", "text", "crc"],
        "formats": ["<u8", "<i8", "u1", "u1", "<i4", "<u8", "<i8", "<i8", "S72", "<u4"],
        "offsets": [0, 8, 16, 17, 20, 24, 32, 40, 48, f.EVENT_CRC_OFFSET],
        "itemsize": f.EVENT_SIZE,
    }
)


def events(data: bytes) -> NDArray[Any]:
    """Return the sound events of a recording's bytes as EVENT, by ``seq``."""
    *_, offset, capacity = f.layout(_size(data))
    ring = memoryview(data)[offset : offset + capacity * f.EVENT_SIZE]
    table = np.frombuffer(ring, EVENT, len(ring) // f.EVENT_SIZE)
    places = np.flatnonzero(table["seq"])
    size, body = f.EVENT_SIZE, f.EVENT.size
    sums = np.fromiter((crc32(ring[at : at + body]) for at in (places * size).tolist()), np.uint32, len(places))
    found = table[places]
    fits = (found["seq"] - np.uint64(1)) % np.uint64(capacity) == places.astype(np.uint64)
    found = found[fits & (found["crc"] == sums)]
    ordered: NDArray[Any] = found[np.argsort(found["seq"], kind="stable")]
    return ordered


def rounds(streams: list[Stream]) -> NDArray[Any]:
    """Return the runs of all streams, one stream after the other."""
    return np.concatenate([stream.table for stream in streams]) if streams else np.zeros(0, ROUND)


def items(data: bytes, runs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.bool_]]:
    """Return (items, row of ``runs`` each belongs to, for each run whether its items are in the file).

    Items of a run follow one another as they were written. Fields that the run's phase has not reached are UNKNOWN,
    and flags 0.
    """
    _, _, offset, capacity, _, _ = f.layout(_size(data))
    ring = memoryview(data)[offset : offset + capacity * f.ITEM_SIZE]
    starts = runs["items_start"].astype(np.int64)
    counts = runs["items_count"].astype(np.int64)
    known = _sums(ring, starts, counts, capacity) == runs["items_crc"]
    table = np.frombuffer(ring, ITEM, len(ring) // f.ITEM_SIZE)
    taken = np.where(known, counts, 0)
    row = np.repeat(np.arange(len(runs), dtype=np.int64), taken)
    first = np.cumsum(taken) - taken
    number = np.arange(len(row), dtype=np.int64) - first[row] + starts[row]
    found = table[number % capacity] if len(row) else np.zeros(0, ITEM)
    hide(found, runs, row)
    return found, row, known


def _size(data: bytes) -> int:
    return int(f.FIXED.unpack_from(data)[3])


def _sums(ring: memoryview, starts: NDArray[np.int64], counts: NDArray[np.int64], capacity: int) -> NDArray[np.uint32]:
    """Return the CRC-32 of the items of each run, as they are in the ring now."""
    begin = (starts % capacity * f.ITEM_SIZE).tolist()
    end = ((starts % capacity + counts) * f.ITEM_SIZE).tolist()
    size = capacity * f.ITEM_SIZE
    return np.fromiter(
        (
            crc32(ring[a:b]) if b <= size else crc32(ring[: b - size], crc32(ring[a:])) if b - a <= size else 1
            for a, b in zip(begin, end, strict=True)
        ),
        np.uint32,
        len(begin),
    )


def hide(found: NDArray[Any], runs: NDArray[Any], row: NDArray[np.int64]) -> None:
    """Blank what is not valid yet: only the last run of a stream can be anything but APPLIED or repeated."""
    phase = runs["flags"] & 15
    once = runs["repeat"] == 1
    for least, fields in ((Phase.REDUCED, ("reduced", "flags")), (Phase.APPLIED, ("action",))):
        open_runs = np.flatnonzero(once & (phase < least))
        if len(open_runs):
            rows = np.isin(row, open_runs)
            for name in fields:
                found[name][rows] = UNKNOWN if name != "flags" else 0
