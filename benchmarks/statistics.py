"""Numbers that a noisy machine can't fool easily: medians and quartiles over many short blocks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles


def quartiles(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Return the quartiles and the number of ``values`` (at least two)."""
    low, middle, high = quantiles(values, n=4)
    return {"median": round(middle, digits), "q1": round(low, digits), "q3": round(high, digits), "n": len(values)}
