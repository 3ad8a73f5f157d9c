"""Executes plans: one worker process a rank, their logs read when they have ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import msgspec

from pdctl.protocol import structs
from pdctl.replay import position
from pdctl.replay.model import Worked
from pdctl.replay.plan import Plan
from pdctl.replay.worker_log import Line, Options

START_S = 180.0
"""How long workers may take to load torch, or an engine, and to find each other."""


class Workers:
    """The workers of one execution after another, forked by one process that has loaded torch for all of them."""

    def __init__(self) -> None:
        self._forks: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def __enter__(self) -> Workers:  # noqa: PYI034
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end()

    def execute(
        self, plan: Plan, options: Options, *, started: Callable[[list[int], Path], None] | None = None
    ) -> list[Worked]:
        """Run one worker a rank. Return their results in the plan's order. started: called with their pids and their folder.

        A worker that hangs in a round ends itself after ``options.stall_s``. Remaining workers are ended here.
        """
        with tempfile.TemporaryDirectory(prefix="pdctl-replay-") as name:
            folder = Path(name)
            (folder / "plan").write_bytes(msgspec.msgpack.encode(plan))
            (folder / "options").write_bytes(msgspec.json.encode(options))
            statuses: dict[int, int] = {}
            try:
                self._start(folder, len(plan.ranks))
                self._wait(statuses, len(plan.ranks), folder, options, started)
            finally:
                if len(statuses) < len(plan.ranks):
                    self._end()
            return [worked(folder, rank, statuses.get(rank, -signal.SIGKILL)) for rank in range(len(plan.ranks))]

    def _start(self, folder: Path, ranks: int) -> None:
        if self._forks is None:
            self._forks = subprocess.Popen(
                [sys.executable, "-m", "pdctl.replay.forks"],
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PDCTL_AGENT": "off"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        assert self._forks.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has been ended: what it does not say tells
            self._forks.stdin.write(b"%d %s\n" % (ranks, os.fsencode(folder)))

    def _wait(
        self,
        statuses: dict[int, int],
        ranks: int,
        folder: Path,
        options: Options,
        started: Callable[[list[int], Path], None] | None,
    ) -> None:
        """Wait until every worker has ended. After the first end, the others get the time after which a hang is noticed."""
        deadline = time.monotonic() + START_S
        last = [position.Position(-1, 0, position.Where.STARTING)] * ranks
        pids: list[int] = []
        while len(statuses) < ranks:
            said = self._said()
            if said is None:  # the process that forks has been ended, and its workers with it
                return
            for numbers in said:
                if not pids:
                    pids = numbers
                    if started is not None:
                        started(pids, folder)
                else:
                    statuses[numbers[0]] = numbers[1]
            now = [position.read(folder / f"{rank}.position") for rank in range(ranks)]
            if now != last:
                last, deadline = now, time.monotonic() + max(START_S, 4 * options.stall_s)
            if any(statuses.values()):
                deadline = min(deadline, time.monotonic() + 3 * options.stall_s + 5)
            if time.monotonic() > deadline:
                return

    def _said(self) -> list[list[int]] | None:
        """Return the numbers of each line that the process that forks has written by now, None when it has ended."""
        assert self._forks is not None
        assert self._forks.stdout is not None
        if select.select([self._forks.stdout], [], [], 0.02)[0]:
            read = os.read(self._forks.stdout.fileno(), 65536)
            if not read:
                return None
            *lines, self._unread = (self._unread + read).split(b"\n")
            return [[int(number) for number in line.split()] for line in lines]
        return []

    def _end(self) -> None:
        """End the process that forks and its workers, and wait until all are gone."""
        if self._forks is not None:
            self._forks.kill()
            self._forks.communicate()
            self._forks, self._unread = None, b""


def worked(folder: Path, rank: int, status: int) -> Worked:
    """Return the result of the worker of ``rank``, from ``folder`` and its exit ``status``."""
    try:
        raw = (folder / f"{rank}.log").read_bytes()
    except FileNotFoundError:
        raw = b""
    lines = tuple(structs.from_json(line, Line) for line in raw.splitlines() if line.endswith(b"}"))
    at = position.read(folder / f"{rank}.position")
    if not lines and at.where is position.Where.STARTING:
        said = (folder / f"{rank}.out").read_text(errors="replace").strip().splitlines()
        lines = (Line("failed", 0, text=said[-1][:300] if said else f"exit status {status}"),)
    return Worked(lines, at, status)
