"""How a rank ended, by the end of its engine's log; everything else of a log is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pdctl.targets import logs
from pdctl.targets.logs import exit_status

KILLED = "Subprocess scheduler_0 (pid=%d) crashed with exit code %d. Triggering SIGQUIT for cleanup...\n"


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
