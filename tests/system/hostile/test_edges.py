"""Streams, variables and paths as they should not be: the documented exit code, one line, no traceback, nothing left over."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.inject.drill.records import Manifest, Problem
from pdctl.inject.drill.schema import Drill
from pdctl.protocol.errors import Exit
from tests.support import cli_server
from tests.support.labs import Labs
from tests.system.hostile.test_files import registration

TRACE = Path(__file__).parents[2] / "data" / "version-1.pdtrace"
LONG = "x" * 300
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2
LIBC = ctypes.CDLL(None)


def as_anybody() -> None:
    """Let file modes hold for root, too, in the program that is started next."""
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def no_room() -> None:
    """Let every write into a file fail."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PDCTL_", "COLUMNS"))}
    own = {"PDCTL_RUN_DIR": "run", "PDCTL_RECORD_DIR": "rec", "XDG_CONFIG_HOME": "config", "XDG_CACHE_HOME": "cache"}
    return kept | {name: str(tmp_path / place) for name, place in own.items()}


def pdctl(
    env: dict[str, str], *words: object, shell: str = "", before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    typed = [word if isinstance(word, bytes) else str(word) for word in words]
    if shell or before or bytes in map(type, typed):
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$0" -m pdctl.cli "$@" {shell}', sys.executable, *typed], env=env,
            capture_output=True, text=True, preexec_fn=before, check=False,
        )  # fmt: skip
    else:
        done = cli_server.run(typed, env)
    for sign in ("Traceback", "Exception ignored", "of pdctl's own"):
        assert sign not in done.stderr
    return done


# ---- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    ["--help", "--version", "ranks --help", "explain -o csv", "context list", "keys new x", "keys list", "drill list"],
)
def test_what_can_not_be_written_is_said(command: str, env: dict[str, str]) -> None:
    done = pdctl(env, *command.split(), shell=">/dev/full")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        3,
        "pdctl: standard output can't be written: No space left on device",
    )


def test_a_worse_exit_code_is_kept_where_the_result_can_not_be_written(tmp_path: Path, env: dict[str, str]) -> None:
    journal = tmp_path / "journal"
    records = (
        Manifest(pdctl="1", python="3", started=1.0, seed=1, control=False, drill=Drill(name="x", about="y")),
        Problem(at=1.0, step="heal", message="a rank is silent", code=Exit.FAULT_ACTIVE),
    )
    journal.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run/7-7.json").write_text(registration(7, 7))
    for command, code in (
        (("drill", "judge", journal), 6),
        (("attach", 4_000_000), 4),
        (("ranks",), 4),
        (("stuck",), 4),
    ):
        shown = pdctl(env, *command)
        assert (shown.returncode, bool(shown.stdout)) == (code, True), shown
        full = pdctl(env, *command, shell=">/dev/full")
        assert full.returncode == code, full
        assert "standard output can't be written: No space left on device" in full.stderr


def test_a_command_that_writes_nothing_there_loses_nothing(tmp_path: Path, env: dict[str, str]) -> None:
    key = "1cbfc4d53534eace11be4efaa5a85ee406ea85b3d6a661f8958f5449ef4ae251"
    for shell in ("", ">/dev/full"):
        env["XDG_CONFIG_HOME"] = str(tmp_path / f"config{shell[-4:]}")
        for command in ("context add x", "context use x", f"keys authorize {key} --role observe", f"keys revoke {key}"):
            done = pdctl(env, *command.split(), shell=shell)
            assert (done.returncode, done.stdout) == (0, ""), done


@pytest.mark.parametrize(
    ("command", "shell", "code"),
    [
        ("--help", ">&-", 0),
        ("explain PD101", ">&- 2>&- <&-", 0),
        ("ranks --nope", "2>&-", 2),
        ("ranks --nope", "2>/dev/full", 2),
        ("run -- true", ">&-", 0),
        ("--version", "2>/dev/full <&-", 0),
    ],
)
def test_closed_and_full_streams_change_no_exit_code(command: str, shell: str, code: int, env: dict[str, str]) -> None:
    assert pdctl(env, *command.split(), shell=shell).returncode == code


def test_a_file_that_is_opened_does_not_become_the_closed_standard_output(tmp_path: Path, env: dict[str, str]) -> None:
    made = tmp_path / "made.pdtrace"
    assert pdctl(env, "record", made, "--from", TRACE, shell=">&-").returncode == 3  # one rank has no recording
    assert pdctl(env, "record", tmp_path / "again.pdtrace", "--from", made).returncode == 3


