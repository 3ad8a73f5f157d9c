"""Budgets that refill with time. A budget limits CPU time, or a number of anything.

Standard library only: ranks use it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")


class Budget:
    """What one user may still use: seconds of CPU, or counts. It refills by ``share`` a second, up to ``burst``."""

    __slots__ = ("_at", "_burst", "_left", "_share")

    def __init__(self, share: float, now: float, burst: float) -> None:
        """Start full, with ``burst``, at ``now`` (monotonic)."""
        self._share, self._burst, self._left, self._at = share, burst, burst, now

    def left(self, now: float) -> float:
        """Return what is left at ``now`` (monotonic). It is below 0 when more was taken than was left."""
        self._left = min(self._burst, self._left + (now - self._at) * self._share)
        self._at = now
        return self._left

    def due(self, now: float) -> float:
        """Return the seconds from ``now`` (monotonic) until something is left, 0 if something is left already."""
        left = self.left(now)
        return 0.0 if left > 0 else -left / self._share + 0.001

    def take(self, used: float) -> None:
        """Subtract what was used."""
        self._left -= used


def budget_of(budgets: OrderedDict[K, Budget], who: K, share: float, burst: float, most: int, now: float) -> Budget:
    """Return the budget of one user, a new one for a new one. At most ``most`` are kept, those asked for last."""
    budget = budgets.get(who)
    if budget is None:
        budget = budgets[who] = Budget(share, now, burst)
        if len(budgets) > most:
            budgets.popitem(last=False)
    else:
        budgets.move_to_end(who)
    return budget
