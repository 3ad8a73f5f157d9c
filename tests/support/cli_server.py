"""Runs commands of pdctl in processes of their own that need not import pdctl first: forks of one that has.

Half of what a command costs is its imports, and tests run more than a thousand. Each still is a process with an environment,
a working directory and streams of its own, and ends as Python ends. What a command does with its start-up, its own
streams or signals is tested with ``subprocess``.

Ranks that answer get the time that a busy machine needs: where a test says nothing else, a command waits longer for them than
a user's does.

``pdctl lab up`` is forked from one that has imported torch too, and the supervisor from that.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.patience import patience

ROOT = Path(__file__).parents[2]
_MOST = 1 << 20
_SLOW = ("pdctl.probes.story.plot",)
"""What imports matplotlib; nothing else that a command loads late is slow."""
RANK_TIMEOUT_S, TIMEOUT_S = 20.0, 40.0
"""What commands wait for ranks, and in all, by default."""
_OF_START = ("PYTHON", "LC_", "LANG", "LD_")
"""Variables that Python reads when it starts."""


def run(
    words: tuple[str, ...] | list[str], env: Mapping[str, str], *, cwd: Path | None = None, limit_s: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m pdctl.cli`` with these words, nothing on its standard input, and return what it printed."""
    if _of_start(env) != _of_start(os.environ):
        return subprocess.run(
            [sys.executable, "-m", "pdctl.cli", *words], env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=patience(limit_s), check=False,
        )  # fmt: skip
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        mine,
        theirs,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        Path(os.devnull).open("rb") as nothing,
    ):
        asked = json.dumps({"words": list(words), "env": dict(env), "cwd": os.fspath(cwd or Path.cwd())})
        request = os.memfd_create("request")
        try:
            os.write(request, asked.encode())
            fds = [theirs.fileno(), request, nothing.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(_server(os.getpid(), lab=_starts_lab(words))[0], [b"run"], fds)
        finally:
            os.close(request)
        theirs.close()
        pid = int(mine.recv(_MOST) or b"0")
        mine.settimeout(patience(limit_s))
        try:
            status = mine.recv(_MOST)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["pdctl", *words], limit_s, _text(out), _text(err)) from None
        assert status, "the process that starts commands has ended"
        return subprocess.CompletedProcess(["pdctl", *words], int(status), _text(out), _text(err))


def _starts_lab(words: Sequence[str]) -> bool:
    return tuple(words[:2]) == ("lab", "up")


def _of_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_OF_START)}


def _text(file: tempfile._TemporaryFileWrapper[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="surrogateescape").replace("\r\n", "\n")


@functools.cache
def _server(owner: int, *, lab: bool) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Return the connection to the process that forks for the test process ``owner``, and it; it ends with that.

    lab: the one that has imported what a lab needs.
    """
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", __name__, *(("lab",) if lab else ())]
    with theirs:
        return mine, subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=subprocess.DEVNULL)


# ---- in the process that forks ---------------------------------------------------------------------------------------


class Supervisor:
    """Stands for the supervisor that ``pdctl lab up`` starts: a fork of this process, with nothing open but its streams."""

    def __init__(
        self, command: Sequence[str], *, stdin: int, stdout: int, stderr: int, start_new_session: bool
    ) -> None:
        assert (stdin, stdout, start_new_session) == (subprocess.DEVNULL, stderr, True)
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for number, stream in enumerate((nothing, stdout, stderr)):
                os.dup2(stream, number)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            random.seed()
            sys.argv = list(command[2:])
            from pdctl.lab.supervisor import Supervisor as OfLab

            code = OfLab(Path(command[-1])).run()
        except BaseException:  # noqa: BLE001  # as in a process of its own
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        if self.status is None and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.status = 1
        return self.status

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        if self.status is None:
            os.waitpid(self.pid, 0)
            self.status = 1


def _load_lab() -> None:
    from pdctl.lab import launch, supervisor

    os.environ["OMP_NUM_THREADS"] = "1"
    supervisor._load()
    launch.subprocess = types.SimpleNamespace(Popen=Supervisor, DEVNULL=subprocess.DEVNULL)  # type: ignore[attr-defined]


def _load() -> None:
    from typer.testing import CliRunner

    import pdctl.probes.base
    import pdctl.targets.client

    for module in (pdctl.probes.base, pdctl.targets.client):  # before commands take their defaults from there
        module.RANK_TIMEOUT_S, module.TIMEOUT_S = RANK_TIMEOUT_S, TIMEOUT_S

    import pdctl.commands
    import pdctl.probes
    import pdctl.report
    from pdctl.cli import app

    for package in (pdctl.commands, pdctl.probes, pdctl.report):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name not in _SLOW:
                importlib.import_module(module.name)
    CliRunner().invoke(app, ["explain", "PD101"])  # loads what Typer and rich load late
    gc.collect()
    gc.freeze()


def _serve(server: socket.socket) -> list[str]:
    """Fork for each request. Returns the words of a command in the process that is to run it."""
    while True:
        _, fds, _, _ = socket.recv_fds(server, 16, 8)
        if not fds:
            os._exit(0)
        if not os.fork():  # the parent of this one command: who waits for it, and for nothing else
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            server.close()
            return _of_request(fds)
        for fd in fds:
            os.close(fd)


def _of_request(fds: list[int]) -> list[str]:
    answers, request, *streams = fds
    pid = os.fork()
    if pid:
        with socket.socket(fileno=answers) as answer:
            answer.send(str(pid).encode())
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            answer.send(str(status).encode())
        os._exit(0)
    os.close(answers)
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
        os.close(stream)
    with os.fdopen(request, "rb") as file:
        file.seek(0)
        asked = json.load(file)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    return asked["words"]


def main() -> None:
    """Serve, and run what is asked for as ``python -m pdctl.cli`` does."""
    if sys.argv[1:] == ["lab"]:
        _load_lab()
    _load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.argv[1:] = _serve(socket.socket(fileno=os.dup(0)))
    del sys.modules["pdctl.cli"]  # it is __main__ now
    runpy.run_module("pdctl.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
