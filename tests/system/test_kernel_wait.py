"""A rank whose main thread is in an uninterruptible wait: it is not said to be stopped, and what it waits in is said."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pdctl.protocol.processes import look
from tests.support.labs import Labs
from tests.support.patience import until
from tests.support.pipes import opened

pytestmark = [pytest.mark.system, pytest.mark.long]

# Who starts another process waits in the kernel until that runs its program, and this one waits for somebody to open a pipe.
CUSTOM = """
import os, signal
def hang(*_):
    opens = (os.POSIX_SPAWN_OPEN, 0, os.environ["TEST_PIPE"], os.O_RDONLY, 0)
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opens])
signal.signal(signal.SIGUSR2, hang)
"""
WAIT = "in an uninterruptible wait in the kernel"


def test_a_rank_that_the_kernel_holds_is_said_to_be_there_and_goes_on(labs: Labs) -> None:
    pipe = labs.folder / "pipe"
    os.mkfifo(pipe)
    (labs.folder / "sitecustomize.py").write_text(CUSTOM)
    path = os.pathsep.join(filter(None, (str(labs.folder), labs.env.get("PYTHONPATH", ""), str(Path.cwd()))))
    labs.env |= {"TEST_PIPE": str(pipe), "PYTHONPATH": path}
    lab = labs.up()
    assert lab.load(requests=2).completed == 2
    pid = lab.process("decode dp0 pp0 tp1").pid
    os.kill(pid, signal.SIGUSR2)
    until("it waits in the kernel", lambda: look(pid).state == "D")
    for command in ("stacks", "check"):
        shown = labs.cli(command, code=None)
        assert WAIT in shown.stdout + shown.stderr, shown
        assert "SIGSTOP" not in shown.stdout + shown.stderr
    first = until("its loop stands", lambda: _found(labs, "PD114"))
    assert "The scheduler loop of decode dp0 tp1 has not turned" in first["summary"]
    assert WAIT in first["summary"]
    assert "CONT" not in first["next_step"]
    assert "PD114" in labs.cli("stuck", code=1).stdout
    until("somebody reads", lambda: opened(pipe))
    until("all is well", lambda: labs.cli("check", code=None).returncode == 0)
    assert lab.load(requests=2).completed == 2


def _found(labs: Labs, code: str) -> dict[str, Any] | None:
    found = json.loads(labs.cli("check", "-o", "json", code=None).stdout)["findings"]
    return next((one for one in found if one["code"] == code), None)