@pytest.mark.parametrize("command", ["explain PD101", "story 7 --from"])
def test_a_small_character_set_is_no_reason_to_fail(command: str, env: dict[str, str]) -> None:
    words = [*command.split(), *([TRACE] if command.endswith("--from") else [])]
    done = pdctl({**env, "PYTHONIOENCODING": "ascii"}, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


# ---- variables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        {"COLUMNS": "9" * 20, "LINES": "9" * 20},
        {"COLUMNS": "9" * 6000, "TERM": "\x1b[2J"},
        {"COLUMNS": "\u00b2", "LINES": "\u00b2", "LANG": "C", "LC_ALL": "C"},
        {"COLUMNS": "0", "LINES": "-1", "TMPDIR": "/nowhere", "HOME": ""},
    ],
    ids=str,
)
def test_odd_variables_are_no_reason_to_fail(odd: dict[str, str], env: dict[str, str]) -> None:
    done = pdctl({**env, **odd}, "explain", "PD101")  # not in this process: pytest itself may fail because of them
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("PD101")
    done = pdctl({**env, **odd}, "story", 7, "--from", TRACE)
    assert done.returncode == 0, done.stderr


# ---- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", LONG, f"{'y/' * 3000}z"])
@pytest.mark.parametrize(
    "command",
    [
        "ranks --from", "replay", "record", "story 7 --plot", "ranks --run-dir", "clean --record-dir", "drill judge",
        "lab up --run-dir", "replay x --plot", "explore", "explore --model ranks=2 --write",
    ],
)  # fmt: skip
def test_a_path_that_nothing_can_have_is_wrong_usage(command: str, path: str) -> None:
    done = CliRunner().invoke(app, [*command.split(), path])
    assert done.exit_code == 2, done.output
    assert ("it is empty" if not path else "File name too long") in done.stderr
    assert len(done.stderr) < 500


@pytest.mark.parametrize("command", ["context add x --run-dir", "lab up --run-dir"])
def test_a_name_that_is_not_utf_8_is_wrong_usage(command: str, tmp_path: Path, env: dict[str, str]) -> None:
    done = pdctl({**env, "XDG_CONFIG_HOME": str(tmp_path)}, *command.split(), os.fsencode(tmp_path) + b"/a\xff")
    assert done.returncode == 2, done.stderr
    assert r"a\udcff" in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(("lab-", ".contexts"))]


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A file in a directory that may not be entered."""
    folder = tmp_path / "locked"
    folder.mkdir()
    (folder / "file").write_bytes(TRACE.read_bytes())
    folder.chmod(0)
    yield folder / "file"
    folder.chmod(0o700)


@pytest.mark.parametrize(
    ("command", "code"), [("ranks --from", 4), ("replay", 4), ("explore", 4), ("record", 2), ("story 7 --perfetto", 2)]
)
def test_where_one_may_not_look(command: str, code: int, locked: Path, env: dict[str, str]) -> None:
    done = pdctl(env, *command.split(), locked, before=as_anybody)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        code,
        f"pdctl: {locked} can't be reached: Permission denied",
    )


# ---- labs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["/proc/here", "file", "file/below", "locked/run"])
def test_a_lab_needs_a_directory(place: str, tmp_path: Path, locked: Path, env: dict[str, str]) -> None:
    (tmp_path / "file").touch()
    before = sorted(tmp_path.iterdir())
    done = pdctl(env, "lab", "up", "--run-dir", tmp_path / place, before=as_anybody)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"pdctl: the run directory {tmp_path / place} can't be used: ")
    assert sorted(tmp_path.iterdir()) == before
    del locked


def test_a_lab_on_a_full_disk_leaves_nothing() -> None:
    with Labs() as labs:  # whose run directory has a path short enough for sockets
        done = pdctl(labs.env, "lab", "up", before=no_room)
        assert done.returncode == 2, done.stderr
        assert "can't be used: File too large" in done.stderr
        assert not list((labs.folder / "run").glob("lab-*"))


def test_a_lab_that_is_not_there_is_not_ended_in_any_directory(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "file").touch()
    for place in ("nowhere", "file"):
        assert pdctl(env, "lab", "down", "--run-dir", tmp_path / place).returncode == 4


def test_ending_a_lab_removes_what_it_can_and_says_what_is_left() -> None:
    with Labs() as labs:
        lab = labs.up("--decode", "tp=1")
        recordings = labs.folder / "rec"
        recordings.chmod(0o500)
        try:
            done = pdctl(labs.env, "lab", "down", before=as_anybody)
        finally:
            recordings.chmod(0o700)
        assert done.returncode == 3, done.stderr
        assert "ended; not all its files could be deleted" in done.stdout
        left = sorted(str(path) for path in recordings.iterdir())
        assert sorted(done.stderr.splitlines()) == [f"left: {path}: Permission denied" for path in left]
        assert len(left) == 2
        assert lab.left() == []
        assert not list((labs.folder / "run").glob("lab-*"))
