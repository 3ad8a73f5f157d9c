"""Ranks in containers of this host, seen from the host: other mounts, other pids, other host name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdctl.targets.sources import containers
from tests.support.patience import patience, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]

ROOT = Path(__file__).parents[2]
UNSHARE = ("unshare", "--mount", "--uts", "--fork", "--kill-child")
BOXES = {"seen from the host": (*UNSHARE, "--pid", "--mount-proc"), "seen from a sidecar, pids shared": UNSHARE}
SERVICE = f"contained-{os.getpid()}"
"""Ranks of others may be in this host's usual directories."""


def env() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PDCTL_", "TORCH_FR", "XDG_RUNTIME"))}
    return {**kept, "TINY_SERVICE": SERVICE, "PDCTL_OUTSIDE": "off"}


class Contained:
    """A rank with a /tmp and a /dev/shm of its own, which is process 1 or so in there."""

    def __init__(self, name: str, box: tuple[str, ...]) -> None:
        own = f"/tmp/pdctl-{os.getuid()}"  # not all of /tmp: this test may be in there
        script = (
            f"mkdir -p -m 0700 {own} && mount -t tmpfs -o mode=0700 tmpfs {own} && mount -t tmpfs tmpfs /dev/shm && hostname "
            f"{name} && exec {sys.executable} -m tests.system.targets.tiny --count 3 --then exit"
        )
        self.process = subprocess.Popen(
            [*box, "sh", "-c", script],
            cwd=ROOT,
            env=env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(params=BOXES)
def contained(request: pytest.FixtureRequest) -> Iterator[Contained]:
    if (
        shutil.which("unshare") is None
        or subprocess.run([*BOXES[request.param], "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not make namespaces")
    made = Contained("in-a-box", BOXES[request.param])
    yield made
    made.end()


def pdctl(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pdctl.cli", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**env(), **more}, capture_output=True, text=True, timeout=patience(120), check=False
    )


def rows(*arguments: str, **more: str) -> list[dict[str, Any]]:
    done = pdctl("ranks", "-o", "json", *arguments, **more)
    found = json.loads(done.stdout)["ranks"] if done.stdout else []
    return [row for row in found if row["service"] == SERVICE]


def test_a_rank_in_a_container_answers_to_the_host(contained: Contained) -> None:
    [row] = rows()
    assert row["state"] == "live"
    assert row["pid"] > 1
    assert Path(f"/proc/{row['pid']}/cmdline").read_bytes().count(b"tests.system.targets.tiny"), "its pid here"
    done = pdctl("dump", "queues", "-o", "json")
    requests = [r for r in json.loads(done.stdout)["requests"] if r["service"] == SERVICE]
    assert len(requests) == 3
    # Its recording is read through the container, too.
    found = {rank.identity.service: rank for rank in containers.find([], [], [])}
    assert found[SERVICE].recording is not None
    assert str(found[SERVICE].recording).startswith(f"/proc/{row['pid']}/root/") or found[SERVICE].recording.exists()
    # A directory of one's own is all that is looked into, and the way through containers can be left.
    assert rows(PDCTL_CONTAINERS="off") == []
    contained.end()
    until("no rank in the list", lambda: rows() == [])


def test_what_a_container_has_prepared_is_not_followed(contained: Contained) -> None:
    [row] = rows()
    folder = Path(f"/proc/{row['pid']}/root/tmp") / f"pdctl-{os.getuid()}"
    (folder / "7-7.json").symlink_to("/etc/passwd")
    (folder / "8-8.json").write_text("{}")
    others: list[str] = []
    found = [rank for rank in containers.find([], others, []) if rank.identity.service == SERVICE]
    assert len(found) == 1
    said = "\n".join(others)
    assert "7-7.json is a link, which is not followed" in said
    assert "8-8.json" in said
    assert "root:" not in said
    assert [one["pid"] for one in rows()] == [row["pid"]]
    folder.chmod(0o755)
    others.clear()
    assert not [rank for rank in containers.find([], others, []) if rank.identity.service == SERVICE]
    assert any("is open to others" in one for one in others)
