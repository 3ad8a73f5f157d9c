"""Injected agents that have not started yet. There is at most one for each process, and later commands can see it.

An agent reports its start in a file in the run directory (:mod:`pdctl.agent.injected`). While its thread waits in the process,
there is a second file beside it, which says whether that agent will take faults.
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
    """An agent that has not started yet. result: the file for its report. armed: whether it takes faults."""

    result: Path
    armed: bool


def results(folder: Path, stem: str) -> list[Path]:
    """Return the files for the start reports of this process's agents, written or not."""
    return sorted(folder.glob(f"{stem}.{_TOKEN}{RESULT_SUFFIX}"))


def mark_waiting(result: Path, *, armed: bool) -> None:
    """Mark that the agent with report file ``result`` has a thread in the process now. Raises OSError."""
    paths.write_private(_mark(result), (_ARMED if armed else "not armed").encode())


def forget(result: Path) -> None:
    """Remove the files of one agent: its mark and its report."""
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


def load_report(one: Waiting) -> str | None:
    """Return the report of an agent, "" while it waits, None if it was cancelled."""
    try:
        return text(one.result)
    except OSError:
        return None


@contextmanager
def alone(folder: Path, stem: str, wait_s: float) -> Iterator[bool]:
    """Hold the lock for injecting an agent into the process.

    Yield False if another command held the lock for too long. Raises OSError if the directory can't be written.
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
    """Return the text of the report at ``path``. Raises OSError."""
    return read_regular(path, _MOST).decode(errors="replace").strip()


def _mark(result: Path) -> Path:
    return result.with_name(f"{result.name.removesuffix(RESULT_SUFFIX)}{_MARK}")
