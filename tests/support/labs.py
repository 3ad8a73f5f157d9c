"""A lab for a test: started and ended with the CLI, looked at through its agents, its recordings and /proc."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from pdctl.faults.limits import MAX_TTL_S
from pdctl.lab import state
from pdctl.lab.client import Client, Load, Outcome
from pdctl.lab.config import LabConfig
from pdctl.protocol import durations
from pdctl.protocol.model import Snapshot
from pdctl.protocol.rank import Answer, Silence
from pdctl.recording.reader import Event, Item, Recording, read
from pdctl.targets.client import Client as AgentClient
from pdctl.targets.find import discover
from pdctl.targets.places import parse_places
from tests.support import cli_server
from tests.support.patience import patience, until


def end_process(process: state.Process) -> None:
    """End a process of a lab with SIGKILL. It may have ended by itself: a rank does when its group has lost another."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


class Labs:
    """A run directory of its own, and the labs in it. On exit everything is ended, whatever the test did."""

    def __init__(self) -> None:
        # Not pytest's tmp_path: a socket's path has 107 bytes at most.
        self.folder = Path(tempfile.mkdtemp(prefix="pdl-"))
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PDCTL_")},
            "PDCTL_RUN_DIR": str(self.folder / "run"),
            "PDCTL_RECORD_DIR": str(self.folder / "rec"),
            "XDG_STATE_HOME": str(self.folder / "state"),
        }

    def __enter__(self) -> Labs:  # noqa: PYI034
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for folder in (self.folder / "run").glob("lab-*"):
            for process in state.processes(folder):
                if process.alive:
                    end_process(process)
                elif error is not None:  # it may be why the test failed
                    log = folder / f"{process.label.replace(' ', '-')}.log"
                    print(f"{process.label} had ended; its log ends with:")
                    print(log.read_text(errors="replace")[-4000:] if log.exists() else "(no log)")
        shutil.rmtree(self.folder, ignore_errors=True)

    def cli(self, *arguments: object, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a command of pdctl and return what it printed; its exit code must be ``code``."""
        done = cli_server.run([*map(str, arguments)], self.env)
        assert code is None or done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def up(self, *options: object, name: str = "lab") -> Lab:
        """Start a lab."""
        self.cli("lab", "up", "--name", name, "--owner", os.getpid(), *options)
        return Lab(self, name)

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start a command of pdctl; who calls this waits for it."""
        command = [sys.executable, "-m", "pdctl.cli", *map(str, arguments)]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def files(self) -> list[str]:
        """Return every file in the run and record directories except the lock that outlives labs."""
        found = [p for name in ("run", "rec") for p in (self.folder / name).rglob("*")]
        found = [p for p in found if not p.is_dir() and p.name != ".labs.lock"]
        return sorted(str(p.relative_to(self.folder)) for p in found)


class Lab:
    """One running lab."""

    def __init__(self, labs: Labs, name: str) -> None:
        self.labs = labs
        self.name = name
        self.folder = labs.folder / "run" / f"lab-{name}"
        self.config: LabConfig = state.read_config(self.folder)
        self.processes = state.processes(self.folder)

    def process(self, label: str) -> state.Process:
        """Return a process by its label."""
        return next(p for p in self.processes if p.label == label)

    def left(self) -> list[state.Process]:
        """Return the lab's processes that are still there."""
        return [p for p in self.processes if p.alive]

    def load(self, **how: Any) -> Outcome:
        """Send a load and return what came of it."""
        client = Client(self.config, Load(**{"seconds": patience(60), **how}))
        try:
            return client.run()
        finally:
            client.close()

    @contextlib.contextmanager
    def waiting(self, room: int, side: str, **how: Any) -> Iterator[None]:
        """Have a request in the lab, sent to one side or ``both``, until it is aborted on both at the end."""
        client = Client(self.config, Load(**{"seconds": patience(60), "requests": 1, "room": room, "to": side, **how}))
        try:
            request = client.send()
            try:
                yield
            finally:
                client.abort(request, ("prefill", "decode"))
                outcome = client.run()
        finally:
            client.close()
        assert (outcome.failed, outcome.unfinished) == (1, 0)

    def inject_late_metadata(self, *options: object, delay: str = "3s") -> None:
        """Hold back the metadata of decode tp1 for ``delay``, on a busy machine up to 20 s: tp0 acts meanwhile."""
        asked = durations.parse(delay, most_s=600)
        late = max(asked, min(patience(asked), 20.0))
        lives = f"{min(MAX_TTL_S, max(patience(60), late)):.0f}s"
        self.labs.cli(
            "inject", "--delay-metadata", f"{late:.1f}s", "--for", lives, "--rank", "decode:tp1", "--detach", *options
        )

    def queues(self) -> dict[str, dict[str, list[int]]]:
        """Return rank → queue → rooms, as the agents answer now. Each rank that runs has answered."""

        def answered() -> list[Answer[Snapshot]]:
            found = [r for r in discover(parse_places(self.labs.env)).ranks if r.identity.cluster == self.name]
            with AgentClient(timeout_s=patience(20), rank_timeout_s=patience(20)) as client:
                answers = client.ask(found, "queues", Snapshot)
            silent = [a for a in answers if a.body is None and a.rank.live and a.silence is not Silence.DEAD]
            return [] if silent else answers

        answers = until("an answer of each rank that runs", answered)
        return {
            a.rank.identity.label: {name: [e.room for e in entries] for name, entries in a.body.queues.items()}
            for a in answers
            if a.body is not None
        }

    def recorded_s(self, side: str = "") -> float:
        """Return for how long each rank of a side, or of both, has been recorded, in seconds."""
        ranks = [one.label for one in self.left() if one.label.startswith(side or ("prefill ", "decode "))]
        return (time.monotonic_ns() - max(self.recording(label).start_mono_ns for label in ranks)) / 1e9

    def recording(self, label: str) -> Recording:
        """Return a rank's recording as its file is now."""
        process = self.process(label)
        return read(self.labs.folder / "rec" / f"{process.pid}-{process.start}.pdrec")

    def events(self, label: str, kind: int) -> list[Event]:
        """Return a rank's events of one kind."""
        return [event for event in self.recording(label).events() if event.kind == kind]

    def items(self, label: str, queue: str) -> list[Item]:
        """Return every request in every run of rounds of a rank's queue, oldest first."""
        stream = self.recording(label).stream(queue)
        return [] if stream is None else [item for run in stream.runs for item in stream.items(run) or []]
