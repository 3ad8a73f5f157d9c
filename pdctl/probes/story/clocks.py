"""How far the clocks of ranks are apart, from what must have come before what. Pure: whole nanoseconds in and out.

A *clock* reads ``local``; ``local + offset`` is the time on the line that all share. One statement "the moment ``before``
of clock i is not later than the moment ``after`` of clock j" bounds the two offsets: ``offset_i - offset_j <= after - before``.
Nobody leaves a collective before everyone has entered it, so each round that two ranks share gives a bound in both
directions, and what the sum of them leaves open is the uncertainty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRIFT = 1e-4
"""Two clocks are taken to run apart by at most this share of the time between: a quartz is within 50 millionths."""


@dataclass(frozen=True)
class Bound:
    """``offset[before] - offset[after] <= most`` (ns)."""

    before: int
    after: int
    most: int


@dataclass(frozen=True)
class Offset:
    """The offset of a clock to the reference's, ns. low / high: between these it is, None where nothing bounds it there."""

    ns: int
    low: int | None
    high: int | None

    @property
    def within_ns(self) -> int | None:
        """How wrong ``ns`` can be at most, None where that is not known."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.ns, self.ns - self.low)


class Contradiction(ValueError):  # noqa: N818  # it names what was found
    """The bounds can't all hold."""


@dataclass(frozen=True)
class Passed:
    """When one rank was in the rounds of a stream: ordinals with a time each, sorted by ordinal.

    enters: the round was entered at that time, or the time is of an earlier round. leaves: the rank had left the round's
    collective by that time.
    """

    enters: tuple[NDArray[np.int64], NDArray[np.int64]]
    leaves: tuple[NDArray[np.int64], NDArray[np.int64]]


def shared_rounds(one: Passed, other: Passed, *, near_one: int, near_other: int) -> int | None:
    """Return the least ``most`` of "``other`` has entered before ``one`` leaves" over the rounds given; None without any.

    It bounds ``offset[other] - offset[one]``. near_one, near_other: the moment on each clock for which the bound is wanted;
    a round long before or after it counts for less, by DRIFT.
    """
    ordinals, entered = other.enters
    left, times = one.leaves
    at = np.searchsorted(ordinals, left, "right") - 1
    known = at >= 0
    if not known.any():
        return None
    entries = entered[at[known]]
    leaves = times[known]
    away = np.maximum(np.abs(leaves - near_one), np.abs(entries - near_other))
    return int((leaves - entries + np.ceil(away * DRIFT).astype(np.int64)).min())


def align(walls: Sequence[int], bounds: Iterable[Bound], reference: int) -> list[Offset]:
    """Return the offset of every clock to that of number ``reference``.

    walls: per clock what its wall clock says its offset to 1970 is, used where the bounds leave a side open. Where both
    sides are bounded the offset is the middle: the middles keep every bound. Raises Contradiction.
    """
    least = _closure(len(walls), bounds)
    offsets = []
    for n, wall in enumerate(walls):
        above, below = least[n][reference], least[reference][n]
        low = None if below is None else -below
        if low is not None and above is not None:
            offsets.append(Offset((low + above) // 2, low, above))
            continue
        guess = wall - walls[reference]
        if low is not None:
            guess = max(guess, low)
        if above is not None:
            guess = min(guess, above)
        offsets.append(Offset(guess, low, above))
    return offsets


def _closure(count: int, bounds: Iterable[Bound]) -> list[list[int | None]]:
    """Return the tightest bound on ``offset[i] - offset[j]`` that follows, for all i and j (None: none does)."""
    least: list[list[int | None]] = [[0 if i == j else None for j in range(count)] for i in range(count)]
    for bound in bounds:
        known = least[bound.before][bound.after]
        if known is None or bound.most < known:
            least[bound.before][bound.after] = bound.most
    for via in range(count):
        onward = least[via]
        for row in least:
            first = row[via]
            if first is None:
                continue
            for to, second in enumerate(onward):
                if second is None:
                    continue
                known = row[to]
                if known is None or first + second < known:
                    row[to] = first + second
    for n in range(count):
        own = least[n][n]
        if own is not None and own < 0:
            raise Contradiction(f"what is known of the clocks contradicts itself by {-own} ns")
    return least


def groups_of(same: Sequence[tuple[str, int]], tolerance_ns: int) -> list[int]:
    """Return the number of the clock of each rank. same: per rank its host and what its wall clock reads at its time 0.

    Ranks of one host whose wall clocks agree on that within ``tolerance_ns`` were started in one boot: one monotonic clock.
    """
    known: list[tuple[str, int]] = []
    numbers = []
    for host, zero in same:
        for number, (known_host, known_zero) in enumerate(known):
            if host == known_host and abs(zero - known_zero) <= tolerance_ns:
                numbers.append(number)
                break
        else:
            numbers.append(len(known))
            known.append((host, zero))
    return numbers
