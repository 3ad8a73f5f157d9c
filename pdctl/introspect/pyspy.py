"""Stacks and the addresses of locals from py-spy, which reads them from outside without stopping the process.

py-spy is a program, no library; SGLang depends on it, so that it is nearly always next to the engine's Python.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pdctl.protocol import durations, extras, structs
from pdctl.protocol.model import Frame

MORE_TIME = "Give it more: --timeout, --rank-timeout."
_PAUSES_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Pauses between looks at a stack that could not be followed: a forward changes it thousands of times a second."""
NEXT_STEP = f"{extras.install('attach')}, or put a py-spy on PATH."


class PySpyError(Exception):
    """py-spy is not there or could not read the process; next_step says what to do about it."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


class _TornError(PySpyError):
    """py-spy ran, and could not follow the stack: it changed meanwhile."""


class Local(msgspec.Struct):
    """A local variable and where its object is; 0 unknown."""

    name: str
    addr: int | None = 0


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0
    locals: list[Local] | None = None


class _Thread(msgspec.Struct):
    os_thread_id: int | None = None
    thread_name: str | None = None
    owns_gil: bool = False
    frames: list[_Frame] = []


class Stack(msgspec.Struct):
    """A thread's frames, innermost first, and the locals of each where they were asked for. files: as Python has them."""

    frames: tuple[Frame, ...]
    files: tuple[str, ...]
    locals: tuple[tuple[Local, ...], ...]
    holds_gil: bool = False


_decoder = structs.json_decoder(list[_Thread])


def find(pid: int, environments: Sequence[Path] = ()) -> str:
    """Return the py-spy to use for a process: on PATH, next to pdctl's Python, else in the engine's own environment.

    Raises PySpyError if there is none. In that environment it is used where only root and this user can change it.
    """
    on_path = shutil.which("py-spy")
    if on_path:
        return str(Path(on_path).absolute())  # it is run from elsewhere
    beside = Path(sys.executable).parent / "py-spy"
    if os.access(beside, os.X_OK):
        return str(beside)
    unsafe = ""
    for folder in environments:
        for root in (Path("/"), Path(f"/proc/{pid}/root")):
            path = root / folder.relative_to("/") / "bin/py-spy"
            if not os.access(path, os.X_OK):
                continue
            if _ours(root, path):
                return str(path)
            unsafe = f"; others can change {path}, or a link leads to it"
    raise PySpyError(f"py-spy is not installed: it finds where a process's objects begin{unsafe}", NEXT_STEP)


def _ours(root: Path, path: Path) -> bool:
    """Return whether only root and this user can change a file, or put another one in its place. No link leads to it.

    Who could do so while it is looked at would have this user run what he likes.
    """
    parts = path.relative_to(root).parts
    try:
        every = [root.stat(), *(root.joinpath(*parts[: n + 1]).lstat() for n in range(len(parts)))]
    except OSError:
        return False
    sticky = stat.S_IFDIR | stat.S_ISVTX
    return all(
        one.st_uid in (0, os.geteuid())
        and not stat.S_ISLNK(one.st_mode)
        and (not one.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or one.st_mode & sticky == sticky)
        for one in every
    )


def main_thread(command: str, pid: int, timeout_s: float, *, with_locals: bool = False) -> Stack:
    """Return the stack of a process's main thread. Raises PySpyError, also where it takes longer than ``timeout_s``.

    The process runs meanwhile: where its stack could not be followed, py-spy looks again while time is left.
    """
    arguments = [command, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    if with_locals:
        arguments.append("--locals")
    end = time.monotonic() + timeout_s
    for pause_s in _PAUSES_S:
        try:
            return _dump(arguments, pid, end - time.monotonic())
        except _TornError:
            if time.monotonic() + pause_s >= end:
                raise
            time.sleep(pause_s)
    return _dump(arguments, pid, end - time.monotonic())


def _dump(arguments: Sequence[str], pid: int, timeout_s: float) -> Stack:
    if timeout_s <= 0:
        raise PySpyError("no time was left for py-spy to look at it", MORE_TIME)
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(timeout_s, 0.01),
            check=False,
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        raise PySpyError(f"py-spy took longer than {durations.show(max(timeout_s, 0.01))}", MORE_TIME) from None
    except OSError as error:
        raise PySpyError(f"{arguments[0]} can't be run: {error.strerror}", NEXT_STEP) from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        reason = next((line for line in said if line.startswith("Error:")), said[0]).removeprefix("Error: ")
        raise _TornError(f"py-spy can't read it: {reason[:200]}")
    try:
        return parse(done.stdout, pid)
    except ValueError as error:
        raise PySpyError(f"py-spy's answer can't be read: {error}"[:200]) from None


def parse(text: bytes, pid: int) -> Stack:
    """Return the main thread of what ``py-spy dump --json`` wrote. Raises ValueError for other text.

    py-spy puts a class before a method's name where it can tell it; here, as in a rank's own answer, it is left out.
    """
    threads = _decoder.decode(text)
    main = _main(threads, pid)
    frames = main.frames if main is not None else []
    return Stack(
        frames=tuple(Frame(f.name.rpartition(".")[2], "/".join(f.filename.split("/")[-2:]), f.line) for f in frames),
        files=tuple(f.filename for f in frames),
        locals=tuple(tuple(f.locals or ()) for f in frames),
        holds_gil=main.owns_gil if main is not None else False,
    )


def _main(threads: Sequence[_Thread], pid: int) -> _Thread | None:
    named = next((t for t in threads if t.os_thread_id == pid or t.thread_name == "MainThread"), None)
    if named is not None:
        return named
    # Up to Python 3.10 an interpreter does not keep its threads' numbers, and py-spy would have to stop them to ask.
    unnamed = [t for t in threads if t.os_thread_id is None]
    began = [t for t in unnamed if t.frames and t.frames[-1].name == "<module>"]
    chosen = began or unnamed
    return chosen[-1] if chosen else None  # an interpreter's list of threads ends with its first
