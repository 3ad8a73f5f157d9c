"""Faults placed on a pair of real servers through the command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.engine.env import ROOT
from tests.engine.harness import Pair
from tests.support.patience import patience, until


class Fault:
    """``pdctl inject`` in the foreground, until it is healed by Ctrl-C."""

    def __init__(self, pair: Pair, *arguments: str, rank: str = "decode:tp1") -> None:
        self._pair = pair
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pdctl.cli",
                "inject",
                *arguments,
                "--rank",
                rank,
                "--for",
                "5m",
                "-o",
                "json",
            ],
            env={**os.environ, **pair.agent_environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until("the fault is in place", lambda: self.counts() is not None, 60)

    def counts(self) -> dict[str, Any] | None:
        """Return its row of ``pdctl faults``, None before it is in place."""
        if self.process.poll() is not None:
            raise AssertionError(f"inject ended: {self.process.communicate()}")
        done = self._pair.pdctl("faults", "-o", "json")
        rows = json.loads(done.stdout)["faults"] if done.stdout else []
        return rows[0] if rows else None

    def fired(self) -> bool:
        """Whether it has fired."""
        return bool((self.counts() or {}).get("fired"))

    def heal(self) -> dict[str, Any]:
        """Press Ctrl-C; returns how the fault went."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=patience(60))
        assert self.process.returncode == 130, err
        went: dict[str, Any] = json.loads(out)
        assert went["healed"]
        assert went["failed"] == 0
        assert self._pair.pdctl("faults").returncode == 0
        return went


@contextlib.contextmanager
def fault(pair: Pair, *arguments: str, rank: str = "decode:tp1") -> Iterator[Fault]:
    """Have a fault in place as long as the block lasts."""
    placed = Fault(pair, *arguments, rank=rank)
    try:
        yield placed
    finally:
        if placed.process.poll() is None:
            placed.process.kill()
            pair.heal()
