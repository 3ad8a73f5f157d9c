"""Both sides log: what a rank writes into its recording, and the client's audit log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from pdctl.inject.faults import Fault
from pdctl.inject.table import Recorder
from pdctl.model import EventKind

_KINDS = {
    "armed": EventKind.FAULT_ARMED,
    "fired": EventKind.FAULT_FIRED,
    "ended": EventKind.FAULT_ENDED,
}


def recorder(event: Callable[..., None]) -> Recorder:
    """Return what a FaultTable records with; ``event`` is the recording's (:meth:`RecordingWriter.event`).

    A held write that was done late, dropped or failed becomes a NOTE with the fault's number in ``a``.
    """

    def record(what: str, fault: Fault, room: int, text: str) -> None:
        kind = _KINDS.get(what)
        if kind is None:
            note = f"{fault.kind}: held write {what}" + (f": {text}" if text else "")
            event(EventKind.NOTE, room=room, a=fault.number, text=note)
        elif kind is EventKind.FAULT_FIRED:
            tp = int(text[2:]) if text[2:].isdigit() else -1
            event(kind, room=room, a=fault.number, b=tp, text=fault.kind)
        else:
            event(kind, room=room, a=fault.number, text=text)

    return record


def audit_path(environ: dict[str, str] | os._Environ[str] = os.environ) -> Path:
    """Return the client's audit log: ``$XDG_STATE_HOME/pdctl/audit.jsonl``, under ``~/.local/state`` where unset."""
    state = environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path(environ.get("HOME") or "~").expanduser() / ".local" / "state"
    return base / "pdctl" / "audit.jsonl"


class Audit:
    """Appends one JSON line per step. A log that can't be written is said once and stops nothing that heals."""

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        self._path = path
        self._complain = complain
        self._broken = False

    def write(self, what: str, **fields: Any) -> bool:
        """Append ``what`` with ``fields``; False when it could not be written."""
        line = {"time": time.time(), "user": owner(), "what": what, **fields}
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(handle, msgspec.json.encode(line) + b"\n")  # one write: lines of two clients do not mix
            finally:
                os.close(handle)
        except OSError as error:
            if not self._broken:
                self._broken = True
                self._complain(f"audit log {self._path} can't be written: {error.strerror}")
            return False
        return True


def owner() -> str:
    """Return who places a fault, as other operators see it: user, host and pid."""
    user = os.environ.get("SUDO_USER") or os.environ.get("USER") or str(os.getuid())
    return f"{user}@{os.uname().nodename}:{os.getpid()}"
