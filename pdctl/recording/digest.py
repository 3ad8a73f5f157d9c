"""Digests of rounds: two ranks whose digests of the same rounds are equal did the same in all of them.

What is compared of a round is its list, what was done with it where that is known, and by how many turns at the queue the rank
is further than at an earlier round. Between two runs nothing of this changes, so a digest is a sum over the places where
something does. How a rank has split its rounds into runs does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdctl.protocol.model import Phase

SIZE = 16
"""Bytes of a digest: two sums of 64 bits that are mixed differently."""
_SEEDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
_NOT_KNOWN = np.uint64(0x5851F42D4C957F2D)
"""Stands for the outcome of a round that was not applied."""
_U64 = NDArray[np.uint64]


class Digests:
    """Of the rounds of one stream. table: its runs by ordinal, without a round missing between two of them."""

    def __init__(self, table: NDArray[Any]) -> None:
        ordinal, repeat = table["ordinal"].astype(np.int64), table["repeat"].astype(np.int64)
        self.first, self.last = int(ordinal[0]), int(ordinal[-1] + repeat[-1] - 1)
        # Of a run that was not applied, the last round is a place of its own: what came of it is not known.
        open_runs = np.flatnonzero((table["flags"] & 15) != int(Phase.APPLIED))
        split = open_runs[repeat[open_runs] > 1]
        row = np.insert(np.arange(len(table)), split + 1, split)
        places = ordinal[row]
        places[split + np.arange(len(split)) + 1] += repeat[split] - 1
        after = table["after_hash"][row].astype(np.uint64)
        after[open_runs + np.searchsorted(split, open_runs, "right")] = _NOT_KNOWN
        self._places = places
        self._values: tuple[_U64, ...] = (
            table["n"][row].astype(np.uint64),
            table["hash"][row].astype(np.uint64),
            after,
        )
        self._turns: _U64 = (table["visit"] - table["ordinal"])[row].astype(np.uint64)
        changed = np.zeros(len(row), np.bool_)
        for column in (*self._values, self._turns):
            changed[1:] |= column[1:] != column[:-1]
        at = np.flatnonzero(changed)
        steps = self._turns[at] - self._turns[at - 1]
        columns = (places[at].astype(np.uint64), *(column[at] for column in self._values), steps)
        self._sums = []
        for seed in _SEEDS:
            mixed = _mixed(seed, *columns)
            sums = np.zeros(len(row) + 1, np.uint64)
            sums[at + 1] = mixed
            self._sums.append(np.cumsum(sums, dtype=np.uint64))

    def of(self, base: int, cuts: Sequence[int]) -> list[bytes] | None:
        """Return the digest of the rounds from each of ``cuts`` (ascending) up to the next, without that; None if one is gone.

        base: the round from which turns are counted.
        """
        asked = np.array([base, *cuts], np.int64)
        if len(cuts) < 2 or asked.min() < self.first or asked.max() > self.last + 1 or (np.diff(asked[1:]) <= 0).any():
            return None
        at = np.searchsorted(self._places, asked, "right") - 1  # of the end, which may be one after the last round
        start, end = at[1:-1], np.searchsorted(self._places, asked[2:], "left")
        turns = self._turns[start] - self._turns[at[0]]
        values = [column[start] for column in self._values]
        both = [
            _mixed(~seed & (1 << 64) - 1, asked[1:-1].astype(np.uint64), *values, turns) + sums[end] - sums[start + 1]
            for seed, sums in zip(_SEEDS, self._sums, strict=True)
        ]
        pairs = np.stack(both, axis=1).astype("<u8")
        return [pair.tobytes() for pair in pairs]


def whole(table: NDArray[Any]) -> bool:
    """Return whether no round is missing between two runs of a stream."""
    ends = table["ordinal"] + table["repeat"]
    return bool((table["ordinal"][1:] == ends[:-1]).all())


def _mixed(seed: int, *columns: _U64) -> _U64:
    """Return 64 bits for each row of these columns (splitmix64 of one after the other)."""
    state = np.full(len(columns[0]), seed, np.uint64)
    moved = np.empty_like(state)
    for column in columns:
        state += column
        state ^= np.right_shift(state, np.uint64(30), out=moved)
        state *= np.uint64(0xBF58476D1CE4E5B9)
        state ^= np.right_shift(state, np.uint64(27), out=moved)
        state *= np.uint64(0x94D049BB133111EB)
        state ^= np.right_shift(state, np.uint64(31), out=moved)
    return state
