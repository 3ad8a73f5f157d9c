"""A map of rounds × ranks around a divergence: the requests that each rank polled, and where it differs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pdctl.protocol.model import KVPoll, Phase
from pdctl.recording.streams import Run, Stream
from pdctl.replay.groups import GroupQueue

BEFORE, AFTER = 24, 6
"""Rounds shown before and after the one of interest."""
STEP, HELD, PARTS, OTHER, NEVER, NONE = (
    "in step",
    "the gate holds a request",
    "decided otherwise",
    "another list",
    "never left this round",
    "no such round",
)
STATES = (STEP, HELD, PARTS, OTHER, NEVER, NONE)


class Cell(NamedTuple):
    """A rank in a round: one of STATES, how many requests it polled, and how many it kept (-1 where that is not known)."""

    state: str
    n: int
    kept: int = -1

    @property
    def words(self) -> str:
        """``3``, or ``3→2`` where requests left."""
        return str(self.n) if self.kept in (-1, self.n) else f"{self.n}→{self.kept}"


@dataclass(frozen=True)
class Heat:
    """A queue of a group. cells: by rank, then by round of ``ordinals``. parted: first round with a difference, -1: none."""

    title: str
    queue: str
    ranks: tuple[str, ...]
    ordinals: tuple[int, ...]
    cells: tuple[tuple[Cell, ...], ...]
    parted: int


def heat(target: GroupQueue) -> Heat:
    """Return the map of a target, around its first difference, or around its newest rounds where there is none."""
    streams = [recording.stream(target.queue) for recording in target.recordings]
    known = [stream for stream in streams if stream is not None]
    parted = _parted(known)
    last = max(stream.last for stream in known)
    center = last if parted < 0 else parted
    ordinals = tuple(range(max(0, center - BEFORE), min(last, center + AFTER) + 1))
    columns = [_column([s.at(ordinal) if s is not None else None for s in streams], streams) for ordinal in ordinals]
    ranks = tuple(f"tp{r.identity.tp}" for r in target.recordings)
    return Heat(target.title, target.queue, ranks, ordinals, tuple(zip(*columns, strict=True)), parted)


def _parted(streams: Sequence[Stream]) -> int:
    """Return the first ordinal that all ranks have and do not have alike, -1 where there is none."""
    begin = max(stream.first for stream in streams)
    marks = sorted({int(at) for stream in streams for at in stream.table["ordinal"] if at >= begin})
    for ordinal in marks:
        runs = [run for stream in streams for run in [stream.at(ordinal)] if run is not None]
        if len(runs) == len(streams) and len({(run.n, run.hash) for run in runs}) > 1:
            return ordinal
        ended = [run for run in runs if run.phase is Phase.APPLIED and run.repeat == 1]
        if len(ended) == len(streams) and len({run.after_hash for run in ended}) > 1:
            return ordinal
    return -1


def _column(runs: Sequence[Run | None], streams: Sequence[Stream | None]) -> tuple[Cell, ...]:
    lists = Counter((run.n, run.hash) for run in runs if run is not None)
    afters = Counter(
        run.after_hash for run in runs if run is not None and run.phase is Phase.APPLIED and run.repeat == 1
    )
    return tuple(_cell(run, stream, lists, afters) for run, stream in zip(runs, streams, strict=True))


def _cell(run: Run | None, stream: Stream | None, lists: Counter[tuple[int, int]], afters: Counter[int]) -> Cell:
    if run is None or stream is None:
        return Cell(NONE, 0)
    if run.phase is not Phase.APPLIED and run.repeat == 1:
        return Cell(NEVER, run.n)
    kept = run.n_after if run.phase is Phase.APPLIED and run.repeat == 1 else -1
    if len(lists) > 1 and lists[run.n, run.hash] <= sum(lists.values()) / 2:
        return Cell(OTHER, run.n, kept)
    if len(afters) > 1 and run.repeat == 1 and afters[run.after_hash] <= sum(afters.values()) / 2:
        return Cell(PARTS, run.n, kept)
    items = stream.items(run) or []
    held = any(item.local == KVPoll.SUCCESS and item.gated == KVPoll.TRANSFERRING for item in items)
    return Cell(HELD if held else STEP, run.n, kept)
