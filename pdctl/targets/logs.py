"""How a rank ended, as its engine's log says: the main process of a server notes the exit code of each rank that it loses."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pdctl.protocol.files import open_regular
from pdctl.protocol.paths import owners

TAIL = 64 * 1024
"""Bytes at the end of a log that are read. A server that loses a rank ends within seconds, and so does its log."""
_ENDED = re.compile(rb"Subprocess \S{1,64} \(pid=([0-9]{1,10})\) crashed with exit code (-?[0-9]{1,3})\b")


def exit_status(log: Path | None, pid: int) -> int:
    """Return with what status a rank ended, as waitpid gives it, 0 where the end of its log does not tell.

    log: the file that the rank wrote to. pid: as the engine knows it. Nothing else of the log is used.
    """
    if log is None:
        return 0
    try:
        with os.fdopen(open_regular(log), "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid not in owners():
                return 0
            file.seek(max(0, found.st_size - TAIL))
            tail = file.read(TAIL)
    except (OSError, ValueError):
        return 0
    codes = [int(code) for of, code in _ENDED.findall(tail) if int(of) == pid]
    if not codes:
        return 0
    return -codes[-1] & 0x7F if codes[-1] < 0 else (codes[-1] & 0xFF) << 8
