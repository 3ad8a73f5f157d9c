"""``pdctl demo``: a hang, its diagnosis, and the same with the fix, on an embedded cluster of its own.

Every step is a command that a user could type, run as a process of its own; the demo only says what it expects of it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from pdctl.commands.options import seconds
from pdctl.protocol import extras
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Output

EXAMPLES = ("pdctl demo", "pdctl demo --timeout 3m")

NAME = "demo"
DELAY = "5s"
RANK = "decode:tp1"
_MORTAL = ("--owner", str(os.getpid()))  # even if the demo is killed, its cluster does not stay


class UnexpectedError(PdctlError):
    """A step of the demo did not go as it must; the message says which and why."""

    def __init__(self, message: str, code: Exit = Exit.FINDING) -> None:
        super().__init__(message, "nothing of the demo's cluster is left; PDCTL_DEBUG=1 shows errors in full", code)


class Stage:
    """Runs the demo's commands and holds them against what is expected. deadline: monotonic seconds."""

    def __init__(self, out: Output, env: dict[str, str], deadline: float) -> None:
        self._out = out
        self._env = env
        self._deadline = deadline

    def say(self, text: str) -> None:
        """Write a line of explanation."""
        self._out.lines(f"\n# {text}")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command and show it; :meth:`finish` ends the step."""
        self._out.lines(f"\n$ pdctl {' '.join(arguments)}")
        return subprocess.Popen(
            [sys.executable, "-m", "pdctl.cli", *arguments],
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, command: subprocess.Popen[str], expect: Exit, why: str, must_say: str = "") -> None:
        """Wait for a command and show what it printed. Raises UnexpectedError when it is not as expected."""
        try:
            printed, _ = command.communicate(timeout=max(0.1, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise UnexpectedError("the demo's time is over", Exit.DEADLINE) from None
        finally:
            if command.poll() is None:
                command.kill()
                command.wait()
        self._out.lines(printed, end="")
        shown = " ".join(command.args[3:]) if isinstance(command.args, list) else ""
        if command.returncode != expect:
            raise UnexpectedError(f"`pdctl {shown}` ended with {command.returncode}, not {int(expect)}: expected {why}")
        if must_say and must_say.lower() not in printed.lower():
            raise UnexpectedError(f"`pdctl {shown}` does not say {must_say!r}: expected {why}")
        self._out.lines(f"# exit code {command.returncode}: {why}")

    def run(self, *arguments: str, expect: Exit = Exit.CLEAN, why: str, must_say: str = "") -> None:
        """Start a command and finish it."""
        self.finish(self.start(*arguments), expect, why, must_say)


def command(
    timeout: Annotated[
        float, typer.Option("--timeout", parser=seconds, metavar="TIME", help="Time limit of the whole demo.")
    ] = 85.0,
) -> int:
    """Show a hang, its diagnosis, and the engine's fix: the metadata of a decode rank comes late.

    It starts an embedded cluster, injects a fault, and runs diff-queues to find the cause of the hang. Then it does the same
    with the metadata gate. It leaves nothing behind.

    Exit code: 0 every step went as expected, 1 a step did not.
    """
    extras.require("lab", "the demo's lab")
    out = Output()
    with _place() as env:
        stage = Stage(out, env, time.monotonic() + timeout)
        stage.say(f"The demo keeps to itself: PDCTL_RUN_DIR={env['PDCTL_RUN_DIR']}")
        _without_gate(stage)
        _with_gate(stage)
    out.lines("\n# As it must be: the bug was diagnosed while it hung, and the fix held. Nothing is left running.")
    return int(Exit.CLEAN)


def _without_gate(stage: Stage) -> None:
    stage.say("1. Prefill tp1, decode tp2, as SGLang up to 0.5.12.post1: without the metadata gate.")
    stage.run("lab", "up", "--name", NAME, "--without", "gate", *_MORTAL, why="a cluster that is ready")
    stage.run("lab", "load", "--name", NAME, "--requests", "8", why="every request completes with the right tokens")
    stage.run("diff-queues", why="no finding on a healthy cluster")
    stage.say(f"Now one rank's metadata comes {DELAY} late. Requests hang, long after it has arrived.")
    stage.run("inject", "--delay-metadata", DELAY, "--rank", RANK, "--detach", why="a fault, for a minute at most")
    load = ("lab", "load", "--name", NAME, "--requests", "1", "--seconds", "6")
    stage.run(*load, expect=Exit.FINDING, why="a request that never ends")
    stage.say("Stacks blame the model's all_reduce. The rounds before tell what happened:")
    stage.run("diff-queues", expect=Exit.FINDING, why="the divergence and its cause", must_say="PD101")
    stage.run("lab", "down", "--name", NAME, why="nothing is left, although its ranks hang")


def _with_gate(stage: Stage) -> None:
    stage.say("2. The same with the gate (SGLang 0.5.13 and newer).")
    stage.run("lab", "up", "--name", NAME, *_MORTAL, why="a cluster that is ready")
    stage.run("inject", "--delay-metadata", DELAY, "--rank", RANK, "--detach", why="the same fault")
    load = stage.start("lab", "load", "--name", NAME, "--requests", "8", "--seconds", "30")
    try:
        time.sleep(2)  # into the delay: what diff-queues shows while the gate holds
        stage.run("diff-queues", why="no divergence: the other rank waits as well")
        stage.finish(load, Exit.CLEAN, "every request completes with the right tokens, some of them late")
    finally:
        if load.poll() is None:
            load.kill()
            load.wait()
    stage.run("diff-queues", why="no finding, and the gate that held is named", must_say="gate held")
    stage.run("lab", "down", "--name", NAME, why="nothing is left")


@contextmanager
def _place() -> Iterator[dict[str, str]]:
    """Give the environment of a run directory of its own; end the demo's lab and remove the directory afterwards."""
    import tempfile  # not for the help of every command

    folder = Path(tempfile.mkdtemp(prefix="pdctl-demo-"))
    env = {name: value for name, value in os.environ.items() if not name.startswith("PDCTL_") or name == "PDCTL_DEBUG"}
    env.update(PDCTL_RUN_DIR=str(folder / "run"), PDCTL_RECORD_DIR=str(folder / "rec"))
    if "COLUMNS" not in env:
        env["COLUMNS"] = str(max(80, shutil.get_terminal_size((120, 24)).columns))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupted) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield env
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before.setdefault(number, signal.signal(number, signal.SIG_IGN))  # cleaning up is not interrupted
        _clean_up(folder)
        for number, handler in before.items():
            signal.signal(number, handler)


def _clean_up(folder: Path) -> None:
    from pdctl.lab import launch

    lab = folder / "run" / f"lab-{NAME}"
    if (lab / "lab.json").exists():
        launch.down(lab)
    shutil.rmtree(folder, ignore_errors=True)
