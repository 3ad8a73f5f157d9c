"""Budgets that fill up again: how much CPU time, or how many of anything, somebody may use.

Standard library only: ranks use it.
"""

from __future__ import annotations


class Budget:
    """Seconds of CPU, or counts, that are left to somebody; they come back at ``share`` a second, up to ``burst``."""

    __slots__ = ("_at", "_burst", "_left", "_share")

    def __init__(self, share: float, now: float, burst: float) -> None:
        """All of ``burst`` is there at ``now`` (monotonic)."""
        self._share, self._burst, self._left, self._at = share, burst, burst, now

    def left(self, now: float) -> float:
        """Return what is left at ``now`` (monotonic); under 0 when more was taken than there was."""
        self._left = min(self._burst, self._left + (now - self._at) * self._share)
        self._at = now
        return self._left

    def due(self, now: float) -> float:
        """Return the seconds from ``now`` (monotonic) until something is left, 0 where there is."""
        left = self.left(now)
        return 0.0 if left > 0 else -left / self._share + 0.001

    def take(self, used: float) -> None:
        """Note that so much was used."""
        self._left -= used


__all__ = ["Budget"]
