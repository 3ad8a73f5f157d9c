"""Answers a comparison from the rank's recording file, in the gateway: the rank itself has no part in it.

numpy is loaded at the first such question. Where the file can't be read, the rank is asked instead.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pdctl.protocol import structs, wire

if TYPE_CHECKING:
    from pdctl.recording.answers import Answerer

OP = "rounds"
MAX_SIZE = 48 << 20
"""Bytes of a recording whose rounds the gateway has room for; a larger one is read whole."""


class Rounds:
    """Of the recording at ``path``, "" none, which the process with this pid and start time writes."""

    def __init__(self, path: str, pid: int, proc_start: int) -> None:
        self._path, self._pid, self._proc_start = path, pid, proc_start
        self._answerer: Answerer | None = None

    def answer(self, request: wire.Request) -> bytes | None:
        """Return the reply, None where the rank has to be asked. Raises ValueError for a question that is none."""
        if not self._path:
            return None
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # it takes memory for each thread that it may use
        try:
            from pdctl.recording.answers import Answerer
            from pdctl.recording.excerpt import Wanted
        except ImportError:
            self._path = ""
            return None
        wanted = structs.convert(request.args, Wanted)
        try:
            if self._answerer is None:
                if Path(self._path).stat().st_size > MAX_SIZE:
                    return None
                self._answerer = Answerer(Path(self._path), self._pid, self._proc_start)
            part = self._answerer.answer(wanted)
        except (OSError, ValueError, MemoryError):
            self._answerer = None
            return None
        return wire.encode(wire.Reply(id=request.id, body=msgspec.Raw(wire.encode(part))))
