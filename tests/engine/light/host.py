"""Runs scripts on light ranks: :mod:`.rank` is the program, this is how a test talks to it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdctl.discovery import FoundRank, discover
from pdctl.recording.reader import BadRecording, Recording, read
from tests.engine.env import EngineEnv, Namespace

PROGRAM = Path(__file__).with_name("rank.py")
UP_S = 240.0


@dataclass
class LightRun:
    """The ranks of one script. ended: name → exit status, of those that have ended."""

    folder: Path
    pids: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        """What agents and commands need to find these ranks."""
        return {"PDCTL_RUN_DIR": str(self.folder / "run"), "PDCTL_RECORD_DIR": str(self.folder / "record")}

    def said(self, name: str) -> list[list[Any]]:
        """Return what a rank printed: ``["transferred", turn, room]`` and the like."""
        lines = (self.folder / f"{name}.out").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("[") and line.endswith("]") and '"' in line]

    def output(self) -> str:
        """Return everything the ranks printed, for the message of a failed assertion."""
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.out")))

    def ranks(self) -> list[FoundRank]:
        """Return the ranks pdctl finds."""
        return [rank for rank in discover(self.environ).ranks if rank.state != "no agent"]

    def recordings(self) -> dict[str, Recording]:
        """Return ``tp0`` → recording, from the files."""
        found = {}
        for path in sorted((self.folder / "record").glob("*.pdrec")):
            with contextlib.suppress(BadRecording):  # it is being made
                recording = read(path)
                found[f"tp{recording.identity.tp}"] = recording
        return found

    def kill(self) -> None:
        """Kill the ranks that have not ended, by pid."""
        for name, pid in self.pids.items():
            if name not in self.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class LightHost:
    """One process that has imported one version of the engine and becomes any rank."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self._said: queue.Queue[list[Any] | None] = queue.Queue()
        self._runs: list[LightRun] = []
        threading.Thread(target=self._read, daemon=True).start()

    @classmethod
    @contextlib.contextmanager
    def start(cls, env: EngineEnv, ns: Namespace, log: Path) -> Iterator[LightHost]:
        """Start it; the engine is imported when this returns."""
        with log.open("w") as err:
            process = subprocess.Popen(
                ns.argv([str(env.python), str(PROGRAM)]),
                env=env.process_environ({"PDCTL_ARM": "1"}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        host = cls(process, log)
        try:
            host._expect("up", UP_S)
            yield host
        finally:
            for run in host._runs:
                run.kill()
            process.kill()
            process.wait(10)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("["):
                self._said.put(json.loads(line))
        self._said.put(None)

    def _expect(self, what: str, limit_s: float) -> list[Any]:
        try:
            said = self._said.get(timeout=limit_s)
        except queue.Empty:
            raise AssertionError(f"no {what!r} within {limit_s:g} s:\n{self._log.read_text()[-3000:]}") from None
        if said is None:
            raise AssertionError(f"the light host has ended:\n{self._log.read_text()[-3000:]}")
        if said[0] == "ended":
            self._note(said)
            return self._expect(what, limit_s)
        assert said[0] == what, said
        return said

    def _note(self, said: list[Any]) -> None:
        for run in self._runs:
            if said[1] in run.pids and said[1] not in run.ended:
                run.ended[said[1]] = said[2]

    def run(self, script: Mapping[str, Any], role: str, folder: Path) -> LightRun:
        """Start the ranks of ``script`` and return at once."""
        run = self.prepare(script, folder)
        for rank in range(script.get("size", 2)):
            self.add(run, role, rank)
        return run

    def prepare(self, script: Mapping[str, Any], folder: Path) -> LightRun:
        """Return a run of ``script`` without ranks; :meth:`add` starts them."""
        run = LightRun(folder)
        self._runs.append(run)
        for name in ("run", "record"):
            (folder / name).mkdir(mode=0o700)
        (folder / "script.json").write_text(json.dumps({"size": 2, **script}))
        return run

    def add(self, run: LightRun, role: str, rank: int, env: Mapping[str, str] | None = None) -> str:
        """Start one rank of a run and return its name at once. env: more of its environment."""
        name = f"{role}-{rank}-{len(self._runs)}"
        order = {
            "script": str(run.folder / "script.json"),
            "role": role,
            "rank": rank,
            "name": name,
            "out": str(run.folder / f"{name}.out"),
            "env": {**run.environ, **(env or {})},
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        run.pids[name] = self._expect("started", 30)[2]
        return name

    def wait(self, run: LightRun, limit_s: float) -> bool:
        """Wait until all ranks of ``run`` have ended; False when ``limit_s`` seconds were not enough."""
        end = time.monotonic() + limit_s
        while len(run.ended) < len(run.pids):
            try:
                said = self._said.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return False
            if said is None:
                return False
            self._note(said)
        return True
