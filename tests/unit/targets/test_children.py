"""Child processes of which each does what it should not: none holds up whoever talks to it, and none stays."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdctl.targets import children
from pdctl.targets.children import PARTS_A_TURN, Child
from tests.support.patience import until
from tests.support.tiny_ranks import ROOT


@pytest.fixture(autouse=True)
def no_children() -> Iterator[None]:
    yield
    children.end(list(children._running))


def test_one_that_writes_errors_without_end_is_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(("sleep", "600"))
    reads: list[int] = []
    read = os.read

    def counted(fd: int, size: int) -> bytes:
        reads.append(fd)
        assert len(reads) <= 100, "it is read for ever"
        return read(fd, size)

    with Path("/dev/zero").open("rb") as endless:
        os.dup2(endless.fileno(), child._err)
    monkeypatch.setattr(children.os, "read", counted)
    assert len(child.last_words) <= children.MAX_WORDS
    assert len(reads) == PARTS_A_TURN


def test_one_that_reads_nothing_fills_no_memory() -> None:
    child = Child(("sleep", "600"))
    for _ in range(children.MAX_UNSENT >> 20):
        child.send(bytes(1 << 20))
    with pytest.raises(OSError, match="has not read") as error:
        child.send(bytes(1 << 20))
    assert not isinstance(error.value, ConnectionError)
    child.close()
    child.flush()  # nothing is left to go into a file that has its number by now


def test_one_that_closes_its_input_and_stays_lets_who_waits_sleep() -> None:
    child = Child(("sh", "-c", "exec sleep 600 <&-"))
    with contextlib.suppress(ConnectionError):
        child.send(bytes(1 << 20))
    child._unsent += bytes(1 << 20)  # whichever of the two was first

    def refused() -> bool:
        try:
            child.flush()
        except ConnectionError:
            return True
        return False

    until("nobody reads its input", refused)
    assert not select.select([child], [], [], 0)[0], "it is ready for ever"


def test_one_that_was_set_aside_and_stays_is_killed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_EOF_S", 0.0)
    monkeypatch.setattr(children, "_TERM_S", 0.0)
    stays = Child(("sh", "-c", "trap '' TERM; echo ready; sleep 600; sleep 600"))
    until("it ignores the signal", stays.receive)
    children.set_aside(stays)
    assert stays.exit_code is None
    children.set_aside(Child(("sleep", "600")))
    until("it has ended", lambda: stays.exit_code == -signal.SIGKILL)
    children.end_aside()
    assert not children._running


PARENT = """
import os, subprocess, sys, time
from pdctl.targets.children import ends_with_this
print(subprocess.Popen([*ends_with_this(), "/bin/sleep", "600"], stdin=subprocess.DEVNULL).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("setpriv", ["this host's", "busybox's", "none"])
def test_a_program_ends_with_this_process_by_whatever_setpriv_is_there(tmp_path: Path, setpriv: str) -> None:
    path = os.environ["PATH"] if setpriv == "this host's" else str(tmp_path)
    if setpriv == "busybox's":
        file = tmp_path / "setpriv"
        file.write_text("#!/bin/sh\necho \"setpriv: unrecognized option '--pdeathsig'\" >&2\nexit 1\n")
        file.chmod(0o755)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    try:
        assert parent.stdout is not None
        command = Path(f"/proc/{int(parent.stdout.readline())}/cmdline")
        until("it runs", lambda: command.read_bytes().startswith(b"/bin/sleep"), 20.0)
    finally:
        parent.kill()
        parent.communicate()
    until("it has ended, too", lambda: not _read(command), 20.0)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it goes while it is read
        return b""


@pytest.mark.parametrize(
    "end", ["srun: error: gpu001: task 0: Exited with exit code 2", "command terminated with exit code 126"]
)
def test_the_last_words_are_the_cause_and_not_what_srun_and_kubectl_end_with(end: str) -> None:
    said = "execve(): pdctl: No such file or directory"
    child = Child(("sh", "-c", f"echo '{said}' >&2; echo '{end}' >&2"))
    until("it has ended", lambda: child.receive() or child.gone)
    assert child.last_words == said


def test_many_children_may_have_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[tuple[int, int]] = []
    monkeypatch.setattr(children.resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(children.resource, "setrlimit", lambda _, limits: allowed.append(limits))
    for many in (100, 2000, 9000):
        children.allow_files(many)
    assert allowed == [(2256, 4096), (4096, 4096)]
