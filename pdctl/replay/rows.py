"""The rooms in a rank's metadata slots, as in MetadataBuffers. The writer and the reader are different threads or streams.

On a CPU a thread writes, as the transfer engine does. On CUDA an asynchronous copy on its own stream writes, after a delay on
the device, so the write really races the poll that reads it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

WIDTH = 8
"""Columns of ``bootstrap_room``; the room is in the first (SGLang ``MetadataBuffers``)."""
SPIN_CYCLES = 200_000
"""How long a copy waits on the device, in clock cycles: about 0.1 ms."""


class Rows(Protocol):
    """Slots' rooms. tensor: (slots, WIDTH) int64, the bits of a uint64."""

    tensor: torch.Tensor

    def write(self, changes: Sequence[tuple[int, int]]) -> None:
        """Have (slot, room) pairs written."""

    def read(self, slots: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the rooms in these slots now."""

    def clear(self, slots: NDArray[np.int64]) -> None:
        """Zero slots whose owner has left."""


class CpuRows:
    """Rows in host memory. A write is over when :meth:`write` returns, so that a replay comes out the same each time."""

    def __init__(self, slots: int) -> None:
        self.tensor = torch.zeros((slots, WIDTH), dtype=torch.int64)
        self._view: NDArray[np.uint64] = self.tensor.numpy().view(np.uint64)
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done = threading.Semaphore(0)
        threading.Thread(target=self._run, name="rows", daemon=True).start()

    def _run(self) -> None:
        while True:
            for slot, room in self._orders.get():
                self._view[slot, 0] = room
            self._done.release()

    def write(self, changes: Sequence[tuple[int, int]]) -> None:
        """Have (slot, room) pairs written, and wait until they are."""
        self._orders.put(changes)
        self._done.acquire()

    def read(self, slots: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the rooms in these slots."""
        rooms: NDArray[np.uint64] = self._view[slots, 0]
        return rooms

    def clear(self, slots: NDArray[np.int64]) -> None:
        """Zero these slots."""
        self._view[slots, 0] = 0


class CudaRows:
    """Rows in a GPU's memory. A write is only begun when :meth:`write` returns: whether a poll sees it is the race."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.tensor = torch.zeros((slots, WIDTH), dtype=torch.int64, device=device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = device

    def write(self, changes: Sequence[tuple[int, int]]) -> None:
        """Begin to write (slot, room) pairs, each behind a delay on the device."""
        rooms = np.array([room for _, room in changes], np.uint64).view(np.int64)
        source = torch.from_numpy(rooms).pin_memory()
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]
            for place, (slot, _) in enumerate(changes):
                self.tensor[slot, 0].copy_(source[place], non_blocking=True)

    def read(self, slots: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return what these slots hold for a reader that does not wait for the writer."""
        wanted = torch.from_numpy(slots).to(self._device)
        rooms: NDArray[np.uint64] = self.tensor[wanted, 0].cpu().numpy().view(np.uint64)
        return rooms

    def clear(self, slots: NDArray[np.int64]) -> None:
        """Zero these slots."""
        self.tensor[torch.from_numpy(slots).to(self._device), 0] = 0


def rows_on(device: str, slots: int) -> Rows:
    """Return rows on ``cpu``, ``cuda`` or ``cuda:N``. Raises RuntimeError where torch has no such device."""
    place = torch.device(device)
    return CpuRows(slots) if place.type == "cpu" else CudaRows(slots, place)
