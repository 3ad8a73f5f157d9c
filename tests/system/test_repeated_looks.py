"""Looks that are repeated, over one lab: ``--watch`` of commands, and ``pdctl top`` with and without screens."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator

import pytest

from tests.support.labs import Lab, Labs
from tests.support.patience import patience, until

pytestmark = pytest.mark.system

HOME = "\x1b[H\x1b[J"


class Terminal:
    """A command on a terminal of 80 × 24. text: all that it has written."""

    def __init__(self, env: dict[str, str], *words: str) -> None:
        self.text = ""
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        command = [sys.executable, "-m", "pdctl", *words]
        env = {**env, "TERM": "xterm-256color"}
        self._process = subprocess.Popen(command, env=env, stdin=follower, stdout=follower, stderr=follower)
        os.close(follower)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def type(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    def interrupt(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        """Wait for its end; return its exit code."""
        try:
            return self._process.wait(patience(30))
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join(patience(10))
            os.close(self._leader)

    def _read(self) -> None:
        try:
            while data := os.read(self._leader, 1 << 16):
                self.text += data.decode(errors="replace")
        except OSError:
            pass  # the command has ended


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Labs() as labs:
        made = labs.up("--without", "gate")
        made.load(requests=2)
        yield made


def test_on_a_terminal_looks_take_each_others_place(lab: Lab) -> None:
    shown = Terminal(lab.labs.env, "ranks", "--watch", "200ms")
    until("three looks", lambda: shown.text.count(HOME) >= 3)
    assert shown.interrupt() == 0
    _, *looks = shown.text.split(HOME)
    assert all("exit code 0, again after 200ms" in look for look in looks)
    assert all(look.count("dp0 pp0 tp1") == 1 for look in looks)
    assert "Traceback" not in shown.text


def test_into_a_pipe_each_line_has_the_time_of_its_look(lab: Lab) -> None:
    looking = lab.labs.start("diff-queues", "--watch", "200ms", "-o", "jsonl")
    assert looking.stdout is not None
    times: set[int] = set()
    for line in looking.stdout:
        times.add(json.loads(line)["at_wall_ns"])
        if len(times) == 3:
            break
    looking.send_signal(signal.SIGINT)
    looking.stdout.read()
    assert looking.wait(patience(30)) == 0


@pytest.mark.parametrize("words", ["faults --watch 200ms", "top --plain --every 200ms"])
def test_a_reader_that_goes_ends_it_quietly(lab: Lab, words: str) -> None:
    looking = lab.labs.start(*words.split())
    assert looking.stdout is not None
    assert looking.stderr is not None
    assert "T" in looking.stdout.readline()
    looking.stdout.close()
    assert looking.wait(patience(30)) == 0
    assert looking.stderr.read() == ""


def test_top_looks_into_a_rank_and_comes_back(lab: Lab) -> None:
    pytest.importorskip("textual", reason="pip install 'pdctl[top]'")
    shown = Terminal(lab.labs.env, "top", "--every", "200ms")
    until("the ranks", lambda: "decode dp0 pp0 tp1" in shown.text)
    shown.type("\r")
    until("its stack", lambda: "stacks," in shown.text)
    shown.type("\x1b")
    until("the ranks again", lambda: "verdict" in shown.text.rpartition("stacks,")[2])
    shown.type("q")
    assert shown.end() == 0
    assert "Traceback" not in shown.text


def test_without_a_terminal_top_shows_a_divergence(lab: Lab) -> None:
    lab.inject_late_metadata()
    loading = lab.labs.start("lab", "load", "-n", "1", "--seconds", "5")
    looking = lab.labs.start("top", "--every", "300ms")
    assert looking.stdout is not None
    seen = iter(looking.stdout)
    assert any("DIVERGED" in line for line in seen)
    assert any(line.startswith("PD101 ") for line in seen)
    assert any("DIVERGED" in line for line in seen), "the look before has ended"
    looking.send_signal(signal.SIGINT)
    looking.stdout.read()
    assert looking.wait(patience(30)) == 1
    loading.communicate(timeout=patience(60))
