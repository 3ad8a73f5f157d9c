"""Compares the rounds of one queue over the ranks of one group. Pure: recordings in, the first difference out.

Ranks are compared at the same round ordinal, never at the same moment, so a rank that is merely behind differs in nothing.
A turn in which a rank's queue was empty has no round; it shows in the number of turns the rank needed to get to a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from pdctl.model import Phase
from pdctl.recording.reader import Run, Stream, Visits


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

    odd: indices of the ranks without a round (SKIPPED). before: per rank, whether the round is within what was compared.
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
    waiting: tuple[int, ...] = field(default_factory=tuple)


def compare(ranks: Sequence[Polled]) -> Comparison:
    """Compare ``ranks`` (two or more of one group, each with a recording) at one queue.

    waiting: indices of ranks that are in a round the others have not entered.
    """
    lasts = [rank.last for rank in ranks]
    top = max(lasts)
    if top < 0:
        return Comparison()
    waiting = tuple(
        n for n, rank in enumerate(ranks) if rank.last == top and min(lasts) < top and _phase(rank) is Phase.ENTERED
    )
    streams = [rank.stream for rank in ranks if rank.stream is not None and rank.stream.runs]
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


def _phase(rank: Polled) -> Phase | None:
    return rank.stream.runs[-1].phase if rank.stream is not None and rank.stream.runs else None


def _walk(streams: Sequence[Stream], first: int, last: int) -> tuple[Difference | None, list[int]]:
    at = [next(n for n, run in enumerate(s.runs) if run.last >= first) for s in streams]
    offsets: list[int] | None = None
    ordinal = first
    while ordinal <= last:
        runs = [stream.runs[n] for stream, n in zip(streams, at, strict=True)]
        if any(run.ordinal > ordinal for run in runs):  # a damaged record: go on where all have rounds again
            ordinal = max(run.ordinal for run in runs)
            at = [_advance(s, n, ordinal) for s, n in zip(streams, at, strict=True)]
            offsets = None
            continue
        turns = [run.visit + ordinal - run.ordinal for run in runs]
        now = [turn - turns[0] for turn in turns]
        if offsets is None:
            offsets = now
        if now != offsets:
            return _late(runs, ordinal, now, offsets), offsets
        if len({(run.n, run.hash) for run in runs}) > 1:
            return Difference(Kind.LISTS, ordinal, tuple(runs)), offsets
        if _applied_differently(runs, ordinal):
            return Difference(Kind.ACTIONS, ordinal, tuple(runs)), offsets
        ordinal = min(run.last for run in runs) + 1
        at = [_advance(s, n, ordinal) for s, n in zip(streams, at, strict=True)]
    return None, offsets or [0] * len(streams)


def _advance(stream: Stream, index: int, ordinal: int) -> int:
    while index < len(stream.runs) - 1 and stream.runs[index].last < ordinal:
        index += 1
    return index


def _late(runs: list[Run], ordinal: int, now: list[int], offsets: list[int]) -> Difference:
    late = [turn - offset for turn, offset in zip(now, offsets, strict=True)]
    # who needed more turns to get to this round skipped one that the others had
    odd = tuple(n for n, extra in enumerate(late) if extra > min(late))
    return Difference(Kind.SKIPPED, ordinal, tuple(None if n in odd else run for n, run in enumerate(runs)), odd)


def _applied_differently(runs: list[Run], ordinal: int) -> bool:
    after = {(run.n_after, run.after_hash) for run in runs if ordinal < run.last or run.phase is Phase.APPLIED}
    return len(after) > 1


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
