"""What it takes to read a full recording of 16 MiB, as commands that look back do, against the least it could take.

    python -m benchmarks.read_recording [--runs 15]

``read``: its rounds. ``events``: all of its events, as objects. ``history``: what ``dump metadata`` takes of it.
``last_words``: what ``stuck`` takes of it about three rooms. Each of a recording just read, in turn with the least: the
same bytes read, seen as numpy records, and each record's CRC-32 computed. One JSON line; milliseconds of CPU time, and the
ratio of each to the least; ``together`` is read, history and last_words: what ``check`` spends on a rank. ``peak`` is the
memory that each takes at its most, in a process of its own, for a byte of the recording.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.load_trace import ROOM, full, least
from benchmarks.statistics import quartiles
from pdctl.probes.metadata.history import history
from pdctl.probes.stuck.collect import last_words
from pdctl.recording import format as f
from pdctl.recording.reader import Recording, read
from pdctl.recording.requests import rooms_of

ROOMS = [ROOM + number for number in (30_000, 31_000, 32_000)]
PARTS: dict[str, Callable[[Recording], Any]] = {
    "events": lambda recording: recording.events(),
    "history": history,
    "last_words": lambda recording: last_words(recording, ROOMS, recording.tick_mono_ns),
}
KEPT: dict[str, Callable[[Recording], Any]] = {
    "read": lambda recording: recording,
    "together": lambda recording: (history(recording), PARTS["last_words"](recording), rooms_of(recording, 0)),
    "changes": lambda recording: [stream.changes() for stream in recording.streams],
}
"""What is measured of memory: ``together`` as ``check`` does it, ``changes`` what ``story`` and data frames take."""


def cpu_ms(what: Callable[[], Any]) -> tuple[float, Any]:
    """Return (milliseconds of CPU time, result)."""
    before = time.process_time()
    result = what()
    return (time.process_time() - before) * 1e3, result


def turn(path: Path) -> dict[str, float]:
    """Return the milliseconds of CPU time of each part, once."""
    took = {"least": cpu_ms(lambda: least(path))[0], "read": cpu_ms(lambda: read(path))[0]}
    for name, part in PARTS.items():
        recording = read(path)
        took[name], found = cpu_ms(lambda part=part, recording=recording: part(recording))  # type: ignore[misc]
        assert found, name
    took["together"] = took["read"] + took["history"] + took["last_words"]
    return took


def peak(folder: Path, name: str) -> float:
    """Return how much more memory this process takes at its most with a full recording than with the smallest, per byte."""
    kept = KEPT[name](read(folder / "small.pdrec"))
    before = _most()
    recording = read(folder / "full.pdrec")
    kept = recording, KEPT[name](recording), kept
    return (_most() - before) / f.DEFAULT_SIZE


def _most() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10


def main(arguments: list[str] | None = None) -> int:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.peak:
        print(peak(Path(options.peak[0]), options.peak[1]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "full.pdrec"
        full(path)
        turns = [turn(path) for _ in range(options.runs + 1)][1:]
        full(Path(folder) / "small.pdrec", f.MIN_SIZE)
        peaks = {name: [_peak_of(folder, name) for _ in range(min(3, options.runs))] for name in KEPT}
    result: dict[str, Any] = {"benchmark": "read_recording"}
    for name in turns[0]:
        result[f"{name}_ms"] = quartiles([took[name] for took in turns], 2)
        if name != "least":
            result[f"{name}_ratio"] = quartiles([took[name] / took["least"] for took in turns], 2)
    for name, found in peaks.items():
        result[f"{name}_peak"] = quartiles(found, 2)
    print(json.dumps(result), flush=True)
    return 0


def _peak_of(folder: str, name: str) -> float:
    command = [sys.executable, "-m", "benchmarks.read_recording", "--peak", folder, name]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


if __name__ == "__main__":
    sys.exit(main())
