"""Compares the rounds of one queue over the ranks of one group. Pure: recordings in, the first difference out.

Ranks are compared at the same round ordinal, never at the same moment, so a rank that is merely behind differs in nothing.
A turn in which a rank's queue was empty has no round; it shows in the number of turns the rank needed to get to a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from pdctl.protocol.model import Phase
from pdctl.recording.reader import Visits
from pdctl.recording.rings import distinct
from pdctl.recording.streams import Run, Stream


class Kind(str, Enum):
    """What differs in the first round that differs."""

    LISTS = "lists"
    ACTIONS = "actions"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Polled:
    """One rank's part: its stream (None: it never polled this queue) and its turns at it (None: none)."""

    stream: Stream | None
    visits: Visits | None

    @property
    def last(self) -> int:
        """Ordinal of the last round entered, -1 without any."""
        return self.stream.last if self.stream is not None else -1


@dataclass(frozen=True)
class Difference:
    """The first round in which the ranks differ. runs: per rank, None where it has no such round.

    odd: indices of the ranks without a round (SKIPPED).
    """

    kind: Kind
    ordinal: int
    runs: tuple[Run | None, ...]
    odd: tuple[int, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """first / last: ordinals compared on all ranks, last < first when there are none. gap: why nothing was compared."""

    first: int = 0
    last: int = -1
    difference: Difference | None = None
    gap: str = ""
    waiting: tuple[int, ...] = ()


def compare(ranks: Sequence[Polled]) -> Comparison:
    """Compare ``ranks`` (two or more of one group, each with a recording) at one queue.

    waiting: indices of ranks that are in a round the others have not entered.
    """
    lasts = [rank.last for rank in ranks]
    top = max(lasts)
    if top < 0:
        return Comparison()
    waiting = tuple(
        n
        for n, rank in enumerate(ranks)
        if rank.last == top > min(lasts) and rank.stream is not None and rank.stream.newest.phase is Phase.ENTERED
    )
    streams = [rank.stream for rank in ranks if rank.stream is not None]
    first = max(stream.first for stream in streams)
    last = min(lasts)
    offsets: list[int] = [0] * len(ranks)
    if len(streams) == len(ranks) and first <= last:
        difference, offsets = _walk(streams, first, last)
        if difference is not None:
            return Comparison(first, difference.ordinal, difference, waiting=waiting)
    elif last >= 0:
        return Comparison(first, first - 1, gap="the recordings have no round in common", waiting=waiting)
    skipped = _skipped(ranks, last, offsets)
    return Comparison(first, last, skipped, waiting=waiting)


def _walk(streams: Sequence[Stream], first: int, last: int) -> tuple[Difference | None, list[int]]:
    """Find the first difference in rounds first..last; also returns the turns each rank is ahead of the first one.

    Runs are compared piece by piece: between two boundaries no rank begins a new run, so one round stands for all.
    """
    starts = distinct(np.concatenate([s.table["ordinal"].astype(np.int64) for s in streams] + [np.array([first])]))
    starts = starts[(starts >= first) & (starts <= last)]
    rows = [np.searchsorted(s.ends, starts) for s in streams]
    held = np.ones(len(starts), bool)
    for stream, row in zip(streams, rows, strict=True):
        held &= stream.table["ordinal"][row].astype(np.int64) <= starts  # else a damaged record left a hole here
    starts, rows = starts[held], [row[held] for row in rows]
    if not len(starts):
        return None, [0] * len(streams)
    tables = [stream.table[row] for stream, row in zip(streams, rows, strict=True)]
    turns = [(t["visit"] - t["ordinal"]).astype(np.int64) for t in tables]
    differs = np.zeros(len(starts), bool)
    for n, table in enumerate(tables[1:], 1):
        ahead = turns[n] - turns[0]
        differs |= (ahead != ahead[0]) | (table["n"] != tables[0]["n"]) | (table["hash"] != tables[0]["hash"])
    # The outcome counts where it is known: in every round but the last of a run that was not applied yet.
    outcomes = [
        (t["after_hash"], ((t["flags"] & 15) == int(Phase.APPLIED)) | (starts < s.ends[row]))
        for t, s, row in zip(tables, streams, rows, strict=True)
    ]
    acted = np.zeros(len(starts), bool)
    for n, (outcome, known) in enumerate(outcomes):
        for other, known_too in outcomes[:n]:
            acted |= known & known_too & (outcome != other)
    found = np.flatnonzero(differs | acted)
    if not len(found):
        return None, [int(turn[-1] - turns[0][-1]) for turn in turns]
    at = int(found[0])
    ordinal = int(starts[at])
    offsets = [int(turn[0] - turns[0][0]) for turn in turns]
    runs = [stream.run(int(row[at])) for stream, row in zip(streams, rows, strict=True)]
    now = [int(turn[at] - turns[0][at]) for turn in turns]
    if now != offsets:
        return _late(runs, ordinal, now, offsets), offsets
    return Difference(Kind.LISTS if differs[at] else Kind.ACTIONS, ordinal, tuple(runs)), offsets


def _late(runs: list[Run], ordinal: int, now: list[int], offsets: list[int]) -> Difference:
    late = [turn - offset for turn, offset in zip(now, offsets, strict=True)]
    # who needed more turns to get to this round skipped one that the others had
    odd = tuple(n for n, extra in enumerate(late) if extra > min(late))
    return Difference(Kind.SKIPPED, ordinal, tuple(None if n in odd else run for n, run in enumerate(runs)), odd)


def _skipped(ranks: Sequence[Polled], last: int, offsets: list[int]) -> Difference | None:
    """Find a round after the last common one that a rank has passed by: its turns went on without it."""
    ordinal = last + 1
    runs = [rank.stream.at(ordinal) if rank.stream is not None else None for rank in ranks]
    entered = [(run.visit + ordinal - run.ordinal - offset) for run, offset in zip(runs, offsets, strict=True) if run]
    if not entered:
        return None
    turn = min(entered)
    odd = []
    for n, (rank, run) in enumerate(zip(ranks, runs, strict=True)):
        if run is not None or rank.visits is None:
            continue
        turns = rank.visits.count - offsets[n]
        if turns > turn or (turns == turn and rank.visits.empty):
            odd.append(n)
    return Difference(Kind.SKIPPED, ordinal, tuple(runs), tuple(odd)) if odd else None
