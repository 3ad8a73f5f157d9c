"""Where on a picture a time goes when long times in which nothing happens are drawn short. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

QUIET = 0.3
"""A time without anything is drawn short where it is this share of the whole, or more."""
SHORT = 0.25
"""What a quiet time is drawn as, as a share of all that is not quiet."""


@dataclass(frozen=True)
class Scale:
    """Piecewise straight. knots: (time, place), both rising. quiet: (since, until) of what is drawn short."""

    knots: tuple[tuple[float, float], ...]
    quiet: tuple[tuple[float, float], ...]

    def place(self, time: float) -> float:
        """Return the place of a time; beyond either end the places go on as the times do."""
        if time <= self.knots[0][0]:
            return self.knots[0][1] + time - self.knots[0][0]
        if time >= self.knots[-1][0]:
            return self.knots[-1][1] + time - self.knots[-1][0]
        at = bisect_right(self.knots, time, key=lambda knot: knot[0])
        (t0, x0), (t1, x1) = self.knots[at - 1], self.knots[at]
        return x0 + (time - t0) * (x1 - x0) / (t1 - t0)

    @property
    def busy(self) -> list[tuple[float, float]]:
        """Return the stretches of time that are drawn as long as they are."""
        ends = [self.knots[0][0], *(t for pair in self.quiet for t in pair), self.knots[-1][0]]
        return [(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if b > a]


def scale(times: Iterable[float], span: float) -> Scale:
    """Return a scale for 0 to ``span`` in which something happens at ``times``."""
    points = sorted({0.0, span, *(t for t in times if 0.0 <= t <= span)})
    quiet = [(a, b) for a, b in pairwise(points) if span > 0 and b - a >= QUIET * span]
    busy = span - sum(b - a for a, b in quiet)
    if busy <= 0.0:
        return Scale(((0.0, 0.0), (span, span)) if span > 0 else ((0.0, 0.0),), ())
    short, knots, place = SHORT * busy, [(0.0, 0.0)], 0.0
    for a, b in pairwise(points):
        place += min(short, b - a) if (a, b) in quiet else b - a
        knots.append((b, place))
    return Scale(tuple(knots), tuple(pair for pair in quiet if pair[1] - pair[0] > short))
