"""A recording that is read again and again while it grows: each time only the runs and events that are new are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdctl.recording.reader import BadRecording, Recording, read_from
from pdctl.recording.rings import Ring, events, later_events, later_rounds, rounds
from pdctl.recording.source import FileSource, Source

MOST_RUNS = 2048
"""Runs that are kept, the newest: to a judge it is the recording of a rank whose ring is as small."""
_BLOCK = 64
_LATE = 1024
"""So many events later, one that lacks is waited for no longer: a thread that was about to write it has ended."""


class Tail:
    """The recording of one process, whose file stays open. Raises OSError if it can't be opened."""

    def __init__(self, path: Path, pid: int, proc_start: int) -> None:
        self._path, self._process = path, (pid, proc_start)
        self._source = FileSource(path)
        self._runs: NDArray[Any] | None = None
        self._events: NDArray[Any] | None = None
        self._asked = False

    def read(self) -> Recording:
        """Return the recording as it is now, with the newest MOST_RUNS of its runs.

        Raises OSError where it can't be read, BadRecording where it can't be told whose it is, or is another process's.
        """
        if not self._asked:  # a full ring takes megabytes: it is kept as long as each reading is asked for events
            self._events = None
        self._asked = False
        recording = read_from(self._source, str(self._path), self._ended, self._told)
        if (recording.pid, recording.proc_start) != self._process:
            raise BadRecording("it is of another process")
        return recording

    def _ended(self, source: Source, offset: int, capacity: int) -> Ring:
        """Return what :func:`rounds` does, of the newest runs. Where one is torn, it begins anew at the next call."""
        runs = self._runs
        if runs is None or not len(runs):
            return self._anew(source, offset, capacity)
        parts, last = [runs], int(runs["seq"][-1])
        end = last + capacity  # who writes as fast as this reads is not followed for ever
        while last < end:
            more = later_rounds(source, offset, capacity, last, _BLOCK)
            if more is None or more.torn or more.untrue:
                return self._anew(source, offset, capacity)
            if not len(more.table):
                break
            parts.append(more.table)
            last += len(more.table)
        self._runs = (np.concatenate(parts) if len(parts) > 1 else runs)[-self._most(capacity) :]
        return Ring(self._runs)

    def _told(self, source: Source, offset: int, capacity: int) -> NDArray[Any]:
        """Return what :func:`events` does, and read only those that were not there the last time."""
        self._asked = True
        known = self._events
        more = None if known is None or not len(known) else _later(source, offset, capacity, known)
        self._events = events(source, offset, capacity) if more is None else more
        return self._events

    def _most(self, capacity: int) -> int:
        """Return how many runs are kept of a ring."""
        return min(MOST_RUNS, capacity)

    def _anew(self, source: Source, offset: int, capacity: int) -> Ring:
        ring = rounds(source, offset, capacity)
        most = self._most(capacity)
        newest = ring.table if len(ring.table) <= most else ring.table[-most:].copy()  # not all of them, for a part
        self._runs = None if ring.torn else newest
        return Ring(newest, ring.torn, ring.untrue)


def _later(source: Source, offset: int, capacity: int, known: NDArray[Any]) -> NDArray[Any] | None:
    """Return the events that are known with those that have come since. None: the whole ring has to be read."""
    numbers = known["seq"].astype(np.int64)
    newest = int(numbers[-1])
    gaps = np.flatnonzero(np.diff(numbers) > 1)
    settled = max(int(numbers[gaps[0]]) if len(gaps) else newest, newest - _LATE)
    parts, at = [known[numbers <= settled]], settled
    while at < settled + capacity:
        more = later_events(source, offset, capacity, at, _BLOCK)
        if more is None:
            return None
        if not len(more) and at >= newest:
            break
        parts.append(more)
        at += min(_BLOCK, capacity - at % capacity)
    table = np.concatenate(parts)
    return table[table["seq"].astype(np.int64) > int(table["seq"][-1]) - capacity]
