"""One command of pdctl in a process of its own, with limits: a silent rank or a full disk ends only that."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pdctl.protocol.errors import Exit
from pdctl.watch.actions import end_group

ONE_BYTES = 1 << 30
"""Bytes of one file."""
_WELL = (Exit.CLEAN, Exit.FINDING, Exit.PARTIAL)
_END = b"\n}\n"
"""Of a document in JSON."""


class Part:
    """A command that has been started, and writes ``file``: what it prints, or a trace where it is ``record``.

    arguments: of pdctl. env: its whole environment. Raises OSError where it can't be started, for instance on a full disk.
    """

    def __init__(self, file: Path, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        self.file = file
        self.code = -1
        self.said = ""
        self._began = time.monotonic()
        own_file = arguments[0] == "record"
        with open(os.devnull if own_file else file, "wb") as out:  # noqa: PTH123
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pdctl.cli", *arguments, *([str(file)] if own_file else ())],
                cwd="/",  # nothing is imported from where pdctl was started
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        with suppress(OSError, ValueError):  # a lower limit of its own stays
            if not 0 <= resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)[0] < ONE_BYTES:
                resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (ONE_BYTES, ONE_BYTES))

    def ended(self, within_s: float, over: Callable[[], str]) -> str:
        """Wait for it, and return why its file could not be made, "" where it was; what there is of it is removed then.

        within_s: seconds from its start. over: says why it must end now, "" while it need not. Afterwards ``code`` is its exit
        code, ``said`` the first line that it wrote to standard error, and ``seconds`` how long it took.
        """
        try:
            return self._ended(within_s, over)
        finally:
            self.seconds = round(time.monotonic() - self._began, 3)

    def _ended(self, within_s: float, over: Callable[[], str]) -> str:
        while True:
            try:
                _, said = self._process.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                late = f"after {within_s:g} s" if time.monotonic() - self._began > within_s else ""
                if why := over() or late:
                    self.stop()
                    return f"not complete {why}"
        self.code = self._process.returncode
        self.said = said.decode("utf-8", "replace").partition("\n")[0].removeprefix("pdctl: ")
        if self.code in _WELL and _complete(self.file):
            return ""
        self.file.unlink(missing_ok=True)
        return self.said or f"exit {self.code}"

    def stop(self) -> None:
        """End it, and remove what there is of its file."""
        end_group(self._process)
        self.file.unlink(missing_ok=True)


def _complete(file: Path) -> bool:
    """Return whether a part is there, and not cut off: a command that lacks something exits as one whose disk is full."""
    try:
        with file.open("rb") as part:
            size = part.seek(0, os.SEEK_END)
            part.seek(max(0, size - len(_END)))
            return size > 0 and (file.suffix != ".json" or part.read() == _END)
    except OSError:
        return False
