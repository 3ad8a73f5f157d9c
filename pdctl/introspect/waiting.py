"""Agents that were put into a process and have not started yet: one at a time, and known to whoever comes after.

In the run directory, beside the file in which an agent says what came of its start (:mod:`pdctl.agent.injected`), lies another
one while its thread waits in the process: it says whether that agent will take faults.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pdctl.agent.injected import RESULT_SUFFIX
from pdctl.protocol import paths
from pdctl.protocol.files import open_lock, read_regular

LOOK_S = 0.02
_MARK = f".waits{RESULT_SUFFIX}"
_TOKEN = "[0-9a-f]" * 8
_ARMED = "armed"
_MOST = 64 * 1024


@dataclass(frozen=True)
class Waiting:
    """An agent that starts by itself. result: where it will say what came of it. armed: it takes faults."""

    result: Path
    armed: bool


def results(folder: Path, stem: str) -> list[Path]:
    """Return the files in which agents of this process said, or will say, what came of their start."""
    return sorted(folder.glob(f"{stem}.{_TOKEN}{RESULT_SUFFIX}"))


def waits(result: Path, *, armed: bool) -> None:
    """Say that the agent which answers in ``result`` has a thread in the process now. Raises OSError."""
    paths.write_private(_mark(result), (_ARMED if armed else "not armed").encode())


def forget(result: Path) -> None:
    """Remove what says of one agent that it waits, and what came of it."""
    _mark(result).unlink(missing_ok=True)
    result.unlink(missing_ok=True)


def waiting(folder: Path, stem: str) -> Waiting | None:
    """Return the agent that waits in this process, None without one."""
    for result in results(folder, stem):
        try:
            armed = text(_mark(result)) == _ARMED
            if not text(result):
                return Waiting(result, armed)
        except OSError:
            continue  # its thread was never begun, or it has been taken back
    return None


def said(one: Waiting) -> str | None:
    """Return what came of an agent, "" while it waits, None where it was taken back."""
    try:
        return text(one.result)
    except OSError:
        return None


@contextmanager
def alone(folder: Path, stem: str, wait_s: float) -> Iterator[bool]:
    """Keep others from putting an agent into the same process meanwhile.

    Yields False where somebody else was about to for so long. Raises OSError where the directory can't be written.
    """
    path = folder / f"{stem}.lock{RESULT_SUFFIX}"
    end = time.monotonic() + wait_s
    while (lock := _locked(path)) < 0:
        if time.monotonic() >= end:
            yield False
            return
        time.sleep(LOOK_S)
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def _locked(path: Path) -> int:
    """Return a descriptor of the file, locked, -1 while somebody else has it."""
    lock = open_lock(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_ino == path.stat().st_ino:  # else whoever had it before has removed it
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return -1


def text(path: Path) -> str:
    """Return what an agent left in ``path``. Raises OSError."""
    return read_regular(path, _MOST).decode(errors="replace").strip()


def _mark(result: Path) -> Path:
    return result.with_name(f"{result.name.removesuffix(RESULT_SUFFIX)}{_MARK}")
