"""Starts processes that are read from outside, and finds the Pythons that this machine has for them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support import cli_server

PROGRAM = Path(__file__).parents[1] / "system" / "targets" / "lookalike.py"
READABLE = ((3, 10), (3, 11), (3, 12), (3, 13))


def pythons() -> dict[str, str]:
    """Return version → interpreter: this one, and those that pyenv has installed."""
    found = {f"{sys.version_info[0]}.{sys.version_info[1]}": os.path.realpath(sys.executable)}
    for path in sorted(Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python3.*")):
        version = path.name.removeprefix("python")
        if version.replace(".", "").isdecimal():
            found.setdefault(version, str(path))
    return found


class Ranks:
    """Lookalikes with the titles of schedulers, and the environment for pdctl to look for them only."""

    def __init__(self, folder: Path) -> None:
        self.children: list[subprocess.Popen[str]] = []
        for name in ("run", "record"):
            (folder / name).mkdir(mode=0o700)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("PDCTL_", "XDG_RUNTIME"))}
        self.env |= {"PDCTL_RUN_DIR": str(folder / "run"), "PDCTL_RECORD_DIR": str(folder / "record")}

    def start(self, *args: object, python: str = "", title: str = "sglang::scheduler_TP0") -> subprocess.Popen[str]:
        """Start one and return when it is ready."""
        child = self.begin(*args, python=python, title=title)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    def begin(self, *args: object, python: str = "", title: str = "sglang::scheduler_TP0") -> subprocess.Popen[str]:
        """Start one and return at once."""
        interpreter = python or os.path.realpath(sys.executable)
        argv = [title, str(PROGRAM), *map(str, args)]
        child = subprocess.Popen(argv, executable=interpreter, stdout=subprocess.PIPE, text=True, env=self.env)
        self.children.append(child)
        self.env["PDCTL_OUTSIDE"] = ",".join(str(c.pid) for c in self.children)
        return child

    def pdctl(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a command on these ranks."""
        return cli_server.run(args, self.env, limit_s=200)


@contextlib.contextmanager
def ranks(folder: Path) -> Iterator[Ranks]:
    """Give a place for lookalikes; all of them end with the block."""
    started = Ranks(folder)
    try:
        yield started
    finally:
        for child in started.children:
            child.kill()
        for child in started.children:
            child.communicate()
