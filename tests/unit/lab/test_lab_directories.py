"""Directories that a lab can't use are said before anything starts."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from pdctl.commands.lab_show import LabProcess, LabStatus, draw_lab
from pdctl.lab import launch, state
from pdctl.lab.config import LabConfig
from pdctl.protocol import paths
from pdctl.protocol.errors import Exit, PdctlError


@pytest.mark.parametrize(
    ("ask", "variable"), [(state.run_dir, "PDCTL_RUN_DIR"), (state.record_dir, "PDCTL_RECORD_DIR")]
)
def test_a_directory_that_is_open_to_others_or_none(ask: object, variable: str, tmp_path: Path) -> None:
    assert callable(ask)
    good = tmp_path / "good"
    assert ask({variable: str(good)}) == good
    assert good.stat().st_mode & 0o777 == 0o700
    good.chmod(0o755)
    file = tmp_path / "file"
    file.write_text("")
    for wrong, why in ((good, "open to others"), (file, "not a directory"), (file / "in", "Not a directory")):
        with pytest.raises(PdctlError, match=why) as raised:
            ask({variable: str(wrong)})
        assert raised.value.code == Exit.USAGE
        assert variable in raised.value.next_step
        assert "0700" in raised.value.next_step


def test_a_lab_that_others_keep_to_themselves_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(PdctlError, match="there is no lab 'x'"):
        state.read_config(tmp_path / "lab-x")
    monkeypatch.setattr(state, "read_regular", refuse)
    with pytest.raises(PdctlError, match="can't be read") as raised:
        state.read_config(tmp_path / "lab-x")
    assert raised.value.code == Exit.UNREACHABLE


def test_recordings_stay_where_they_are_wanted(tmp_path: Path) -> None:
    config = LabConfig("x", run_dir=str(tmp_path / "run"), record_dir=str(tmp_path))
    config.state_dir.mkdir(parents=True)
    recording = tmp_path / f"{paths.stem(5, 7)}{paths.RECORDING_SUFFIX}"
    recording.write_text("")
    ended = [state.Process("x", 5, 7)]
    assert state.remove_files(config, ended, recordings=False) == []
    assert recording.exists()
    assert not config.state_dir.exists()
    assert state.remove_files(config, ended) == []
    assert not recording.exists()


def test_why_plain_sockets_move_kv_is_said_once() -> None:
    row = LabProcess(
        process="prefill dp0 pp0 tp0",
        pid=1,
        state="ready",
        detail="",
        endpoint="",
        transport="plain sockets (no Mooncake)",
    )
    status = LabStatus(
        name="x", prefill="", decode="", without=[], armed=True, load_balance="", metadata_device="", network="",
        bootstrap="", run_dir="", processes=[row, row],
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=120)
    draw_lab(status, console)
    assert console.file.getvalue().count("no Mooncake") == 1  # type: ignore[attr-defined]
    assert console.file.getvalue().count("plain sockets") == 3  # type: ignore[attr-defined]


def test_a_lab_in_a_default_directory_that_others_could_have_made_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pdctl"
    config = LabConfig("x", run_dir=str(folder))
    config.state_dir.mkdir(parents=True)
    (config.state_dir / "lab.json").write_bytes(msgspec.json.encode(config))
    folder.chmod(0o755)
    with pytest.raises(PdctlError, match="open to others"):
        launch.status("x", {"XDG_RUNTIME_DIR": str(tmp_path)})
    folder.chmod(0o700)
    assert launch.status("x", {"XDG_RUNTIME_DIR": str(tmp_path)})[0] == config


def test_a_lab_that_says_it_is_elsewhere_removes_nothing_there(tmp_path: Path) -> None:
    there, other = LabConfig("x", run_dir=str(tmp_path)), LabConfig("../kept", run_dir=str(tmp_path))
    there.state_dir.mkdir()
    (tmp_path / "lab-..").mkdir()
    (tmp_path / "kept").mkdir()
    (there.state_dir / "lab.json").write_bytes(msgspec.json.encode(other))
    with pytest.raises(PdctlError, match="says that its lab is in"):
        launch.down(there.state_dir)
    assert (tmp_path / "kept").exists()
    assert there.state_dir.exists()
