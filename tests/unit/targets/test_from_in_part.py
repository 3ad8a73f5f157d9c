"""Commands with --from on recordings that are cut off, and on two starts of a server in one directory: they say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pdctl.cli import app
from tests.support.story_world import WALL, World, served

COMMANDS = ("stuck", "verify-routing", "dump metadata", "ranks", "diff-queues", "check")


def recorded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int = 1) -> None:
    world = World(tmp_path, monkeypatch)
    began = {"started_wall_ns": WALL + start * 10**9}
    prefill = world.rank("prefill", pid=10 * start, instance=f"prefill {start}", **began)
    decode = world.rank("decode", pid=10 * start + 1, instance=f"decode {start}", **began)
    served(world, prefill, [decode], 7, "r7")
    for rank in world.ranks:
        (folder / rank.path.name).write_bytes(world.data(rank))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "from"
    place.mkdir()
    recorded(place, tmp_path, monkeypatch)
    return place


def run(command: str, folder: Path) -> Result:
    return CliRunner().invoke(app, [*command.split(), "--from", str(folder)])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_recording_that_is_cut_off(command: str, folder: Path) -> None:
    whole = run(command, folder)
    assert whole.exit_code == 0, whole.output
    assert "earlier" not in whole.stderr
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:70_000])
    done = run(command, folder)
    assert done.exit_code == 3, done.output
    said = " ".join(done.stderr.split())
    assert "decode dp0 pp0 tp0; prefill dp0 pp0 tp0: recording: cut off: 70000 of " in said


@pytest.mark.parametrize(("command", "first"), [("stuck", "room,rid,side"), ("verify-routing", "room,rids,verdict")])
def test_csv_without_rows_has_their_header(command: str, first: str, folder: Path) -> None:
    [header] = run(f"{command} -o csv", folder).stdout.splitlines()
    assert header.startswith(first)


@pytest.mark.parametrize("command", COMMANDS)
def test_ranks_of_an_earlier_start_are_said_to_be_left_out(
    command: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(folder, tmp_path, monkeypatch, start=2)
    done = run(command, folder)
    assert done.exit_code == 0, done.output
    assert "2 dead ranks of earlier starts" in done.stderr
