"""Keeps what an alarm rests on before anything restarts: a trace, stacks, settings and the finding, in a directory each.

They are made by pdctl itself, in processes of their own, with limits: a rank that is silent, or a full disk, ends one of them
and not the watch. What is complete is renamed to its place; what is not is removed.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.processes import look
from pdctl.report import escaping
from pdctl.watch.actions import Action, Say, end_group
from pdctl.watch.incidents import BEGAN, Change

MOST = 50
"""Alarms whose evidence a directory has."""
MOST_BYTES = 4 << 30
"""Bytes that a directory has, of all alarms. Nothing in it is ever removed to make room."""
ONE_BYTES = 1 << 30
"""Bytes of one file."""
EACH_S = 60.0
"""How long one part may take."""
PARTS = (
    ("trace.pdtrace", ("record",)),
    ("stacks.json", ("stacks", "-o", "json")),
    ("settings.json", ("dump", "config", "-o", "json")),
)
_WELL = (Exit.CLEAN, Exit.FINDING, Exit.PARTIAL)
_END = b"\n}\n"
"""Of a document in JSON."""
_UNDER_WAY = ".making-"
_PLACE = re.compile(r"\d{8}T\d{6}Z-PD\d+-\d+")


class Evidence(Action):
    """Keeps the evidence of each alarm in ``folder``. env: of the commands that look at the ranks.

    Raises PdctlError (USAGE) where the folder can't be made or written.
    """

    name = "--on-finding record"

    def __init__(self, folder: Path, env: Mapping[str, str], say: Say, *, within_s: float = EACH_S) -> None:
        self._folder, self._within_s = folder.absolute(), within_s
        # Python itself puts cut-off bytecode in its cache where a disk is full.
        self._env = {**env, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "not writable")
            self._sweep()
        except OSError as error:
            said = f"{folder} can't be used for evidence: {error.strerror}"
            raise PdctlError(said, "Name a directory that this user may write.", Exit.USAGE) from None
        super().__init__(say)

    def act(self, change: Change) -> None:
        """Keep the evidence of an alarm, and say where it is."""
        if change.change != BEGAN:
            return
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(change.at_wall_ns / 1e9))
        making = self._folder / f"{_UNDER_WAY}{os.getpid()}-{look(os.getpid()).start}"
        place = self._folder / f"{at}-{change.code}-{change.incident}"
        try:
            if full := self._full():
                self.trouble("full", f"no evidence of {change.code} is kept: {full}")
                return
            making.mkdir(mode=0o700)
            wrong = self._made(making, change)
            making.rename(place)
        except OSError as error:
            self.trouble("disk", f"no evidence of {change.code} is kept: {error.strerror or error}")
        else:
            self.well()
            self._say(f"evidence of #{change.incident} {change.code}: {place}" + (f"; {wrong}" if wrong else ""))
        finally:
            shutil.rmtree(making, ignore_errors=True)

    def _made(self, folder: Path, change: Change) -> str:
        """Make all parts, the first two at once. Return what could not be made, in words. Raises OSError on a full disk."""
        with (folder / "finding.json").open("x", encoding="utf-8") as file:
            file.write(f"{escaping.json_encoded(change)}\n")
        wrong = []
        for those in (PARTS[:2], PARTS[2:]):
            started = [(name, self._start(folder, name, arguments)) for name, arguments in those]
            wrong += [f"{name}: {why}" for name, process in started if (why := self._ended(folder / name, process))]
        if len(wrong) == len(PARTS):
            raise OSError(f"nothing could be had: {'; '.join(wrong)}")
        return "; ".join(wrong)

    def _start(self, folder: Path, name: str, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
        own_file = arguments == ("record",)
        with open(os.devnull if own_file else folder / name, "wb") as out:  # noqa: PTH123
            process = subprocess.Popen(
                [sys.executable, "-m", "pdctl.cli", *arguments, *([str(folder / name)] if own_file else ())],
                cwd="/",  # nothing is imported from where a watch was started
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        with suppress(OSError, ValueError):  # a lower limit of its own stays
            if not 0 <= resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[0] < ONE_BYTES:
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (ONE_BYTES, ONE_BYTES))
        return process

    def _ended(self, file: Path, process: subprocess.Popen[bytes]) -> str:
        """Return why a part could not be made, "" where it was; what there is of it is removed then."""
        end = time.monotonic() + self._within_s
        said = b""
        while True:
            try:
                _, said = process.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > end or self._over.is_set():
                    end_group(process)
                    file.unlink(missing_ok=True)
                    why = "at the end of the watch" if self._over.is_set() else f"after {self._within_s:g} s"
                    return f"not complete {why}"
        if process.returncode in _WELL and _complete(file):
            return ""
        file.unlink(missing_ok=True)
        return (
            said.decode("utf-8", "replace").partition("\n")[0].removeprefix("pdctl: ") or f"exit {process.returncode}"
        )

    def _full(self) -> str:
        """Return why no more is kept, "" where there is room."""
        had = [one for one in self._folder.iterdir() if _PLACE.fullmatch(one.name)]
        if len(had) >= MOST:
            return f"{self._folder} has that of {len(had)} alarms; move some away"
        size = sum(map(_size, had))
        return f"{self._folder} has {size >> 20} MiB; move some away" if size >= MOST_BYTES else ""

    def _sweep(self) -> None:
        """Remove what watches that were killed had under way."""
        for one in self._folder.glob(f"{_UNDER_WAY}*"):
            pid, _, start = one.name.removeprefix(_UNDER_WAY).partition("-")
            if pid.isdecimal() and start.isdecimal() and not look(int(pid)).runs_since(int(start)):
                shutil.rmtree(one, ignore_errors=True)


def _size(place: Path) -> int:
    """Return the bytes of what is there; what is moved away meanwhile is not."""
    size = 0
    for folder, _, names in os.walk(place):
        for name in names:
            with suppress(FileNotFoundError):
                size += Path(folder, name).lstat().st_size
    return size


def _complete(file: Path) -> bool:
    """Return whether a part is there, and not cut off: a command that lacks something exits as one whose disk is full."""
    try:
        with file.open("rb") as part:
            size = part.seek(0, os.SEEK_END)
            part.seek(max(0, size - len(_END)))
            return size > 0 and (file.suffix != ".json" or part.read() == _END)
    except OSError:
        return False
