"""An agent that can't answer: the rank's stacks come on a signal, and taking that signal disturbs nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.agent.visible import Stacks, taken
from tests.support.patience import patience, until
from tests.support.tiny_ranks import ROOT, TinyRanks

pytestmark = pytest.mark.system


def test_stacks_come_while_the_gil_is_held_for_ever(ranks: TinyRanks) -> None:
    child = ranks.start("--then", "gil")
    [path] = ranks.run_dir.glob("*.stacks")
    assert path.read_bytes() == b""

    def stacks() -> bool:
        os.kill(child.pid, signal.SIGUSR1)
        return b"Thread" in path.read_bytes()

    until("the stacks", stacks, every_s=0.1)
    assert "tiny.py" in path.read_text()
    assert child.poll() is None


def test_an_agent_that_ends_takes_its_empty_file_along(ranks: TinyRanks) -> None:
    child = ranks.start("--then", "exit")
    assert list(ranks.run_dir.glob("*.stacks"))
    child.communicate("", timeout=patience(60))
    assert child.returncode == 0
    assert not list(ranks.run_dir.iterdir())


USES = """
import os, signal, sys
from pathlib import Path
from pdctl.agent.visible import Stacks, taken
before = {before}
stacks = Stacks(Path(sys.argv[1]), os.environ)
print(stacks.off, flush=True)
os.kill(os.getpid(), signal.SIGUSR1)
print("lives", flush=True)
"""


@pytest.mark.parametrize(
    "before",
    [
        "signal.signal(signal.SIGUSR1, lambda *_: print('the engine has it'))",
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})",
        "__import__('faulthandler').register(signal.SIGUSR1, file=sys.__stderr__)",
    ],
)
def test_a_signal_that_is_in_use_stays_as_it_is(tmp_path: Path, before: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", USES.format(before=before), str(tmp_path / "stacks")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    said = done.stdout.splitlines()
    assert said[0] == "SIGUSR1 is in use"
    assert said[-1] == "lives"
    assert ("the engine has it" in said) == ("the engine" in before)
    assert not (tmp_path / "stacks").exists()


@pytest.mark.parametrize(
    ("asked", "words"), [("off", "switched off"), ("SIGKILL", "names no signal"), ("SIGNONE", "names no signal")]
)
def test_what_is_asked_for_is_done_or_said(tmp_path: Path, asked: str, words: str) -> None:
    stacks = Stacks(tmp_path / "stacks", {"PDCTL_STACKS_SIGNAL": asked})
    assert words in stacks.off
    assert not taken(signal.SIGUSR2)
    other = Stacks(tmp_path / "other", {"PDCTL_STACKS_SIGNAL": "SIGUSR2"})
    assert (other.off, taken(signal.SIGUSR2)) == ("", True)
    os.kill(os.getpid(), signal.SIGUSR2)
    other.stop()
    assert not taken(signal.SIGUSR2)
    assert "test_agent_seen.py" in (tmp_path / "other").read_text()
