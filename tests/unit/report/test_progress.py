"""A line on a terminal while a command takes longer, gone before anything else is written; elsewhere nothing."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from tests.support.patience import until

SLOW = """
import sys
from pdctl.report import progress
from pdctl.report.output import Output
progress.AFTER_S, progress.EVERY_S = 0.01, 0.01
progress.begin("check")
progress.doing("stuck of 4 ranks")
with progress.shown():
    print("begun", flush=True)
    sys.stdin.readline()
    Output(err=sys.stderr).note("a note")
print("over", flush=True)
"""


def test_on_a_terminal_the_line_is_there_and_goes_before_a_note_and_at_the_end() -> None:
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=slave,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(slave)
    assert child.stdin is not None
    seen = b""

    def shown() -> bool:
        nonlocal seen
        seen += os.read(master, 65536)
        return b"pdctl check: stuck of 4 ranks, 0 s" in seen

    until("the line is shown", shown)
    out, _ = child.communicate(b"\n")
    while chunk := _read(master):
        seen += chunk
    os.close(master)
    assert out.split() == [b"begun", b"over"]
    lines = seen.replace(b"\r\n", b"\n").split(b"\n")
    assert [line.rpartition(b"\x1b[K")[2] for line in lines] == [b"a note", b""]


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # the other end is closed
        return b""


def test_elsewhere_nothing_is_written() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SLOW.replace("sys.stdin.readline()", "import time; time.sleep(0.1)")],
        capture_output=True,
        check=True,
    )
    assert done.stderr == b"a note\n"
