"""A container whose root is hostile: its links, FIFOs and claims reach nothing of the host, and nothing waits for them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.protocol.wire import PROTOCOL
from pdctl.recording import format as f
from pdctl.recording.writer import RecordingWriter
from pdctl.targets.sources import containers
from tests.system.hostile.test_files import registration
from tests.system.hostile.test_strangers import PATIENT, box, inside, pdctl

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(600, method="signal"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a hostile container runs as this user"),
]
WAITS = "echo ready; exec sleep 1000"


def identity() -> dict[str, object]:
    found: dict[str, object] = json.loads(registration(5, 5, service=f"hostile-{os.getpid()}"))["identity"]
    return found


def fifo(folder: Path, _: Path) -> None:
    os.mkfifo(folder / "5-5.json")


def zero(folder: Path, _: Path) -> None:
    os.mknod(folder / "5-5.json", 0o20600, os.makedev(1, 5))


def sparse(folder: Path, _: Path) -> None:
    (folder / "5-5.json").touch()
    os.truncate(folder / "5-5.json", 3 << 30)


def link(folder: Path, secret: Path) -> None:
    (folder / "5-5.json").symlink_to(secret)


def of_somebody_else(folder: Path, _: Path) -> None:
    (folder / "5-5.json").write_text(registration(5, 5))
    os.chown(folder / "5-5.json", 12_345, -1)


@pytest.mark.parametrize("make", [fifo, zero, sparse, link, of_somebody_else])
def test_what_is_no_registration_is_said(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    (tmp_path / "secret").write_text(registration(5, 5, service="secret"))
    with box(WAITS) as child:
        folder = inside(child)
        make(folder, tmp_path / "secret")
        done = pdctl("ranks", "-o", "json", *PATIENT)
        said = done.stdout + done.stderr
        assert "5-5.json" in said
        assert "secret" not in said


@pytest.mark.parametrize("way", ["directory", "file", "up", "/proc/self/root"])
def test_no_file_of_the_host_is_read_as_a_recording(tmp_path: Path, way: str) -> None:
    who = identity()
    host = tmp_path / "host"
    host.mkdir(mode=0o700)
    RecordingWriter.create(host / "5-5.pdrec", json.dumps(who).encode(), size=f.MIN_SIZE)
    with box(f"mount -t tmpfs -o mode=0700 tmpfs {host} && {WAITS}") as child:  # it can't see the host's
        folder = inside(child)
        (folder / "out").symlink_to(host)
        (folder / "5-5.pdrec").symlink_to(host / "5-5.pdrec")
        (folder / "root").symlink_to("/proc/self/root")
        path = {
            "directory": f"/tmp/{folder.name}/out/5-5.pdrec",
            "file": f"/tmp/{folder.name}/5-5.pdrec",
            "up": f"/../../..{host}/5-5.pdrec",
            "/proc/self/root": f"/tmp/{folder.name}/root{host}/5-5.pdrec",
        }[way]
        (folder / "5-5.json").write_text(json.dumps({
            "protocol": PROTOCOL, "identity": who, "endpoint": "", "recording": path, "recording_size": f.MIN_SIZE,
        }))  # fmt: skip
        [rank] = [one for one in containers.find([], [], []) if one.identity.service == who["service"]]
        assert rank.recording is None
        assert rank.recording_off
        assert (host / "5-5.pdrec").exists(), "and it is there to be read, from here"


def test_no_socket_of_the_host_is_connected_to(tmp_path: Path) -> None:
    who = identity()
    host = tmp_path / "host"
    host.mkdir()
    with socket.socket(socket.AF_UNIX) as listens, box(f"mount -t tmpfs tmpfs {host} && {WAITS}") as child:
        listens.bind(str(host / "5-5.sock"))
        listens.listen()
        folder = inside(child)
        (folder / "out").symlink_to(host)
        (folder / "5-5.json").write_text(json.dumps({
            "protocol": PROTOCOL, "identity": who, "endpoint": f"ipc:///tmp/{folder.name}/out/5-5.sock",
        }))  # fmt: skip
        assert (folder / "out/5-5.sock").exists(), "the link leads there, from here"
        [rank] = [one for one in containers.find([], [], []) if one.identity.service == who["service"]]
        assert rank.endpoint == ""
        assert "out/5-5.sock is gone" in rank.endpoint_off


def test_a_flood_of_directories_and_registrations_ends() -> None:
    text = registration(5, 5)
    flood = "mount -t tmpfs -o mode=1777 tmpfs /tmp; cd /tmp; mkdir -m 0700 $(seq -f pdctl-%g 0 3000); cd pdctl-0; "
    write = f"echo '{text}' > a; for i in $(seq 1 5000); do ln a $i-1.json; done; {WAITS}"
    with box(flood + write) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        done = pdctl("ranks", "-o", "json", *PATIENT)
        assert "MemoryError" not in done.stderr
        assert "3001 run directories; 64 were looked at" in done.stdout + done.stderr
