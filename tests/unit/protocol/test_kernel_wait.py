"""A process whose main thread is in an uninterruptible wait: what /proc says of it, of a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pdctl.protocol.processes import Process, look, look_closely
from tests.support.patience import until
from tests.support.pipes import opened

# Who starts another process waits in the kernel until that runs its program, and this one waits for somebody to open a pipe.
WAITS = (
    "import os, sys\n"
    "opens = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)\n"
    "os.posix_spawn('/bin/true', ['true'], {}, file_actions=[opens])\n"
)


def test_a_wait_in_the_kernel_is_said_with_its_place(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    child = subprocess.Popen([sys.executable, "-c", WAITS, str(pipe)])
    try:
        until("it waits", lambda: look(child.pid).state == "D")
        first, second = look_closely(child.pid), look_closely(child.pid)
        assert first == second, "one wait is the same for as long as it lasts"
        assert first.switches > 0
        assert first.why_silent.startswith("process is in an uninterruptible wait in the kernel")
    finally:
        until("it goes on", lambda: opened(pipe) or child.poll() is not None)
        child.wait()


def test_a_place_that_can_not_be_read_is_left_out() -> None:
    assert Process("D", 5).why_silent == "process is in an uninterruptible wait in the kernel"
    assert Process("D", 5, wait="nfs_wait").why_silent.endswith("in the kernel (nfs_wait)")
