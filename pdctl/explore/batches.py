"""Schedules of a space as batches on a device: all of them in order, or a seeded sample. Memory is bounded by the batch.

All of them: digits count in mixed radix, the first fastest. The lowest digits that fill a batch are decoded once and stay on
the device; for the next batch only the digits that changed are written over. A sample: each digit is a hash of (seed, number
of the schedule, place of the digit), so that schedule n of a seed is the same in any batch, on any device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pdctl.explore.kernels import Batch
from pdctl.explore.space import Space

if TYPE_CHECKING:
    from torch import Tensor

CPU_BATCH, CUDA_BATCH = 1 << 17, 1 << 23
"""Schedules a batch at most: on a CPU so many that a row of bytes stays in its caches."""
CPU_BYTES, CUDA_BYTES = 256 << 20, 8 << 30
"""Memory for a batch and the scratch of its kernel, at most."""
_BYTES_A_CELL = 12
_SAMPLE_BYTES = 16
"""Temporary memory of one digit of one sampled schedule."""


def batch_size(space: Space, device: torch.device) -> int:
    """Return how many schedules to step at once."""
    most, memory = (CUDA_BATCH, CUDA_BYTES) if device.type == "cuda" else (CPU_BATCH, CPU_BYTES)
    return max(1, min(most, (memory - _SAMPLE_BYTES * most) // (_BYTES_A_CELL * len(space.radices))))


@dataclass(frozen=True)
class Numbered:
    """A batch, and the number of its first schedule: those of the batch follow each other."""

    start: int
    count: int
    batch: Batch


class _State:
    """Tensors for ``count`` schedules, of which the first so many are handed out."""

    def __init__(self, space: Space, count: int, device: torch.device) -> None:
        self.space, self.device = space, device
        shape = (space.ranks * space.requests, count)
        self.first, self.second, self.flag = (torch.zeros(shape, dtype=torch.uint8, device=device) for _ in range(3))
        late = any(options != (0,) for options in space.arrivals)
        self.arrivals = torch.zeros((space.requests, count), dtype=torch.uint8, device=device) if late else None
        table = [torch.tensor(options, dtype=torch.uint8).T.to(device) for options in space.cells]
        self._cells = [(t[0].contiguous(), t[1].contiguous(), t[2].contiguous()) for t in table]
        self._late = [torch.tensor(options, dtype=torch.uint8, device=device) for options in space.arrivals]

    def rows(self, digit: int) -> list[tuple[Tensor, Tensor]]:
        """Return (row of the state, its values by digit) for one place."""
        if digit < len(self._cells):
            return list(zip((self.first[digit], self.second[digit], self.flag[digit]), self._cells[digit], strict=True))
        request = digit - len(self._cells)
        return [] if self.arrivals is None else [(self.arrivals[request], self._late[request])]

    def batch(self, count: int) -> Batch:
        space = self.space
        shape = (space.ranks, space.requests, count)
        first, second, flag = (tensor[:, :count].view(shape) for tensor in (self.first, self.second, self.flag))
        late = self.arrivals[:, :count] if self.arrivals is not None else None
        return Batch(space.rounds, first, second, flag, late)


def every(space: Space, device: torch.device) -> Iterator[Numbered]:
    """Yield all schedules of ``space``, by number. A batch is overwritten by the next one."""
    radices = space.radices
    most = batch_size(space, device)
    low, period = 0, 1
    while low < len(radices) and period * radices[low] <= most:
        period *= radices[low]
        low += 1
    # Of the digit above those that fit whole, as many values as fit are in one batch.
    values = min(most // period, radices[low]) if low < len(radices) else 1
    state = _State(space, period * values, device)
    step = 1
    for digit in range(low):
        for row, table in state.rows(digit):
            row.view(-1, radices[digit], step).copy_(table[None, :, None])
        step *= radices[digit]
    if low == len(radices):
        yield Numbered(0, period, state.batch(period))
        return
    high = [0] * (len(radices) - low - 1)
    for digit in range(low + 1, len(radices)):
        for row, table in state.rows(digit):
            row.copy_(table[0])
    start = 0
    while True:
        for first in range(0, radices[low], values):
            here = min(values, radices[low] - first)
            for row, table in state.rows(low):
                row[: here * period].view(here, period).copy_(table[first : first + here, None])
            yield Numbered(start, here * period, state.batch(here * period))
            start += here * period
        for place in range(len(high)):
            high[place] = (high[place] + 1) % radices[low + 1 + place]
            for row, table in state.rows(low + 1 + place):
                row.copy_(table[high[place]])
            if high[place]:
                break
        else:
            return


def sample(space: Space, device: torch.device, seed: int, count: int) -> Iterator[Numbered]:
    """Yield ``count`` schedules drawn from ``space`` with ``seed``; one may be drawn twice."""
    most = batch_size(space, device)
    state = _State(space, min(most, count), device)
    for start in range(0, count, most):
        here = min(most, count - start)
        number = torch.arange(here, dtype=torch.int32, device=device)
        for place, radix in enumerate(space.radices):
            if radix > 1:
                digit = _draw(number, start, seed, place, radix)
                for row, table in state.rows(place):
                    torch.index_select(table, 0, digit, out=row[:here])
        yield Numbered(start, here, state.batch(here))


def drawn(space: Space, seed: int, number: int) -> list[int]:
    """Return the digits of schedule ``number`` of a sample."""
    one = torch.tensor([0], dtype=torch.int32)
    return [
        int(_draw(one, number, seed, place, radix)) if radix > 1 else 0 for place, radix in enumerate(space.radices)
    ]


# 32-bit finaliser of MurmurHash3 (Austin Appleby, public domain), on numbers that wrap.
_MIX = (0x85EBCA6B, 0xC2B2AE35)


def _draw(number: Tensor, start: int, seed: int, place: int, radix: int) -> Tensor:
    """Return digits below ``radix`` for schedules ``start`` + ``number``, as int32. They are uniform within 2**-16 × radix."""
    high, low = divmod(start, 1 << 32)
    key = _hash(_hash(seed & 0xFFFFFFFF) ^ _hash((seed >> 32) + 0x51ED27 * (place + 1)) ^ _hash(high + 0x2545F491))
    x = number.add(_signed(low)).mul_(_signed(0x9E3779B1)).bitwise_xor_(_signed(key))
    for shift, factor in ((16, _MIX[0]), (13, _MIX[1])):
        x.bitwise_xor_(x.bitwise_right_shift(shift).bitwise_and_((1 << 32 - shift) - 1)).mul_(_signed(factor))
    return x.bitwise_right_shift_(16).bitwise_and_(0xFFFF).mul_(radix).bitwise_right_shift_(16)


def _hash(value: int) -> int:
    value &= 0xFFFFFFFF
    for shift, factor in ((16, _MIX[0]), (13, _MIX[1]), (16, 1)):
        value = (value ^ value >> shift) * factor & 0xFFFFFFFF
    return value


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def digits_of(space: Space, number: int, seed: int | None) -> Sequence[int]:
    """Return the digits of schedule ``number``: of a sample with ``seed``, or (None) of all in order."""
    return space.digits(number) if seed is None else drawn(space, seed, number)
