"""Every command of every runbook, run in the state that the runbook is about; its output is what the runbook shows.

A block ```` ```console exit=1 ```` holds one command after ``$`` and what it prints, on a terminal of 100 columns. ``…``
stands for any text; what the runbook shows must come in this order, other lines may come between. ROOM and the like are
the state's. ```` ```console state=full ```` is a branch: its command is run in the state of that name, the others in the
runbook's own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import cli_server
from tests.support.labs import Labs
from tests.system.runbook_states import BRANCHES, STATES

pytestmark = [pytest.mark.system, pytest.mark.timeout(900, method="signal")]  # the machine may be busy

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
_BLOCK = re.compile(r"^```console(?: state=([\w-]+))?(?: exit=(\d+))?\n\$ (.+?)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PATIENT = {"ranks", "diff-queues", "stuck", "check", "stacks", "dump", "verify-routing", "story"}
"""Commands that take --rank-timeout: the machine may be busy, and nothing here is about how long they wait."""


@dataclass(frozen=True)
class Step:
    """One command of a runbook, what it prints there, and its exit code."""

    command: str
    shown: tuple[str, ...]
    code: int
    state: str = ""


def steps(path: Path) -> list[Step]:
    """Return the steps of a runbook."""
    return [
        Step(command, tuple(line for line in shown.splitlines() if line.strip()), int(code or 0), state)
        for state, code, command, shown in _BLOCK.findall(path.read_text(encoding="utf-8"))
    ]


def run(labs: Labs, command: str) -> subprocess.CompletedProcess[str]:
    """Run a step's command as the user would, with more patience."""
    words = shlex.split(command)
    assert words[0] == "pdctl", command
    if words[1] in _PATIENT:
        words += ["--rank-timeout", "30s"]
        words += [] if "--timeout" in words else ["--timeout", "30s"]
    return cli_server.run(words[1:], {**labs.env, "COLUMNS": "100"}, cwd=labs.folder)


def filled(text: str, words: dict[str, str]) -> str:
    """Return ``text`` with the state's words in place of their names."""
    for name, value in words.items():
        text = re.sub(rf"\b{name}\b", value, text)
    return text


def missing(shown: tuple[str, ...], printed: str, words: dict[str, str]) -> str:
    """Return the first line of ``shown`` that is not in ``printed``, "" when all are.

    In whatever order: which of two ranks did something first is not the same each time.
    """
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for line in shown:
        parts = [part.strip() for part in " ".join(filled(line, words).split()).split("…")]
        pattern = re.compile(".*".join(map(re.escape, parts)))
        found = next((candidate for candidate in lines if pattern.fullmatch(candidate)), None)
        if found is None:
            return line
        lines.remove(found)
    return ""


def test_every_runbook_has_a_state_and_every_state_its_runbook() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"} == set(STATES)
    listed = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    for name in STATES:
        assert f"({name}.md)" in listed
        text = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
        assert len(steps(RUNBOOKS / f"{name}.md")) == text.count("```console")
        assert text.count("```console") >= 3


_LONG = {"given-up"}
"""Branches whose state takes long to come about."""


def branches(name: str) -> list[Any]:
    """Return the runbook with "", and with each state that a step of it names, as parameters of a test."""
    states = dict.fromkeys(["", *(step.state for step in steps(RUNBOOKS / f"{name}.md"))])
    return [pytest.param(name, state, marks=[pytest.mark.long] if state in _LONG else []) for state in states]


@pytest.mark.parametrize(("name", "state"), [branch for name in STATES for branch in branches(name)])
def test_runbook(name: str, state: str) -> None:
    with (BRANCHES[state] if state else STATES[name])() as (labs, words):
        for step in steps(RUNBOOKS / f"{name}.md"):
            if step.state != state:
                continue
            done = run(labs, filled(step.command, words))
            said = f"$ {step.command}\n{done.stdout}{done.stderr}"
            assert done.returncode == step.code, f"exit code {done.returncode}, not {step.code}\n{said}"
            assert not missing(step.shown, done.stdout + done.stderr, words), (
                f"not printed: {missing(step.shown, done.stdout + done.stderr, words)}\n{said}"
            )
            assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("shown", "gone"),
    [
        (("room 7 waits …",), ""),
        (("room ROOM … s", "second line"), ""),
        (("second line", "room 7 waits …"), ""),
        (("second line", "second line"), "second line"),
        (("room 8 …",), "room 8 …"),
        (("waits",), "waits"),
    ],
)
def test_what_a_runbook_shows_is_looked_for(shown: tuple[str, ...], gone: str) -> None:
    assert missing(shown, "room  7  waits 14.2 s\nbetween\n  second line\n", {"ROOM": "7"}) == gone


# python -m tests.system.test_runbooks NAME [STATE]: what the commands print, to write the runbook from
if __name__ == "__main__":
    name, state = sys.argv[1], (*sys.argv[2:], "")[0]
    with (BRANCHES[state] if state else STATES[name])() as (labs, words):
        for step in [step for step in steps(RUNBOOKS / f"{name}.md") if step.state == state]:
            done = run(labs, filled(step.command, words))
            print(f"$ {step.command}   [{done.returncode}]\n{done.stdout}{done.stderr}", flush=True)
        print(words, os.getpid())
