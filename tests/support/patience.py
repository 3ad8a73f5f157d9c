"""How long a test waits for what must happen. No test asserts a time: the limits here only turn a hang into a failure.

A limit is written for a quiet machine. It stretches by one factor, which is measured when a session first asks for it and
once more whenever a wait runs out, and follows the load upwards: a machine that became busy meanwhile gets the longer limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WORK = (sys.executable, "-I", "-S", "-c", "sum(range(3_000_000))")
QUIET_S = 0.07
"""What the start of Python and this sum take on a quiet machine."""
MOST = 20.0
"""A machine that is slower than this by more fails its tests."""

_factor = 0.0


def factor() -> float:
    """Return by how much waits are stretched now: 1.0 on a quiet machine, at most ``MOST``."""
    global _factor  # noqa: PLW0603 - one machine, one factor
    _factor = min(MOST, max(_factor or measure(), os.getloadavg()[0] / len(os.sched_getaffinity(0))))
    return _factor


def measure() -> float:
    """Measure the machine anew and return the factor that waits get from now on; it never shrinks within a session."""
    global _factor  # noqa: PLW0603 - one machine, one factor
    begun = time.perf_counter()
    subprocess.run(WORK, check=True, timeout=600)
    took = time.perf_counter() - begun
    cores = len(os.sched_getaffinity(0))
    beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    _factor = min(MOST, max(1.0, _factor, took / QUIET_S, os.getloadavg()[0] / cores, beside / cores))
    return _factor


def patience(seconds: float) -> float:
    """Return ``seconds`` of a quiet machine as seconds of this one."""
    return seconds * factor()


def until(what: str, look: Callable[[], T], limit_s: float = 60.0, every_s: float = 0.05) -> T:
    """Return the first true answer of ``look``, asked every ``every_s`` seconds.

    ``what`` says what is waited for. ``limit_s`` are seconds of a quiet machine.

    Raises:
        AssertionError: there was none within the limit, and a fresh look at the machine did not stretch it.
    """
    begun = time.monotonic()
    while True:
        answer = look()
        if answer:
            return answer
        waited = time.monotonic() - begun
        if waited > patience(limit_s) and waited > limit_s * measure():
            raise AssertionError(f"not within {waited:.0f} s: {what}; the last look gave {answer!r}")
        time.sleep(every_s)
