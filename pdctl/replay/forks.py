"""The parent of a replay's workers: a process that imports torch once and forks the workers, for one plan after another.

``python -m pdctl.replay.forks`` reads a line ``RANKS FOLDER`` for each plan. It writes a line with the workers' pids,
then a line ``RANK STATUS`` when a worker ends; a negative status is a signal. It ends with its standard input or with
its parent, and the workers end with it. Its standard output ends with the last worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have this process killed when the one that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Fork workers for each line of standard input, until it ends."""
    die_with_parent()
    with contextlib.suppress(Exception):  # the worker meets it again, and what it says is kept
        import pdctl.replay.worker  # noqa: F401  # starts no thread and opens no socket, so that it can be forked
    for line in sys.stdin.buffer:
        ranks, _, folder = line.removesuffix(b"\n").partition(b" ")
        _run(Path(os.fsdecode(folder)), int(ranks))


def _run(folder: Path, ranks: int) -> None:
    rank_of = {_fork(folder, rank): rank for rank in range(ranks)}
    _say(*rank_of)
    while rank_of:
        pid, status = os.wait()
        _say(rank_of.pop(pid), os.waitstatus_to_exitcode(status))


def _say(*numbers: int) -> None:
    os.write(1, " ".join(map(str, numbers)).encode() + b"\n")


def _fork(folder: Path, rank: int) -> int:
    parent = os.getpid()
    return os.fork() or _child(folder, rank, parent)


def _child(folder: Path, rank: int, parent: int) -> NoReturn:
    try:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        out = os.open(folder / f"{rank}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup(1)  # stays open for as long as this process is there
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, of in ((nothing, 0), (out, 1), (out, 2)):
            os.dup2(fd, of)
        from pdctl.replay.worker import work

        work(folder, rank)
    except BaseException:  # noqa: BLE001  # whatever it was: its last line is what the judge says
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
