"""``pdctl demo`` as a user runs it, and as a user interrupts it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.lab import state
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]


def start(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pdctl.cli", "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lab_of(demo: subprocess.Popen[str]) -> Path:
    """Return the directory of the demo's lab, from what the demo says first."""
    assert demo.stdout is not None
    for line in demo.stdout:
        if "PDCTL_RUN_DIR=" in line:
            return Path(line.partition("PDCTL_RUN_DIR=")[2].strip()) / "lab-demo"
    raise AssertionError(f"the demo does not say where it is: {demo.communicate()}")


def ranks_up(folder: Path) -> list[state.Process]:
    """Return the lab's processes once the ranks have been forked."""
    until("five processes", lambda: len(state.processes(folder)) == 5)
    return state.processes(folder)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda demo: demo.send_signal(signal.SIGINT), 130),
        (lambda demo: demo.send_signal(signal.SIGTERM), 130),
    ],
    ids=["SIGINT", "SIGTERM"],
)
def test_an_interrupted_demo_leaves_nothing(end: Callable[[subprocess.Popen[str]], None], code: int) -> None:
    demo = start()
    folder = lab_of(demo)
    processes = ranks_up(folder)
    end(demo)
    demo.communicate()
    assert demo.returncode == code
    assert [p for p in processes if p.alive] == []
    assert not folder.parent.parent.exists()


def test_the_cluster_of_a_killed_demo_ends_by_itself() -> None:
    demo = start()
    folder = lab_of(demo)
    processes = ranks_up(folder)
    recordings = folder.parent.parent / "rec"
    until("three recordings", lambda: len(list(recordings.glob("*.pdrec"))) == 3)
    demo.kill()
    demo.communicate()
    until("the end of all processes", lambda: not [p for p in processes if p.alive])
    until("the lab's folder to be gone", lambda: not folder.exists())
    assert list(recordings.iterdir()) == []
    shutil.rmtree(folder.parent.parent)


def test_a_step_that_goes_wrong_is_named_and_nothing_is_left() -> None:
    demo = start("--timeout", "1s")
    folder = lab_of(demo)
    _, errors = demo.communicate()
    assert demo.returncode == 124
    assert "time is over" in errors
    until("the lab's folder to be gone", lambda: not folder.exists())
