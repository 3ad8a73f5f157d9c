"""A py-spy that others could replace is not run: who looks may be root."""

from __future__ import annotations

import os
import sys
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
