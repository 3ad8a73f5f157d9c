"""How a rank ended, as its engine's log says: its main process notes the exit code of each process that it loses."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from pdctl.protocol.files import open_regular
from pdctl.protocol.paths import owners

TAIL = 64 * 1024
"""Bytes at the end of a log that are read. A server that loses a process ends within seconds, and so does its log."""
_BEGAN = re.compile(rb"^\[[^\]\n]{1,80}\] server_args=", re.MULTILINE)
"""What a server writes as it begins. A log that is appended to has several of them, and pids come again."""
_ENDED = re.compile(rb"Subprocess ([A-Za-z0-9_-]{1,64}) \(pid=([0-9]{1,10})\) crashed with exit code (-?[0-9]{1,3})\b")


class Logged(NamedTuple):
    """What the log of a server says of its end. status: of the rank, as waitpid gives it, 0 where it does not tell.

    service: name of another process of the server, no scheduler, that was lost first, "" none; service_status: of that one.
    """

    status: int = 0
    service: str = ""
    service_status: int = 0


def ending(log: Path | None, pid: int) -> Logged:
    """Return how a rank ended by the end of its log, as far as that is of the server's last start.

    log: the file that the rank wrote to. pid: as the engine knows it. Nothing else of the log is used.
    """
    lost = _lost(log)
    own = [code for _, of, code in lost if of == pid]
    others = [(name, code) for name, _, code in lost if not name.startswith("scheduler")]
    if own or not others:
        return Logged(_status(own[-1]) if own else 0)
    name, code = others[0]
    return Logged(0, name, _status(code))


def _lost(log: Path | None) -> list[tuple[str, int, int]]:
    """Return name, pid and exit code of each process that the main process noted as lost."""
    if log is None:
        return []
    try:
        with os.fdopen(open_regular(log), "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid not in owners():
                return []
            file.seek(max(0, found.st_size - TAIL))
            tail = file.read(TAIL)
    except (OSError, ValueError):
        return []
    since = max((began.start() for began in _BEGAN.finditer(tail)), default=0)
    return [(name.decode(), int(pid), int(code)) for name, pid, code in _ENDED.findall(tail, since)]


def _status(code: int) -> int:
    return -code & 0x7F if code < 0 else (code & 0xFF) << 8
