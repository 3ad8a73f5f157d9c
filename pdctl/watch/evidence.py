"""Keeps what an alarm rests on before anything restarts: a trace, stacks, settings and the finding, in a directory each.

They are made by pdctl itself, in processes of their own, with limits: a rank that is silent, or a full disk, ends one of them
and not the watch. What is complete is renamed to its place; what is not is removed.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.processes import look
from pdctl.report import escaping
from pdctl.watch.actions import Action, Say
from pdctl.watch.incidents import BEGAN, Change
from pdctl.watch.parts import Part

MOST = 50
"""Alarms whose evidence a directory has."""
MOST_BYTES = 4 << 30
"""Bytes that a directory has, of all alarms. Nothing in it is ever removed to make room."""
EACH_S = 60.0
"""How long one part may take."""
PARTS = (
    ("trace.pdtrace", ("record",)),
    ("stacks.json", ("stacks", "-o", "json")),
    ("settings.json", ("dump", "config", "-o", "json")),
)
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
            started = [(name, Part(folder / name, arguments, self._env)) for name, arguments in those]
            wrong += [f"{name}: {why}" for name, part in started if (why := part.ended(self._within_s, self._ending))]
        if len(wrong) == len(PARTS):
            raise OSError(f"nothing could be had: {'; '.join(wrong)}")
        return "; ".join(wrong)

    def _ending(self) -> str:
        return "at the end of the watch" if self._over.is_set() else ""

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
