"""Checksums of many records at once: where those of a group are right, so is one checksum over all of the group.

CRC-32 is linear, so the checksum of a group follows from those that its records carry, by numpy for all groups at the same
time. A group with one torn record never has it. Where two are torn, their changes cancel each other once in 2^32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

_GROUP = 32
"""Records of a group, a power of two."""
_Sums = NDArray[np.uint32]


def record_sums(data: bytes, places: NDArray[np.int64], size: int, body: int) -> _Sums:
    """Return the CRC-32 of the first ``body`` bytes of the records of ``size`` bytes at these places."""
    return np.array([crc32(data[at : at + body]) for at in (places * size).tolist()], np.uint32)


def right_sums(data: bytes, places: NDArray[np.int64], sums: _Sums, size: int, body: int) -> NDArray[np.bool_]:
    """Return at which of these ``places``, ascending, the record's :func:`record_sums` is that of ``sums``.

    A record has ``body`` bytes, zeros, and in its last four bytes that sum.
    """
    right = np.zeros(len(places), np.bool_)
    groups = places // _GROUP
    full = np.flatnonzero(np.bincount(groups, minlength=1) == _GROUP)
    at = np.searchsorted(groups, full)
    rows = at[:, np.newaxis] + np.arange(_GROUP)
    view, length = memoryview(data), _GROUP * size
    found = np.array([crc32(view[n * length : (n + 1) * length]) for n in full.tolist()], np.uint32)
    right[rows[found == _expected(sums[rows], size, body)]] = True
    left = np.flatnonzero(~right)
    right[left] = record_sums(data, places[left], size, body) == sums[left]
    return right


def _expected(sums: _Sums, size: int, body: int) -> _Sums:
    """Return the CRC-32 of each group of records, by what each of them carries: one row a group."""
    if not len(sums):
        return np.zeros(0, np.uint32)
    steps, last, constant = _steps(size, body)
    for step in steps:
        sums = step(sums[:, 0::2]) ^ sums[:, 1::2]
    return last(sums[:, 0]) ^ constant


_Step = Callable[[_Sums], _Sums]


@cache
def _steps(size: int, body: int) -> tuple[list[_Step], _Step, np.uint32]:
    """Return what joins halves of groups of 2, 4, 8… records, what makes a group's sum of the last, and what is added to it."""
    joins = []
    records = 1
    while records < _GROUP:
        joins.append(_linear(lambda value, length=records * size: _moved(value, length)))  # type: ignore[misc]
        records *= 2
    last = _linear(lambda value: _moved(value, size - body) ^ _moved(value, 4))
    one = bytes(body)
    sums = np.full((1, _GROUP), crc32(one), np.uint32)
    for join in joins:
        sums = join(sums[:, 0::2]) ^ sums[:, 1::2]
    record = one + bytes(size - body - 4) + crc32(one).to_bytes(4, "little")
    return joins, last, last(sums[:, 0])[0] ^ np.uint32(crc32(record * _GROUP))


def _moved(value: int, length: int) -> int:
    """Return what becomes of a difference in a CRC-32 when ``length`` bytes follow."""
    zeros = bytes(length)
    return crc32(zeros, value) ^ crc32(zeros)


def _linear(of: Callable[[int], int]) -> _Step:
    """Return a function over numbers of 32 bits that keeps exclusive or as one over arrays."""
    tables = np.zeros((4, 256), np.uint32)
    for table, shift in zip(tables, range(0, 32, 8), strict=True):
        for bit in range(8):
            table[1 << bit : 2 << bit] = table[: 1 << bit] ^ np.uint32(of(1 << shift + bit))

    def step(values: _Sums) -> _Sums:
        parts = np.ascontiguousarray(values, "<u4").view(np.uint8).reshape(*values.shape, 4)
        first, second, third, fourth = (tables[n].take(parts[..., n]) for n in range(4))
        found: _Sums = first ^ second ^ third ^ fourth
        return found

    return step
