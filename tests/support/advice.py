"""What a reader does with a next step: runs the commands that it names, as they are printed."""

from __future__ import annotations

import os
import re
import signal

from tests.support.cases import Cases, Line
from tests.support.labs import Labs

_COMMAND = re.compile(
    r"\bpdctl ((?:story|verify-routing) \d+|story RID|dump [a-z]+|record FILE|diff-queues|stacks|ranks|stuck|verify-routing)"
)
_CONTINUE = re.compile(r"\bkill -CONT (\d+)")


def sent(room: int, how: str = "") -> str:
    """Return the command that sends a request of this room, whose id is ``r`` and the room, and goes on."""
    return f"lab load -n 1 --seconds 600 --room {room} --rid r{room} {how}".strip() + " &"


def commands(next_step: str) -> list[str]:
    """Return the commands of pdctl that a next step names, without ``pdctl``, each once."""
    return list(dict.fromkeys(_COMMAND.findall(next_step)))


def run(labs: Labs, next_step: str, *, rid: str = "") -> list[str]:
    """Run the commands of pdctl that a next step names and return what each prints.

    FILE is one of the reader's choice, RID is ``rid``.

    Raises:
        AssertionError: one has no result, or does not know what it is asked about.
    """
    printed = []
    for command in commands(next_step):
        words = [{"FILE": f"{labs.folder}/kept.pdtrace", "RID": rid}.get(word, word) for word in command.split()]
        done = labs.cli(*words, "--timeout", "120s", code=None)
        text = " ".join(done.stdout.split())
        assert done.returncode in (0, 1, 3), f"{command}: {done.returncode} {done.stderr}"
        assert text, f"{command} has no result: {done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        printed.append(text)
    return printed


def let_go_on(next_step: str) -> None:
    """Send SIGCONT to the processes that a next step says it is for."""
    pids = [int(pid) for pid in _CONTINUE.findall(next_step)]
    assert pids, next_step
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def do(cases: Cases, lines: tuple[str, ...]) -> None:
    """Run commands without their ``pdctl``; one that ends with ``&`` goes on while the next ones run."""
    for text in lines:
        line = Line(text.removesuffix(" &"), text.endswith(" &"))
        if line.background:
            cases.start(line.command)
        elif line.command.startswith("lab up"):
            cases.run(f"{line.command} --owner {os.getpid()}", code=0)
        else:
            cases.run(line.command, code=None if line.command.startswith("lab load") else 0)
