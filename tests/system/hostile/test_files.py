"""FIFOs, devices and links where pdctl looks for its own files: every command ends, says what is there, and goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.protocol.wire import PROTOCOL
from tests.support import cli_server
from tests.support.tiny_ranks import ROOT, TinyRanks

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]

GENEROUS_S = 120
"""How long a command is waited for that once never ended."""


AS_SOMEBODY_ELSE = """
import os, sys
from pdctl.cli import main
def run():
    try:
        main()
    except SystemExit as ended:
        return ended.code
with open(os.devnull, "w") as sys.stderr:
    run()  # whoever can't read this checkout has everything loaded then
sys.stderr = sys.__stderr__
os.setgroups([])
os.setresgid(1001, 1001, 1001)
os.setresuid(1001, 1001, 1001)
os.environ["HOME"] = "/nowhere"
sys.exit(run())
"""


class User:
    """Somebody who calls pdctl, with all directories of his own below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.run, self.record = folder / "run", folder / "record"
        for path in (self.home, self.run, self.record):
            path.mkdir(mode=0o700)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PDCTL_", "XDG_", "TORCH_FR"))}
        self.env = kept | {
            "HOME": str(self.home), "PDCTL_RUN_DIR": str(self.run), "PDCTL_RECORD_DIR": str(self.record),
            "PDCTL_OUTSIDE": "off",
        }  # fmt: skip

    def pdctl(self, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command; its time is not measured, but it has to end."""
        done = cli_server.run([*map(str, arguments)], self.env | env, cwd=ROOT)
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    path.touch(mode=0o600)
    os.truncate(path, 10 << 30)


def nested(path: Path) -> None:
    path.write_text("[" * 60_000)


@pytest.mark.parametrize("make", [fifo, zero, sparse, nested])
def test_a_registration_and_a_recording_that_are_none_are_said(user: User, make: Callable[[Path], None]) -> None:
    make(user.run / "3-3.json")
    make(user.record / "4-4.pdrec")
    done = user.pdctl("ranks")
    assert done.returncode == 4
    assert str(user.run / "3-3.json") in done.stderr
    assert str(user.record / "4-4.pdrec") in done.stderr
    assert user.pdctl("clean", "--all").returncode == 0
    assert not list(user.record.iterdir())


def registration(pid: int, start: int, recording: str = "", **identity: object) -> str:
    who = {
        "engine": "lab", "engine_version": "1", "pdctl_version": "0", "role": "decode", "host": "h", "pid": pid,
        "proc_start": start, "started_wall_ns": 0, "started_mono_ns": 0, "instance": "i", "service": "s", "cluster": "",
        "world": "w", "world_rank": 0, **identity,
    }  # fmt: skip
    return json.dumps(
        {"protocol": PROTOCOL, "identity": who, "endpoint": "", "recording": recording, "recording_size": 1 << 20}
    )


def test_what_a_registration_claims_is_not_believed(user: User, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    said = {
        "5-5.json": (registration(5, 5, str(tmp_path / "fifo")), "is a FIFO, not a regular file"),
        "6-6.json": (registration(6, 6, "/dev/zero", tp=1), "is a device, not a regular file"),
        "7-7.json": (registration(1, 7), "which its name does not say"),
        "8-8.json": (registration(8, 8, service="s" * 5000), "not a registration this pdctl reads"),
        "9-9.json": (registration(9, 9, tp=1 << 62), "not a registration this pdctl reads"),
        f"{'9' * 5000}-1.json"[-200:]: (registration(10, 10), "which its name does not say"),
        "11-11.json": (registration(11, 11, "/a\0b", tp=2), "can't be looked at"),
    }
    for name, (text, _) in said.items():
        (user.run / name).write_text(text)
    done = user.pdctl("ranks", "-o", "json")
    rows = json.loads(done.stdout)
    told = "\n".join([*rows["problems"], *(row["recording_off"] for row in rows["ranks"])])
    assert all(part in told for _, part in said.values()), told
    assert {row["pid"] for row in rows["ranks"]} == {5, 6, 11}
    assert user.pdctl("record", tmp_path / "all.pdtrace").returncode == 4


def test_ten_thousand_registrations_are_read_in_part(user: User) -> None:
    text = registration(1, 1)
    for number in range(10_000):
        (user.run / f"{number + 10}-1.json").write_text(text)
    done = user.pdctl("ranks", "--timeout", "20")
    assert done.returncode == 4
    assert "files .json; the others were not read" in done.stderr or "were not read in time" in done.stderr


@pytest.mark.parametrize("kind", ["contexts", "drill", "journal", "key"])
def test_a_file_that_is_named_is_no_fifo(user: User, tmp_path: Path, kind: str) -> None:
    config = user.home / ".config/pdctl"
    (config / "keys").mkdir(parents=True, mode=0o700)
    path = {
        "contexts": config / "contexts.toml", "drill": tmp_path / "d.yaml", "journal": tmp_path / "j.jsonl",
        "key": config / "keys/authorized",
    }[kind]  # fmt: skip
    os.mkfifo(path, 0o600)
    commands: dict[str, list[tuple[object, ...]]] = {
        "contexts": [("ranks",)],
        "drill": [("drill", "show", path), ("drill", "run", path)],
        "journal": [("drill", "judge", path)],
        "key": [("keys", "list")],
    }
    for command in commands[kind]:
        done = user.pdctl(*command)
        # The other keys are listed; a journal is what is looked at, as a trace is.
        assert done.returncode == {"key": 3, "journal": 4}.get(kind, 2), done
        assert "is a FIFO, not a regular file" in done.stderr + done.stdout
        path.unlink()
        path.symlink_to("/dev/zero")
        assert "is a device, not a regular file" in (done := user.pdctl(*command)).stderr + done.stdout
        path.unlink()
        os.mkfifo(path, 0o600)


def test_a_lock_that_is_a_fifo_or_a_link_is_not_waited_for(user: User) -> None:
    keys = user.home / ".config/pdctl/keys"
    keys.mkdir(parents=True, mode=0o700)
    os.mkfifo(keys / ".lock")
    done = user.pdctl("keys", "new", "alice")
    assert done.returncode == 2
    assert "is a FIFO" in done.stderr
    (keys / ".lock").unlink()
    (user.home / "victim").write_text("theirs")
    (keys / ".lock").symlink_to(user.home / "victim")
    assert user.pdctl("keys", "new", "alice").returncode == 2
    assert (user.home / "victim").read_text() == "theirs"


def test_faults_end_though_the_audit_log_is_a_fifo(tmp_path: Path) -> None:
    with TinyRanks(tmp_path) as ranks:
        ranks.start("--then", "sleep", PDCTL_ARM="1")
        log = tmp_path / "state/pdctl/audit.jsonl"
        log.parent.mkdir(parents=True, mode=0o700)
        os.mkfifo(log)
        done = ranks.pdctl(
            "heal", "--all", "--timeout", "60", "--rank-timeout", "60", XDG_STATE_HOME=str(tmp_path / "state")
        )
        assert done.returncode == 0, done
        assert f"audit log {log} can't be written: is a FIFO" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_what_may_not_be_looked_at_is_one_line(user: User, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "x.pdtrace").touch()
    for command in (
        ("ranks", "--from", closed / "x.pdtrace"),
        ("ranks", "--run-dir", closed / "run", "--record-dir", closed / "record"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", AS_SOMEBODY_ELSE, *map(str, command)],
            cwd=ROOT,
            env={name: value for name, value in user.env.items() if not name.startswith("PDCTL_")}
            | {"PDCTL_OUTSIDE": "off"},
            text=True,
            capture_output=True,
            timeout=GENEROUS_S,
            check=False,
        )
        assert done.returncode == 4, done
        assert "Traceback" not in done.stderr
        assert "can't be" in done.stderr
