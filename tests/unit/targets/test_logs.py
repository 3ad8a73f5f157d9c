"""How a rank ended, by the end of its engine's log; everything else of a log is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pdctl.targets import logs
from pdctl.targets.logs import Logged, ending

KILLED = "Subprocess scheduler_0 (pid=%d) crashed with exit code %d. Triggering SIGQUIT for cleanup...\n"


def exit_status(log: Path | None, pid: int) -> int:
    return ending(log, pid).status


@pytest.mark.parametrize(("code", "status"), [(-9, 9), (-6, 6), (1, 256), (255, 255 << 8), (0, 0)])
def test_the_main_process_notes_how_a_rank_ended(tmp_path: Path, code: int, status: int) -> None:
    log = tmp_path / "server.log"
    log.write_text("hello\n" + KILLED % (71, -15) + KILLED % (70, code) + "Sleeping 5 seconds\n")
    assert exit_status(log, 70) == status


def test_only_the_end_is_read_and_other_text_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(KILLED.encode() % (70, -9) + b"\xff\x00" * 600)
    assert exit_status(log, 70) == 9
    monkeypatch.setattr(logs, "TAIL", 1000)
    assert exit_status(log, 70) == 0
    log.write_text("(pid=70) crashed with exit code -9\nSubprocess x (pid=70) crashed with exit code -99999\n")
    assert exit_status(log, 70) == 0


def test_what_is_no_file_of_this_user_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert exit_status(None, 70) == 0
    assert exit_status(log, 70) == 0
    os.mkfifo(log)
    assert exit_status(log, 70) == 0
    other = tmp_path / "other.log"
    (tmp_path / "real.log").write_text(KILLED % (70, -9))
    other.symlink_to(tmp_path / "real.log")
    assert exit_status(other, 70) == 0, "a link that somebody put there"
    assert exit_status(Path("/dev/null"), 70) == 0


BEGINS = "[2026-05-04 10:11:12] server_args=ServerArgs(model_path='m')\n"


def test_what_an_earlier_start_noted_is_not_taken_for_this_one(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(BEGINS + KILLED % (70, -9) + BEGINS + "hello\n")
    assert exit_status(log, 70) == 0
    log.write_text(BEGINS + KILLED % (70, -9) + BEGINS + KILLED % (70, -6))
    assert exit_status(log, 70) == 6
    log.write_text(BEGINS + KILLED % (70, -9) + "a prompt: server_args=1\n")
    assert exit_status(log, 70) == 9


def test_the_server_may_have_ended_for_another_process(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    lost = (KILLED % (80, -9)).replace("scheduler_0", "detokenizer")
    log.write_text(BEGINS + lost)
    assert ending(log, 70) == Logged(0, "detokenizer", 9)
    log.write_text(BEGINS + lost + BEGINS)
    assert ending(log, 70) == Logged()
    log.write_text(BEGINS + KILLED % (70, -9) + lost)
    assert ending(log, 70) == Logged(9), "it went itself"
    log.write_text(BEGINS + KILLED % (71, -9))
    assert ending(log, 70) == Logged(), "another rank, which is told of by itself"
