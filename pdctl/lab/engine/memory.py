"""Memory of a rank: the KV pool with its allocator (SGLang: ``mem_cache``)."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from pdctl.lab import toymodel

if TYPE_CHECKING:
    from pdctl.lab.engine.request import Req


class KVPool:
    """KV rows of one rank: layers × places × columns, int32. MLA-like: every tp rank holds all columns."""

    def __init__(self, layers: int, first_layer: int, size: int) -> None:
        self.layers = layers
        self.first_layer = first_layer
        self.size = size
        self.buffers = [torch.zeros((size, toymodel.COLUMNS), dtype=torch.int32) for _ in range(layers)]
        self._rows: list[NDArray[Any]] = [buffer.numpy() for buffer in self.buffers]
        self._free = deque(range(size))

    @property
    def item_len(self) -> int:
        """Bytes of one token in one layer."""
        return toymodel.COLUMNS * 4

    def data_ptrs(self) -> list[int]:
        """Return the address of each layer's buffer."""
        return [buffer.data_ptr() for buffer in self.buffers]

    def available_size(self) -> int:
        """Return the number of free places."""
        return len(self._free)

    def alloc(self, count: int) -> list[int] | None:
        """Take ``count`` places, None when there are not enough."""
        if count > len(self._free):
            return None
        return [self._free.popleft() for _ in range(count)]

    def free(self, places: list[int]) -> None:
        """Give places back."""
        self._free.extend(places)

    def fill(self, places: list[int], tokens: list[int], start: int) -> None:
        """Compute the rows of ``tokens`` at positions from ``start`` on, in this rank's layers."""
        for layer, rows in enumerate(self._rows):
            rows[places] = toymodel.kv_rows(tokens, start, self.first_layer + layer)

    def share(self, places: list[int], tp_rank: int, tp_size: int) -> int:
        """Return this rank's share of the attention over ``places``."""
        return sum(toymodel.share(rows[places], tp_rank, tp_size) for rows in self._rows)

    def save(self, places: list[int]) -> list[NDArray[Any]]:
        """Copy rows out, for a request that must give its places up."""
        return [rows[places].copy() for rows in self._rows]

    def load(self, places: list[int], saved: list[NDArray[Any]]) -> None:
        """Copy rows back in."""
        for rows, old in zip(self._rows, saved, strict=True):
            rows[places] = old


PRE_ALLOC = 2
"""Rows for requests before they run, for each place in the running batch (SGLang, up to 32 places)."""


class ReqToTokenPool:
    """Rows of a decode rank's requests (SGLang: ``DecodeReqToTokenPool``).

    ``size`` rows are the places of the running batch. ``pre_alloc_size`` more are for requests before they run.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.pre_alloc_size = PRE_ALLOC * size
        self.free_slots = deque(range(1, self.size + self.pre_alloc_size + 1))

    def available_size(self) -> int:
        """Return the number of free rows."""
        return len(self.free_slots)

    def alloc(self, req: Req) -> None:
        """Give a request a row. Raises IndexError where there is none."""
        req.req_pool_idx = self.free_slots.popleft()

    def free(self, req: Req) -> None:
        """Take a request's row back, if it has one."""
        if req.req_pool_idx is not None:
            self.free_slots.append(req.req_pool_idx)
            req.req_pool_idx = None


def group_concurrent_contiguous(source: list[int], destination: list[int]) -> list[tuple[int, int, int]]:
    """Return (first source, first destination, count) of runs that are contiguous on both sides."""
    if not source:
        return []
    src, dst = np.asarray(source), np.asarray(destination)
    cuts = [0, *(np.flatnonzero((np.diff(src) != 1) | (np.diff(dst) != 1)) + 1).tolist(), len(src)]
    return [(int(src[a]), int(dst[a]), b - a) for a, b in itertools.pairwise(cuts)]
