"""A trace goes to standard output and comes on standard input as into a file; a terminal is refused."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.unit.trace.test_trace_container import SAMPLES

TRACE = SAMPLES / "sglang-0.5.12.post1-c1.pdtrace"


def pdctl(tmp_path: Path, *words: str, **streams: object) -> subprocess.CompletedProcess[bytes]:
    (tmp_path / "tmp").mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    errors = subprocess.PIPE
    command = [sys.executable, "-m", "pdctl", *words]
    return subprocess.run(command, check=False, env=env, stderr=errors, cwd=tmp_path, **streams)  # type: ignore[call-overload,no-any-return]


def test_through_pipes(tmp_path: Path) -> None:
    made = pdctl(tmp_path, "record", "-", "--from", str(TRACE), stdout=subprocess.PIPE)
    assert made.returncode == 0
    assert made.stdout[:4] == b"PK\3\4"
    assert b"whole" in made.stderr
    read = pdctl(tmp_path, "ranks", "--from", "-", "-o", "csv", input=made.stdout, stdout=subprocess.PIPE)
    assert (read.returncode, len(read.stdout.splitlines())) == (0, 4)
    assert [*(tmp_path / "tmp").iterdir(), *tmp_path.glob("-")] == []


def test_terminals_are_refused(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    try:
        written = pdctl(tmp_path, "record", "-", "--from", str(TRACE), stdout=slave)
        read = pdctl(tmp_path, "ranks", "--from", "-", stdin=slave, stdout=subprocess.PIPE)
    finally:
        os.close(master)
        os.close(slave)
    assert (written.returncode, b"standard output is a terminal" in written.stderr) == (2, True)
    assert (read.returncode, b"standard input is a terminal" in read.stderr) == (2, True)
    assert list(tmp_path.glob("-")) == []


def test_other_files_are_not_written_to_standard_output(tmp_path: Path) -> None:
    done = pdctl(tmp_path, "explore", str(TRACE), "--write", "-", stdout=subprocess.PIPE)
    assert (done.returncode, b"./-" in done.stderr) == (2, True)
