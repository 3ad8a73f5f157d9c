"""Starts tiny ranks (:mod:`tests.system.targets.tiny`) as processes of their own, and pdctl against them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from pdctl.protocol import wire
from pdctl.protocol.stream import Connection
from tests.support import cli_server
from tests.support.patience import patience

ROOT = Path(__file__).parents[2]


def patient() -> tuple[str, ...]:
    """Return options for ranks that do answer, however busy the machine is."""
    limit = f"{max(60, patience(20)):.0f}"
    return ("--rank-timeout", limit, "--timeout", limit)


def free_port() -> int:
    """Return a TCP port of the loopback interface that was free a moment ago, and that no connection is given by itself.

    The system gives connections the ports above 32,768: one from there may be taken again before the caller listens.
    """
    while True:
        port = random.randint(10_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class TinyRanks:
    """Ranks with directories of their own; all of them end with the ``with`` block."""

    def __init__(self, folder: Path, prefix: tuple[str, ...] = ()) -> None:
        self.prefix = prefix
        """Before every command: what runs it on another host, say."""
        self.run_dir = folder / "run"
        self.record_dir = folder / "record"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("PDCTL_", "TORCH_FR", "XDG_RUNTIME"))}
        self.env |= {"PDCTL_RUN_DIR": str(self.run_dir), "PDCTL_RECORD_DIR": str(self.record_dir)}
        self.env["XDG_CACHE_HOME"] = str(folder / "cache")
        self.children: list[subprocess.Popen[str]] = []

    def __enter__(self) -> TinyRanks:  # noqa: PYI034
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for child in self.children:
            child.kill()
        for child in self.children:
            child.communicate()

    def begin(self, *args: object, **env: str) -> subprocess.Popen[str]:
        """Start a rank and return at once."""
        child = subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "tests.system.targets.tiny", *map(str, args)],
            cwd=ROOT,
            env=self.env | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        return child

    def start(self, *args: object, **env: str) -> subprocess.Popen[str]:
        """Start a rank and return when its agent is up."""
        child = self.begin(*args, **env)
        self.ready(child)
        return child

    def ready(self, child: subprocess.Popen[str]) -> str:
        """Wait for a rank's agent and return the line it would log."""
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line.startswith("ready"), line
        return line

    def group(self, size: int, then: str, **env: str) -> list[subprocess.Popen[str]]:
        """Start ranks that are a real Gloo group of ``size``, and return when all agents are up."""
        port = free_port()
        args = ("--size", size, "--port", port, "--then", then)
        children = [self.begin("--rank", rank, *args, **env) for rank in range(size)]
        for child in children:
            self.ready(child)
        return children

    def socket_of(self, child: subprocess.Popen[str]) -> Path:
        """Return the control socket of a rank."""
        [path] = self.run_dir.glob(f"{child.pid}-*.sock")
        return path

    def pdctl(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the command line program as a user would."""
        env = self.env | {"COLUMNS": "80", **env}
        if not self.prefix:
            return cli_server.run(args, env, cwd=ROOT)
        return subprocess.run(
            [*self.prefix, sys.executable, "-m", "pdctl.cli", *args],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    def rows(self, *args: str, code: int) -> list[dict[str, Any]]:
        """Return the rows of ``pdctl ranks -o json``, which must exit with ``code``."""
        waits = () if "--rank-timeout" in args else patient()
        done = self.pdctl("ranks", "-o", "json", *waits, *args)
        assert done.returncode == code, done
        rows: list[dict[str, Any]] = json.loads(done.stdout)["ranks"]
        return rows


def stop(child: subprocess.Popen[str]) -> None:
    """SIGSTOP a process and return when it has stopped."""
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)


class Wire:
    """A bare connection to a control socket, for what a well-behaved client would not send."""

    def __init__(self, path: Path) -> None:
        self.connection = Connection(path)

    def __enter__(self) -> Wire:  # noqa: PYI034
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.connection.close()

    def send(self, payload: bytes) -> None:
        """Send a payload as it is."""
        self.connection.send(payload, 60)

    def reply(self, wait_ms: int = 20_000) -> wire.Reply | None:
        """Return the next reply, None when none comes."""
        try:
            return wire.decode_reply(self.connection.receive(wait_ms / 1000))
        except TimeoutError:
            return None

    def ask(self, op: str, args: dict[str, Any] | None = None, number: int = 1) -> wire.Reply:
        """Ask in good order and return the reply to it."""
        self.send(wire.encode(wire.Request(op, id=number, args=args or {})))
        while True:
            reply = self.reply()
            assert reply is not None, f"no reply to {op}"
            if reply.id == number:
                return reply
