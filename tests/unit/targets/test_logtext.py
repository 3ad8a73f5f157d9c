"""Log files that are huge, packed, cut off or no files at all: what is read of them, and what is said not to be."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from pdctl.targets import logtext
from pdctl.targets.logtext import LogText, read_log

NAME = b"rid-0123456789"
PATIENCE_S = 60.0


def read(path: Path, *names: bytes) -> LogText:
    return read_log(path, names or (NAME,), lambda line: True, PATIENCE_S)


def lines(count: int) -> bytes:
    return b"".join(b"line %d %s\r\n" % (n, NAME if n % 3 == 0 else b"other") for n in range(count))


def test_lines_that_hold_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(lines(6) + b"no end " + NAME)
    found = read(tmp_path / "a.log", NAME, b"line 3")
    assert found.lines == (b"line 0 " + NAME, b"line 3 " + NAME, b"no end " + NAME)
    assert (found.unread, found.why_not, found.dropped) == ("", "", 0)
    assert found.last.startswith(b"line 5")
    assert read_log(tmp_path / "a.log", [NAME], lambda line: line.endswith(NAME[:3]), PATIENCE_S).lines == ()


def test_names_over_the_end_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_bytes(lines(200))
    for size in (32, 64, 100):
        monkeypatch.setattr(logtext, "_CHUNK", size)
        assert len(read(tmp_path / "a.log").lines) == 67


def test_the_tail_of_a_huge_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = lines(3000)
    (tmp_path / "a.log").write_bytes(data)
    monkeypatch.setattr(logtext, "TAIL", 1 << 12)
    found = read(tmp_path / "a.log")
    assert found.lines[-1] == b"line 2997 " + NAME
    assert 50 < len(found.lines) < 100
    assert found.unread.startswith("its first ")
    assert "of a log" in found.unread


def test_a_hole_of_ten_gigabytes_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logtext, "TAIL", 1 << 16)
    with (tmp_path / "a.log").open("wb") as file:
        file.truncate(10 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + NAME + b"\n")
    found = read(tmp_path / "a.log")
    assert found.lines == (NAME,)
    assert found.unread.startswith("its first 10.0 GiB: ")


def test_packed_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(lines(3000))
    (tmp_path / "a.log.gz").write_bytes(packed)
    assert len(read(tmp_path / "a.log.gz").lines) == 1000
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) // 2])
    cut = read(tmp_path / "cut.gz")
    assert cut.lines
    assert cut.unread.startswith("what follows a damage after ")
    (tmp_path / "false.gz").write_bytes(b"\x1f\x8b and no more")
    assert "damage" in read(tmp_path / "false.gz").unread
    monkeypatch.setattr(logtext, "TAIL", 1 << 12)
    monkeypatch.setattr(logtext, "_CHUNK", 1 << 10)
    assert "unpack it" in read(tmp_path / "a.log.gz").unread


def test_a_name_in_every_line_is_kept_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logtext, "MOST_LINES", 10)
    (tmp_path / "a.log").write_bytes(b"".join(b"%d %s\n" % (n, NAME) for n in range(100)))
    found = read(tmp_path / "a.log")
    assert [line.split()[0] for line in found.lines] == [b"%d" % n for n in (0, 1, 2, 3, 4, 95, 96, 97, 98, 99)]
    assert found.dropped == 90


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert "FIFO" in read(tmp_path / "fifo").why_not
    assert "directory" in read(tmp_path).why_not
    assert "No such file" in read(tmp_path / "none").why_not


def test_no_time_left(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(lines(10))
    found = read_log(tmp_path / "a.log", [NAME], lambda line: True, 0.0)
    assert found.lines == ()
    assert found.unread.startswith("its last ")
    assert "--timeout" in found.unread
