"""What it takes to load a full recording of 16 MiB into DataFrames, against the least it could take.

    python -m benchmarks.load_trace [--runs 15]

The least: the same bytes read, seen as numpy records, and each record's CRC-32 computed, which is what believing a
recording takes. Both in turn, in one process. One JSON line; seconds of wall time and of CPU time, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

import pdctl
from benchmarks.statistics import quartiles
from benchmarks.synthetic import identity
from pdctl.recording import format as f
from pdctl.recording.rings import EVENT
from pdctl.recording.writer import RecordingWriter

ROOM = 1 << 62
ITEMS = 8
"""Requests that a run says something of: as many as it takes for rounds and items to fill their rings together."""


def full(path: Path, size: int = f.DEFAULT_SIZE, odd: int = -1) -> None:
    """Write a recording whose three rings are full: every run has changed items, every 64th the whole list.

    odd: the run in which another request comes than in a recording without one; it leaves ITEMS runs later.
    """
    writer = RecordingWriter.create(path, identity(), size=size)
    _, rounds, _, _, _, events = f.layout(size)
    pack = f.ITEM.pack
    for number in range(rounds + 100):
        room = ROOM + number
        rooms = [(room + n) ^ ((1 << 61) if number + n == odd + ITEMS - 1 else 0) for n in range(ITEMS)]
        data = b"".join(pack(r, r, n, n, 4, 4, 4, int(n == 0), 1) for n, r in enumerate(rooms))
        start = writer.items(data)
        when = number * 100_000
        flags = 3 | (f.FLAG_FULL << 4 if number % 64 == 0 else 0)
        head = (0, 4, 0, flags, 1, when, when + 50_000)
        values = sum(rooms) % (1 << 64), sum(rooms[1:]) % (1 << 64)
        tail = f.ROUND_TAIL.pack(ITEMS, ITEMS - 1, number, number, when, *values, start, ITEMS, crc32(data))
        writer.close_run(head, tail)
    for number in range(events + 100):
        text = f"request-{number:08d}"
        writer.event(1 + number % 16, mono_ns=number * 90_000, queue=4, room=ROOM + number // 4, slot=3, text=text)


def least(path: Path) -> int:
    """Read the bytes and compute every record's checksum."""
    data = memoryview(path.read_bytes())
    rounds_at, rounds, items_at, items, events_at, events = f.layout(f.DEFAULT_SIZE)
    table = np.frombuffer(data, np.dtype(f.ROUND_DTYPE), rounds, rounds_at)
    np.frombuffer(data, np.dtype(f.ITEM_DTYPE), items, items_at)
    np.frombuffer(data, EVENT, events, events_at)
    found = 0
    for at in range(rounds_at, rounds_at + rounds * f.ROUND_SIZE, f.ROUND_SIZE):
        found ^= crc32(data[at : at + f.ROUND_BODY_SIZE])
    size = items * f.ITEM_SIZE
    begins = (table["items_start"].astype(np.int64) % items * f.ITEM_SIZE).tolist()
    for begin, count in zip(begins, (table["items_count"] * f.ITEM_SIZE).tolist(), strict=True):
        found ^= crc32(data[items_at + begin : items_at + min(size, begin + count)])
    for at in range(events_at, events_at + events * f.EVENT_SIZE, f.EVENT_SIZE):
        found ^= crc32(data[at : at + f.EVENT.size])
    return found


def timed(what: Callable[[Path], Any], path: Path) -> tuple[float, float, Any]:
    """Return (seconds of wall time, seconds of CPU time, result)."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = what(path)
    return time.perf_counter() - wall, time.process_time() - cpu, result


def main(arguments: list[str] | None = None) -> int:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "full.pdrec"
        full(path)
        loads, bare = [], []
        for turn in range(options.runs + 1):
            wall, cpu, trace = timed(pdctl.load_trace, path)
            least_wall, least_cpu, _ = timed(least, path)
            if turn:  # the first also imports pandas
                loads.append((wall, cpu))
                bare.append((least_wall, least_cpu))
        result = {
            "benchmark": "load_trace",
            "rounds": len(trace.rounds),
            "items": len(trace.items),
            "events": len(trace.events),
            "wall_s": quartiles([wall for wall, _ in loads], 4),
            "cpu_s": quartiles([cpu for _, cpu in loads], 4),
            "least_wall_s": quartiles([wall for wall, _ in bare], 4),
            "least_cpu_s": quartiles([cpu for _, cpu in bare], 4),
            "cpu_ratio": quartiles([a[1] / b[1] for a, b in zip(loads, bare, strict=True)], 2),
        }
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
