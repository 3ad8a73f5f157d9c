"""The options of a worker, and its log. This module does not import torch: the judge uses it too."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a worker's log.

    what: ``came`` (the queue is another before this round), ``changed`` (it is another after it), ``differs`` (the engine's
    functions and ours), ``hung``, ``failed`` (the collective raised), ``end``. left: (request, Action). list: requests in
    the queue afterwards.
    held: requests that the gate held back, since the last line.
    """

    what: str
    round: int
    left: tuple[tuple[int, int], ...] = ()
    list: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    text: str = ""
    seconds: float = 0.0


class Options(msgspec.Struct, frozen=True):
    """How to replay. gate: whether polls are gated. device: of the rows. engine: "" for our own functions, or ``sglang``.

    stall_s: how long a round may take before it counts as hung.
    """

    gate: bool
    device: str = "cpu"
    backend: str = "gloo"
    engine: str = ""
    stall_s: float = 5.0


class Log:
    """A worker's log: lines of JSON, each written at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)

    def write(self, line: Line) -> None:
        """Append a line."""
        os.write(self._file, msgspec.json.encode(line) + b"\n")
