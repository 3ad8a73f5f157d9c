"""A py-spy that others could replace is not run: who looks may be root."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.introspect import pyspy


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pyspy.shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    path = tmp_path / "env" / "bin" / "py-spy"
    path.parent.mkdir(parents=True, mode=0o755)
    path.touch(0o755)
    return path


def test_one_that_only_this_user_can_change_is_run(tmp_path: Path, command: Path) -> None:
    assert pyspy.find(os.getpid(), [tmp_path / "env"]) == str(command)


@pytest.mark.parametrize("place", ["env", "env/bin", "env/bin/py-spy"])
def test_one_that_others_could_replace_is_not_run(tmp_path: Path, command: Path, place: str) -> None:
    (tmp_path / place).chmod(0o777)
    with pytest.raises(pyspy.PySpyError, match="others can change"):
        pyspy.find(os.getpid(), [tmp_path / "env"])


def test_one_that_a_link_leads_to_is_not_run(tmp_path: Path, command: Path) -> None:
    command.unlink()
    command.symlink_to(sys.base_prefix + "/bin/python3")
    with pytest.raises(pyspy.PySpyError, match="not installed"):
        pyspy.find(os.getpid(), [tmp_path / "env"])


@pytest.fixture
def said_then(tmp_path: Path) -> Callable[[int, str], str]:
    """Return a py-spy that fails so many times with these words before it shows a stack."""

    def make(failures: int, words: str) -> str:
        path = tmp_path / "py-spy"
        path.write_text(
            f"#!/bin/sh\ncd {tmp_path}; echo >> looks\n"
            f'[ $(wc -l < looks) -gt {failures} ] || {{ echo "Error: {words}" >&2; exit 1; }}\n'
            f"""echo '[{{"os_thread_id": {os.getpid()}, "frames": [{{"name": "f", "filename": "g.py"}}]}}]'\n"""
        )
        path.chmod(0o755)
        return str(path)

    return make


def test_a_stack_that_changes_is_looked_at_again(said_then: Callable[[int, str], str]) -> None:
    stack = pyspy.main_thread(said_then(4, "Failed to get stack traces"), os.getpid(), 60)
    assert [frame.function for frame in stack.frames] == ["f"]


def test_a_stack_that_never_can_be_followed_ends_with_the_reason(said_then: Callable[[int, str], str]) -> None:
    with pytest.raises(pyspy.PySpyError, match="can't read it: Failed to get stack traces"):
        pyspy.main_thread(said_then(1000, "Failed to get stack traces"), os.getpid(), 60)
