"""Find the scheduler processes of this host by their titles. /proc/PID/environ is useless: setproctitle overwrites it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pdctl.protocol.processes import Process, look_with_parent

TITLE = "sglang::scheduler"
_SHORT = TITLE[:15]  # what the kernel keeps as a process's name
_PLACE = re.compile(r"_(DP|PP|TP)([0-9]{1,6})(?![0-9])")


@dataclass(frozen=True)
class Candidate:
    """A process that calls itself a scheduler. title: its whole name; parent: pid of what started it."""

    pid: int
    title: str
    process: Process
    parent: int

    def place(self, name: str) -> int:
        """Return its place in a group as its title says it (``TP``, ``DP``, ``PP``), 0 where it does not."""
        return next((int(number) for kind, number in _PLACE.findall(self.title) if kind == name), 0)


def candidates() -> list[Candidate]:
    """Return the scheduler processes that this process can see, zombies too."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            title = _title(folder)
            if title:
                pid = int(folder.name)
                one = look_with_parent(pid)
                if one.process.state:
                    found.append(Candidate(pid, title, one.process, one.parent))
    return sorted(found, key=lambda candidate: candidate.pid)


def candidate(pid: int) -> Candidate:
    """Return any process as a candidate, whatever it calls itself."""
    one = look_with_parent(pid)
    return Candidate(pid, _title(Path(f"/proc/{pid}")), one.process, one.parent)


def _title(folder: Path) -> str:
    try:
        with (folder / "cmdline").open("rb") as file:
            title = file.read(200)
        if not title:  # it has ended, and nobody has asked how
            name = (folder / "comm").read_text(errors="replace").strip()
            return name if name == _SHORT else ""
    except OSError:
        return ""
    text = title.split(b"\0")[0].decode(errors="replace").strip()
    return text if text.startswith(TITLE) else ""
