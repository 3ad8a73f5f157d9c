"""Ranks whose rows are written through fault sites, in processes of their own, and the commands that break and heal them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support import cli_server
from tests.support.patience import until

ROOT = Path(__file__).parents[2]
INJECT = ("inject", "--rank", "decode:tp1", "--delay-metadata")


class Cluster:
    """Ranks of one test in directories of their own, and pdctl as its user runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PDCTL", "TINY"))},
            "PDCTL_RUN_DIR": str(folder / "run"),
            "PDCTL_RECORD_DIR": str(folder / "rec"),
            "PDCTL_RECORD_SIZE": str(1 << 20),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "COLUMNS": "200",
        }
        self.log = folder / "rows"

    def rank(self, role: str, *args: str, **env: str) -> subprocess.Popen[str]:
        env = {"PDCTL_ARM": "1", "PDCTL_CLUSTER": "test", **env}
        rank = self._popen(
            [sys.executable, "-m", "tests.system.targets.writer", str(self.log), "--role", role, *args], env
        )
        assert rank.stdout is not None
        line = rank.stdout.readline()
        assert line.startswith("ready"), rank.communicate()[1]
        return rank

    def pair(self, *args: str, **env: str) -> subprocess.Popen[str]:
        """Start decode tp0 and tp1 and one prefill rank, which is returned."""
        for tp in "01":
            self.rank("decode", "--tp", tp, "--size", "2", **env)
        return self.rank("prefill", *args, **env)

    def _popen(self, command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**self.env, **env}, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def start(self, *args: str, program: str = "") -> subprocess.Popen[str]:
        """Start a command of pdctl. program: Python text that runs it in another way."""
        return self._popen([sys.executable, *(("-c", program) if program else ("-m", "pdctl.cli")), *args], {})

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return cli_server.run(args, self.env, cwd=ROOT, limit_s=90)

    def faults(self, *args: str) -> list[dict[str, Any]]:
        done = self.run("faults", "-o", "json", *args)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["faults"]

    def rows(self) -> Counter[tuple[int, int, str]]:
        text = self.log.read_text() if self.log.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        return Counter((int(room), int(tp), how) for room, tp, how in map(str.split, lines))

    def late(self) -> list[tuple[int, int]]:
        return [(room, tp) for room, tp, how in self.rows() if how == "late"]

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "state/pdctl/audit.jsonl").read_text().splitlines()]

    def __enter__(self) -> Cluster:  # noqa: PYI034
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def held(cluster: Cluster) -> bool:
    return any(row["held"] for row in cluster.faults())


def every_row_once(cluster: Cluster) -> None:
    """Every room up to the newest has been written to tp0 and tp1, each exactly once, late or not."""
    newest = max(room for room, _, _ in cluster.rows())

    def written() -> bool:
        rows = cluster.rows()
        assert set(rows.values()) == {1}
        seen = Counter((room, tp) for room, tp, _ in rows if room <= newest)
        assert set(seen.values()) == {1}
        return len(seen) == 2 * (newest - 1000)

    until("all rows", written)
