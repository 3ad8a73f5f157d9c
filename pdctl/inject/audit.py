"""The client's audit log: who placed or ended which fault on which rank, and failed renewals. Ranks have their own log."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pdctl.protocol.files import open_append
from pdctl.protocol.paths import user_dir
from pdctl.report.escaping import json_encoded


def audit_path(environ: Mapping[str, str]) -> Path:
    """Return the client's audit log: ``$XDG_STATE_HOME/pdctl/audit.jsonl``, under ``~/.local/state`` where unset."""
    return user_dir(environ, "XDG_STATE_HOME") / "audit.jsonl"


class Audit:
    """Append one JSON line per step. Invisible characters are escaped, since operators read the log on a terminal.

    A log that can't be written gives one note, and never stops healing.
    """

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        self._path = path
        self._complain = complain
        self._broken = False

    def write(self, what: str, **fields: Any) -> None:
        """Append ``what`` with ``fields``."""
        line = {"time": time.time(), "user": owner(), "what": what, **fields}
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = open_append(self._path)
            try:
                os.write(handle, f"{json_encoded(line)}\n".encode())  # one write: lines of two clients do not mix
            finally:
                os.close(handle)
        except OSError as error:
            if not self._broken:
                self._broken = True
                self._complain(f"audit log {self._path} can't be written: {error.strerror}")


def owner() -> str:
    """Return who places a fault, as other operators see it: user, host and pid."""
    try:
        user = os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}:{os.getpid()}"
