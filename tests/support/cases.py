"""Situations of docs/lab.md, made on a lab as its reader makes them.

with Cases(labs) as cases:
    cases.make("Requests reach decode only")
    cases.run("check")
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.support.labs import Lab, Labs
from tests.support.patience import until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "lab.md"
SECTION = "## Situations to make"


@dataclass(frozen=True)
class Line:
    """One command of a situation, without ``pdctl``. background: it goes on while the next ones run."""

    command: str
    background: bool


def situations(page: str = "") -> dict[str, list[list[Line]]]:
    """Return the blocks of each situation by its heading: how to make it, and where there is one, its healthy twin."""
    section = (page or PAGE.read_text()).partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    found = {}
    for part in section.split("\n### ")[1:]:
        heading, _, text = part.partition("\n")
        blocks = re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        found[heading] = [[_line(line) for line in block.splitlines()] for block in blocks]
    return found


def _line(text: str) -> Line:
    command = text.removeprefix("$ pdctl ")
    assert command != text, text
    return Line(command.removesuffix(" &"), command.endswith(" &"))


class Cases:
    """Makes situations one after the other on labs of one test, and ends what goes on in the background."""

    def __init__(self, labs: Labs) -> None:
        self.labs = labs
        self.loads: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Cases:  # noqa: PYI034
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.end()

    def run(self, command: str, code: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command line without its ``pdctl``; its exit code must be ``code``, where that is given."""
        return self.labs.cli(*shlex.split(command), code=code)

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a load that goes on, and wait until a rank has a request of it, or until it has ended."""
        lab = Lab(self.labs, "lab")
        before = _places(lab)
        load = self.labs.start(*shlex.split(command))
        self.loads.append(load)
        until("a request of the load", lambda: load.poll() is not None or _places(lab) - before)
        return load

    def make(self, name: str, *, twin: bool = False) -> Lab:
        """Make a situation of the page, or its healthy twin, on a new lab."""
        for line in situations()[name][twin]:
            if line.background:
                self.start(line.command)
            else:
                owner = f" --owner {os.getpid()}" if line.command.startswith("lab up") else ""
                self.run(line.command + owner, code=None if line.command.startswith("lab load") else 0)
        return Lab(self.labs, "lab")

    def end(self) -> None:
        """End the loads and the lab, so that the next situation can be made."""
        for load in self.loads:
            if load.poll() is None:
                load.kill()
            load.communicate()
        self.loads.clear()
        self.run("lab down")


def _places(lab: Lab) -> Counter[tuple[str, int]]:
    """Return how many times each rank has each room."""
    return Counter((rank, room) for rank, queues in lab.queues().items() for rooms in queues.values() for room in rooms)
