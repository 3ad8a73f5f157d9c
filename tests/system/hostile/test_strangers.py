"""What others leave where pdctl looks does not change what a command says of one's own ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import cli_server
from tests.support.tiny_ranks import ROOT, TinyRanks
from tests.system.hostile.test_files import registration

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(600, method="signal"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else"),
]
OTHER = 12_345
SERVICE = f"strangers-{os.getpid()}"
PATIENT = ("--timeout", "60", "--rank-timeout", "60")


@contextmanager
def box(script: str) -> Iterator[subprocess.Popen[str]]:
    """Run a shell script with mounts of its own, and the usual directories of all users empty; it says ready and waits."""
    usual = f"mount -t tmpfs -o mode=1777 tmpfs /dev/shm && mount -t tmpfs -o mode=0700 tmpfs /tmp/pdctl-{os.getuid()}"
    Path(f"/tmp/pdctl-{os.getuid()}").mkdir(mode=0o700, exist_ok=True)
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "--kill-child",
        "--fork",
        "sh",
        "-c",
        f"{usual} && {script}",
    ]
    if shutil.which("unshare") is None or subprocess.run([*command[:-3], "true"], check=False).returncode:
        pytest.skip("this user may not make namespaces")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PDCTL_", "TORCH_FR", "XDG_"))}
    child = subprocess.Popen(
        command, cwd=ROOT, env=kept | {"TINY_SERVICE": SERVICE, "PDCTL_OUTSIDE": "off", "PYTHON": sys.executable},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def inside(child: subprocess.Popen[str]) -> Path:
    """Return the run directory of a box, as seen from here."""
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    [pid] = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    return Path(f"/proc/{pid}/root/tmp/pdctl-{os.getuid()}")


@contextmanager
def stranger(folder: str, file: str = "") -> Iterator[None]:
    """Have a mount namespace of another user, in whose /tmp is a run directory of his."""
    made = f"mount -t tmpfs -o mode=1777 tmpfs /tmp && mkdir -m 0700 /tmp/{folder} && cat > /tmp/{folder}/7-7.json"
    script = (
        f"{made} && chown -R {OTHER} /tmp/{folder} && exec setpriv --reuid={OTHER} sh -c 'echo ready; exec sleep 1000'"
    )
    child = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(file)
        child.stdin.close()
        assert child.stdout.readline() == "ready\n"
        yield
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def pdctl(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PDCTL_", "TORCH_FR", "XDG_"))}
    return cli_server.run(arguments, kept | {"PDCTL_OUTSIDE": "off"} | (env or {}), cwd=ROOT)


@pytest.fixture(scope="module")
def answering() -> Iterator[dict[str, str]]:
    """A rank in a container of this user; what registers it there, as JSON."""
    with box("exec $PYTHON -m tests.system.targets.tiny --count 3 --then exit") as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("ready")
        rows = json.loads(pdctl("ranks", "-o", "json", *PATIENT).stdout)["ranks"]
        [row] = [row for row in rows if row["service"] == SERVICE]
        yield {"instance": row["instance"], "service": SERVICE, "cluster": row["cluster"]}


def test_a_directory_of_a_stranger_is_said_and_counts_for_nothing(answering: dict[str, str]) -> None:
    before = {line: pdctl(*line, *PATIENT).returncode for line in (("ranks",), ("check", "--only", "ranks"))}
    with stranger("pdctl-1"):
        for line, code in before.items():
            done = pdctl(*line, *PATIENT)
            assert done.returncode == code, done
            assert done.stderr.count("left alone: ") == 1
            assert f"belongs to uid {OTHER}, not to uid 0" in done.stderr
            said = json.loads(pdctl(*line, "-o", "json", *PATIENT).stdout)
            assert any(f"belongs to uid {OTHER}" in one for one in said["others"])
            assert not any(f"belongs to uid {OTHER}" in one for one in said["problems"])


def test_it_counts_where_it_claims_to_be_of_a_server_that_is_looked_at(answering: dict[str, str]) -> None:
    with stranger("pdctl-1", registration(7, 7, **answering)):
        done = pdctl("ranks", "-o", "json", *PATIENT)
        said = json.loads(done.stdout)
        assert done.returncode == 3
        assert any(f"claims to be of {SERVICE}" in one for one in said["problems"])
        assert not [row for row in said["ranks"] if row["pid"] == 7], "it is not believed"


def test_a_registration_of_a_container_that_can_not_be_used_counts_as_one_of_a_stranger(
    answering: dict[str, str],
) -> None:
    before = pdctl("ranks", *PATIENT).returncode
    with box("echo ready; exec sleep 1000") as child:
        folder = inside(child)
        (folder / "7-8.json").write_text(registration(7, 7))  # of another process than its name says
        (folder / "7-7.json").write_text(registration(7, 7))
        os.chown(folder / "7-7.json", OTHER, -1)
        done = pdctl("ranks", *PATIENT)
        assert done.returncode == before, done
        assert "left alone: " in done.stderr
        for name in ("7-7.json", "7-8.json"):
            (folder / name).write_text(registration(7, 7, **answering))
            done = pdctl("ranks", "-o", "json", *PATIENT)
            said = json.loads(done.stdout)
            assert done.returncode == 3
            [problem] = [one for one in said["problems"] if f"{folder.name}/{name} claims" in one]
            assert f"claims to be of {SERVICE}; it " in problem, problem
            assert not [row for row in said["ranks"] if row["pid"] == 7], "it is not believed"
            (folder / name).unlink()


def test_a_file_of_a_stranger_in_ones_own_run_directory_counts_as_one_in_his(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with TinyRanks(tmp_path) as ranks:
        ranks.start()
        [row] = json.loads(pdctl("ranks", "-o", "json", *PATIENT, env=ranks.env).stdout)["ranks"]
        (run / "7-7.json").write_text(registration(7, 7))
        os.chown(run / "7-7.json", OTHER, -1)
        done = pdctl("ranks", *PATIENT, env=ranks.env)
        assert done.returncode == 0, done
        assert f"left alone: {run}/7-7.json belongs to uid {OTHER}" in done.stderr
        mine = {name: row[name] for name in ("instance", "service", "cluster")}
        (run / "7-7.json").write_text(registration(7, 7, **mine))
        done = pdctl("ranks", *PATIENT, env=ranks.env)
        assert done.returncode == 3, done
        assert f"7-7.json claims to be of {row['service']}; it belongs to uid {OTHER}" in done.stderr


def test_shared_memory_that_somebody_else_made_first_is_not_used() -> None:
    made = f"mkdir -m 0777 /dev/shm/pdctl && chmod 0777 /dev/shm/pdctl && chown {OTHER} /dev/shm/pdctl"
    with box(f"{made} && exec $PYTHON -m tests.system.targets.tiny --count 3 --then exit") as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("ready")
        rows = json.loads(pdctl("ranks", "-o", "json", *PATIENT).stdout)["ranks"]
        [row] = [row for row in rows if row["service"] == SERVICE and "/dev/shm/pdctl-0/" in row["recording"]]
        root = Path(f"/proc/{row['pid']}/root")
        assert list((root / "dev/shm/pdctl").iterdir()) == []
        assert len(list((root / "dev/shm/pdctl-0").iterdir())) == 1


def test_usual_places_that_a_stranger_made_are_said_and_left(tmp_path: Path) -> None:
    """Run directory, and both record directories, are his; a directory of one's own is still looked into."""
    own = tmp_path / "runtime"
    (own / "pdctl").mkdir(parents=True, mode=0o700)
    (own / "pdctl/7-7.json").write_text(registration(7, 7))
    theirs = "/dev/shm/pdctl /dev/shm/pdctl-0 /tmp/pdctl-0"
    script = (
        f"mount -t tmpfs -o mode=1777 tmpfs /dev/shm; mount -t tmpfs tmpfs /tmp/pdctl-0; "
        f"mkdir -p {theirs}; chown {OTHER} {theirs}; "
        f"XDG_RUNTIME_DIR={own} PDCTL_CONTAINERS=off $PYTHON -m pdctl.cli ranks 2>&1; echo code $?"
    )
    with box(script) as child:
        said, _ = child.communicate()
    assert "code 4" in said, "its only rank is dead, and left no recording"
    assert "/dev/shm/pdctl-0 belongs to uid 12345" in said or "/tmp/pdctl-0 belongs to uid 12345" in said
    assert "process has ended" in said or "dead" in said
