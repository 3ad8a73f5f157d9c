"""Executes a plan: one worker process a rank, their logs read when they have ended."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from pdctl.protocol import structs
from pdctl.replay import position
from pdctl.replay.model import Worked
from pdctl.replay.plan import Plan
from pdctl.replay.worker_log import Line, Options

START_S = 180.0
"""How long workers may take to load torch, or an engine, and to find each other."""


def execute(plan: Plan, options: Options, *, started: Callable[[list[int], Path], None] | None = None) -> list[Worked]:
    """Run one worker a rank and return what each left, in the plan's order. started: is given their pids and their folder.

    A worker that hangs in a round ends itself after ``options.stall_s``; whatever is left then is ended here.
    """
    with tempfile.TemporaryDirectory(prefix="pdctl-replay-") as name:
        folder = Path(name)
        (folder / "plan").write_bytes(msgspec.msgpack.encode(plan))
        (folder / "options").write_bytes(msgspec.json.encode(options))
        workers = [_start(folder, rank) for rank in range(len(plan.ranks))]
        try:
            if started is not None:
                started([worker.pid for worker in workers], folder)
            _wait(workers, folder, options)
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                worker.wait()
        return [worked(folder, rank, worker.returncode) for rank, worker in enumerate(workers)]


def _start(folder: Path, rank: int) -> subprocess.Popen[bytes]:
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PDCTL_AGENT": "off"}
    with (folder / f"{rank}.out").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "pdctl.replay.worker", str(folder), str(rank)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(workers: list[subprocess.Popen[bytes]], folder: Path, options: Options) -> None:
    """Wait until every worker has ended; once one has, the others have as long as a hang may take to be noticed."""
    deadline = time.monotonic() + START_S
    last = [position.Position(-1, 0, position.Where.STARTING)] * len(workers)
    while any(worker.poll() is None for worker in workers):
        now = [position.read(folder / f"{rank}.position") for rank in range(len(workers))]
        if now != last:
            last, deadline = now, time.monotonic() + max(START_S, 4 * options.stall_s)
        if any(worker.poll() not in (None, 0) for worker in workers):
            deadline = min(deadline, time.monotonic() + 3 * options.stall_s + 5)
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def worked(folder: Path, rank: int, status: int) -> Worked:
    """Return what the worker of ``rank`` left in ``folder``, having ended with ``status``."""
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
