"""Runs scripts on light ranks: :mod:`.rank` is the program, this is how a test talks to it."""

from __future__ import annotations

import contextlib
import itertools
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

from pdctl.recording.reader import BadRecording, Recording, read
from pdctl.targets.find import FoundRank, discover
from pdctl.targets.places import parse_places
from tests.engine.env import EngineEnv, Namespace
from tests.support.patience import patience

PROGRAM = Path(__file__).with_name("rank.py")
UP_S = 90.0
PROGRAM_S = 300.0


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
        return [rank for rank in discover(parse_places(self.environ)).ranks if rank.state != "no agent"]

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

    def __init__(self, env: EngineEnv, process: subprocess.Popen[str], log: Path) -> None:
        self.env = env
        self._process = process
        self._log = log
        self._said: queue.Queue[list[Any] | None] = queue.Queue()
        self._runs: list[LightRun] = []
        self._numbers = itertools.count()
        threading.Thread(target=self._read, daemon=True).start()

    @classmethod
    @contextlib.contextmanager
    def start(cls, env: EngineEnv, ns: Namespace, log: Path, *modules: str) -> Iterator[LightHost]:
        """Start it; the engine is imported when this returns. modules: more of those in ``sglang.srt`` that are."""
        with log.open("w") as err:
            process = subprocess.Popen(
                ns.argv([str(env.python), str(PROGRAM), *modules]),
                env=env.process_environ({"PDCTL_ARM": "1"}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        host = cls(env, process, log)
        try:
            host._expect("up", UP_S)
            yield host
        finally:
            host.end_runs()
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
            said = self._said.get(timeout=patience(limit_s))
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
        name = f"{role}-{rank}-{next(self._numbers)}"
        order = {
            "script": str(run.folder / "script.json"),
            "role": role,
            "rank": rank,
            "name": name,
            "out": str(run.folder / f"{name}.out"),
            "env": {**run.environ, **(env or {})},
        }
        self._start(run, order)
        return name

    def program(
        self, folder: Path, *arguments: object, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run what ``python ARGUMENTS…`` runs, where the engine is imported already, and return how it ended.

        folder: where its streams are kept. stdin: its standard input. env: more of its environment.
        """
        run = LightRun(folder)
        self._runs.append(run)
        name = f"program-{next(self._numbers)}"
        files = {stream: folder / f"{name}.{stream}" for stream in ("in", "out", "err")}
        files["in"].write_text(stdin)
        order = {stream: str(file) for stream, file in files.items()}
        argv = [str(argument) for argument in arguments]
        self._start(run, {**order, "name": name, "program": argv, "env": self.env.process_environ(env)})
        out, err = (files[stream] for stream in ("out", "err"))
        assert self.wait(run, PROGRAM_S), f"{argv} still runs:\n{out.read_text()}{err.read_text()}"
        return subprocess.CompletedProcess(argv, run.ended[name], out.read_text(), err.read_text())

    def end_runs(self) -> None:
        """Kill what the runs have left, by pid, and forget them."""
        for run in self._runs:
            run.kill()
        self._runs.clear()

    def _start(self, run: LightRun, order: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        run.pids[order["name"]] = self._expect("started", 30)[2]

    def wait(self, run: LightRun, limit_s: float) -> bool:
        """Wait until all ranks of ``run`` have ended; False when ``limit_s`` seconds of a quiet machine were not enough."""
        end = time.monotonic() + patience(limit_s)
        while len(run.ended) < len(run.pids):
            try:
                said = self._said.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return False
            if said is None:
                return False
            self._note(said)
        return True
