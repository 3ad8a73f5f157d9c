"""How far a worker got, in a mapped file that outlives it: a collective may hang, or end the process by SIGABRT."""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_FORMAT = struct.Struct("<qqq")


class Where(IntEnum):
    """Where in its round a worker is."""

    STARTING = 0
    BETWEEN = 1
    IN_COLLECTIVE = 2
    DONE = 3


class Position(NamedTuple):
    """A worker's round (of the replay), the polls it takes into the collective, and where it is."""

    round: int
    polls: int
    where: Where


class PositionFile:
    """The writer's side."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_FORMAT.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FORMAT.size)
        self._pack = _FORMAT.pack_into

    def enter(self, number: int, polls: int) -> None:
        """Say that the collective of a round is entered with so many polls."""
        self._pack(self._map, 0, number, polls, 2)

    def leave(self, number: int, polls: int) -> None:
        """Say that it is over."""
        self._pack(self._map, 0, number, polls, 1)

    def done(self, number: int) -> None:
        """Say that all rounds are over."""
        self._pack(self._map, 0, number, 0, 3)

    def read(self) -> Position:
        """Return what was said last."""
        number, polls, where = _FORMAT.unpack_from(self._map)
        return Position(number, polls, Where(where))


def read(path: Path) -> Position:
    """Return how far the worker of this file got; a worker that made none is STARTING."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    if len(data) < _FORMAT.size:
        return Position(-1, 0, Where.STARTING)
    number, polls, where = _FORMAT.unpack_from(data)
    return Position(number, polls, Where(where))
