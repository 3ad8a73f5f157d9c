"""`pdctl run` and its start-up directory, in real processes with a package that is shaped like the engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pdctl.commands.run import STARTUP, environment
from tests.support.patience import patience

ROOT = Path(__file__).parents[3]

SCHEDULER = """
class Scheduler:
    def __init__(self, x):
        self.x = x
"""

LOOK = """
import sys, sglang.srt.managers.scheduler as s
import multiprocessing as mp
def child(q):
    import sglang.srt.managers.scheduler as s
    q.put(hasattr(s.Scheduler.__init__, "__wrapped__"))
if __name__ == "__main__":
    import other
    ctx = mp.get_context("spawn")
    q = ctx.Queue()
    p = ctx.Process(target=child, args=(q,))
    p.start()
    print("here", hasattr(s.Scheduler.__init__, "__wrapped__"), "spawned", q.get(timeout=60), "other", other.RAN)
    print("x", s.Scheduler(3).x, "threads", __import__("threading").active_count())
    p.join()
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A directory with a package `sglang` that has a scheduler, another sitecustomize, and a program that looks."""
    package = tmp_path / "sglang" / "srt" / "managers"
    package.mkdir(parents=True)
    for directory in (package, package.parent, package.parent.parent):
        (directory / "__init__.py").touch()
    (package / "scheduler.py").write_text(SCHEDULER)
    (tmp_path / "other.py").write_text("RAN = False\n")
    (tmp_path / "sitecustomize.py").write_text("import other\nother.RAN = True\n")
    (tmp_path / "look.py").write_text(LOOK)
    return tmp_path


def look(engine: Path, **extra: str) -> str:
    outer = {key: value for key, value in os.environ.items() if not key.startswith("PDCTL_")}
    env = {**outer, **extra, "PDCTL_RECORD": "off", "PYTHONPATH": str(engine)}
    done = subprocess.run(
        [sys.executable, str(engine / "look.py")], env=environment(env), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_reaches_spawned_children_and_runs_the_next_sitecustomize(engine: Path) -> None:
    assert "here True spawned True other True" in look(engine)


def test_a_scheduler_pdctl_can_not_read_is_constructed_all_the_same(engine: Path) -> None:
    assert "x 3" in look(engine)


def test_switched_off_by_the_environment(engine: Path) -> None:
    assert "here False spawned False other True" in look(engine, PDCTL_AGENT="off")


def test_the_directory_is_on_the_path_once() -> None:
    once = environment({"PYTHONPATH": f"/a{os.pathsep}/b", "X": "y"})
    assert once == {"PYTHONPATH": os.pathsep.join([str(STARTUP), "/a", "/b"]), "X": "y"}
    assert environment(once) == once


def run(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pdctl.cli", "run", "--", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_takes_its_place() -> None:
    process = run("sh", "-c", "echo $$; exit 7", "--help")
    out, err = process.communicate(timeout=patience(60))
    assert process.returncode == 7
    assert int(out) == process.pid
    assert err.count("\n") == 1
    assert err.startswith("pdctl run: sh with the agent")


def test_signals_reach_the_command() -> None:
    process = run("sleep", "3600")
    while b"sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0]:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(patience(60)) == -signal.SIGTERM


def test_no_such_command() -> None:
    process = run("no-such-engine")
    _, err = process.communicate(timeout=patience(60))
    assert process.returncode == 2
    assert "no-such-engine" in err
