"""Copy rows from a device on pdctl's own stream, with a time limit. pdctl never waits for the engine's streams.

After the time limit a copy under way goes on by itself. Its memory is kept until it has ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_POLL_S = 5e-4


class DeviceCopy:
    """Pinned host memory of the shape of some CUDA tensors, and the stream that fills it.

    Made while the rank starts: pinning memory may wait for the device. Raises what torch raises where there is none.
    """

    def __init__(self, tensors: dict[str, Any]) -> None:
        torch: Any = sys.modules["torch"]
        self._torch = torch
        self._device = next(iter(tensors.values())).device
        self._host = {n: torch.empty(t.shape, dtype=t.dtype, device="cpu", pin_memory=True) for n, t in tensors.items()}
        with torch.cuda.device(self._device):
            self._stream = torch.cuda.Stream(self._device)
            self._event = torch.cuda.Event()
        self._under_way = False

    def rows(self, tensors: dict[str, Any], slots: Sequence[int], wait_s: float) -> dict[str, Any] | None:
        """Return host tensors with the rows of ``slots`` at the same indices; None if ``wait_s`` was too short."""
        deadline = time.monotonic() + wait_s
        if self._under_way and not wait_until(self._event.query, deadline):
            return None
        # Whole runs of rows: plain copies, so that no kernel has to find a place on a busy device.
        with self._torch.cuda.device(self._device), self._torch.cuda.stream(self._stream):
            for name, tensor in tensors.items():
                for start, stop in runs(slots):
                    self._host[name][start:stop].copy_(tensor[start:stop], non_blocking=True)
            self._event.record(self._stream)
        self._under_way = True
        if not wait_until(self._event.query, deadline):
            return None
        self._under_way = False
        return {name: self._host[name] for name in tensors}


def wait_until(
    done: Callable[[], bool],
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Return whether ``done`` came true before ``deadline``; it is asked again and again, at least once."""
    while not done():
        if clock() >= deadline:
            return False
        sleep(_POLL_S)
    return True


def runs(slots: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the runs of numbers that follow each other in ``slots``, in ascending order."""
    start = stop = -1
    for slot in sorted(set(slots)):
        if slot != stop:
            if stop > start:
                yield start, stop
            start = slot
        stop = slot + 1
    if stop > start:
        yield start, stop
