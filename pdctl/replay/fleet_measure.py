"""Measures what a fleet projection needs in recordings: how late rows landed, of how many, and the pace of rounds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pdctl.protocol.model import EventKind, KVPoll
from pdctl.recording.reader import Recording
from pdctl.recording.streams import Stream

QUEUE = "decode.transfer"


@dataclass(frozen=True)
class Measured:
    """late_s: by how much rows were late, seconds since Success. unseen: how many more were late and not seen to land.

    total: (rank, request) pairs seen in Success.
    round_s: median pace of rounds, None where it can't be told.
    """

    late_s: tuple[float, ...]
    total: int
    round_s: float | None
    unseen: int = 0


def measure(recordings: Sequence[Recording]) -> Measured:
    """Return what these recordings tell."""
    late, total, lost, paces = [], 0, 0, []
    for recording in recordings:
        stream = recording.stream(QUEUE)
        if stream is None:
            continue
        succeeded, unseen = _succeeded(stream)
        landed = {e.room: e.a / 1e9 for e in recording.events() if e.kind is EventKind.LANDED and e.room in succeeded}
        late += list(landed.values())
        total += len(succeeded)
        lost += len(unseen - landed.keys())
        paces += [
            (run.t_enter - run.t_first) / (run.repeat - 1) / 1e9
            for run in stream.runs
            if run.repeat > 1 and run.t_enter > run.t_first
        ]
    return Measured(tuple(late), total, median(paces) if paces else None, lost)


def _succeeded(stream: Stream) -> tuple[set[int], set[int]]:
    """Return the rooms seen in Success, and of these the ones whose slot read 0 to the end."""
    seen: set[int] = set()
    empty: set[int] = set()
    for run in stream.runs:
        for item in stream.items(run) or ():
            if item.local == KVPoll.SUCCESS:
                seen.add(item.room)
                if item.found == 0:
                    empty.add(item.room)
                elif item.found is not None:
                    empty.discard(item.room)
    return seen, empty
