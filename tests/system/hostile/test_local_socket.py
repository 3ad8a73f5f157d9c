"""Attacks on a rank's own socket, by whoever may open it: the rank's process feels none of them, and others are answered."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pdctl.agent.local import ALL_SHARE, BURST_S, MAX_CONNECTIONS
from pdctl.protocol import wire
from pdctl.protocol.model import Status
from pdctl.protocol.stream import HEAD, Connection, framed
from tests.support.patience import until
from tests.support.tiny_ranks import ROOT, TinyRanks, Wire

pytestmark = pytest.mark.system
BOUND = 64 << 20
"""What an agent may use for clients whatever they do (docs/security.md)."""
CHUNK = framed(wire.encode(wire.Request("recording", id=1, args={"offset": 0, "length": 1 << 20})))


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[TinyRanks]:
    with TinyRanks(tmp_path) as ranks:
        yield ranks


def memory(pid: int, name: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name))


def descriptors(pid: int) -> set[int]:
    return {int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir()}


def no_descriptor(pid: int) -> None:
    """Leave a process no descriptor but those it has."""
    used = descriptors(pid)
    free = next(fd for fd in range(len(used) + 1) if fd not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))


@contextlib.contextmanager
def connected(path: Path, count: int, data: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections that send ``data``, as much of it as is taken, and read nothing."""
    made: list[socket.socket] = []
    try:
        for _ in range(count):
            one = socket.socket(socket.AF_UNIX)
            made.append(one)
            one.connect(str(path))
            one.setblocking(False)
            with contextlib.suppress(OSError):
                one.send(data)
        yield made
    finally:
        for one in made:
            one.close()


def status(path: Path) -> Status:
    with Wire(path) as polite:
        return msgspec.msgpack.decode(polite.ask("status").body, type=Status)


def test_a_rank_without_a_descriptor_is_looked_at_and_lives(ranks: TinyRanks) -> None:
    child = ranks.start("--then", "sleep")
    path = ranks.socket_of(child)
    no_descriptor(child.pid)
    [row] = ranks.rows(code=0)
    assert row["state"] == "live"
    assert not ranks.pdctl("faults").returncode, "what answers was loaded while there were descriptors"
    assert not ranks.pdctl("heal", "--all").returncode
    failed: list[object] = []

    def client() -> None:
        try:
            for _ in range(5):
                with Connection(path) as connection:
                    wire.decode_reply(connection.ask(wire.encode(wire.Request("hello")), 60))
        except OSError as error:
            failed.append(error)

    clients = [threading.Thread(target=client) for _ in range(8)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert failed == []
    with connected(path, 20):  # they say nothing, and go to make room
        before, began = status(path).agent_cpu_s, time.monotonic()
        assert not ranks.pdctl("dump", "queues", "--rank-timeout", "60", "--timeout", "120").returncode
        used, wall = status(path).agent_cpu_s - before, time.monotonic() - began
    assert used < 0.5 * wall, "it does not spin while nobody can be let in"
    assert child.poll() is None


START = """
import os, resource, sys
from pdctl.agent.core import Agent
import pdctl.agent.server
from tests.system.targets.tiny import TinyAdapter
adapter = TinyAdapter(0, 1, 1, None)
{limit}
said = []
agent = Agent.start(adapter, says=said.append)
resource.setrlimit({which}, was)
print(said[0], flush=True)
assert [1] * 1000 and bytes(10 << 20)
print("goes on", flush=True)
"""
DESCRIPTORS = """
was = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + {free}, was[1]))
"""
ADDRESSES = """
was = resource.getrlimit(resource.RLIMIT_AS)
size = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + {free}, was[1]))
"""


@pytest.mark.parametrize("free", [0, 1, 2, 3])
def test_a_rank_that_starts_without_descriptors_goes_on(ranks: TinyRanks, free: int) -> None:
    assert "pdctl agent" in starts(ranks, DESCRIPTORS.format(free=free), "resource.RLIMIT_NOFILE")


@pytest.mark.parametrize("free", [0, 1 << 20, 4 << 20])
def test_a_rank_that_starts_without_memory_for_a_thread_goes_on(ranks: TinyRanks, free: int) -> None:
    said = starts(ranks, ADDRESSES.format(free=free), "resource.RLIMIT_AS", PDCTL_RECORD="off")
    # Where there is not even memory to get as far as the thread, the whole agent is off: the engine goes on either way.
    assert "can't start new thread" in said or said == "pdctl agent is off: MemoryError: "
    assert not list(ranks.run_dir.glob("*.sock"))


PROCESSES = """
import ctypes
libc, version, had = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
os.setresuid(65534, 0, 0)
assert libc.capget(version, had) == 0
had[0] &= ~(1 << 21 | 1 << 24)  # what an administrator may: more processes than the limit
assert libc.capset(version, had) == 0
was = resource.getrlimit(resource.RLIMIT_NPROC)
resource.setrlimit(resource.RLIMIT_NPROC, (0, was[1]))
"""


def test_a_rank_that_may_start_no_thread_goes_on(ranks: TinyRanks) -> None:
    if os.geteuid():
        pytest.skip("needs root, to be another user who may start nothing")
    assert "can't start new thread" in starts(ranks, PROCESSES, "resource.RLIMIT_NPROC")
    assert not list(ranks.run_dir.glob("*.sock"))


def starts(ranks: TinyRanks, limit: str, which: str, **env: str) -> str:
    program = START.format(limit=limit, which=which)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=ranks.env | env, capture_output=True, text=True, check=False
    )
    said, *rest = done.stdout.splitlines()
    assert (done.returncode, rest) == (0, ["goes on"]), done
    return said


def test_a_rank_short_of_memory_is_looked_at_and_lives(ranks: TinyRanks) -> None:
    child = ranks.start("--then", "sleep")
    path = ranks.socket_of(child)
    was = resource.prlimit(child.pid, resource.RLIMIT_AS)
    for free in (0, 1 << 18, 1 << 21):
        resource.prlimit(child.pid, resource.RLIMIT_AS, (memory(child.pid, "VmSize") + free, was[1]))
        for op in ("recording", "queues", "status", "heal", "flight_recorder", "metadata") * 5:
            args = {"offset": 0, "length": 1 << 20} if op == "recording" else {}
            with Connection(path) as connection, contextlib.suppress(ConnectionError):
                connection.ask(wire.encode(wire.Request(op, args=args)), 60)
    resource.prlimit(child.pid, resource.RLIMIT_AS, was)
    assert status(path).identity.pid == child.pid
    assert child.poll() is None


@pytest.mark.parametrize(
    ("count", "data"),
    [(200, CHUNK), (60, CHUNK * 20), (200, HEAD.pack(wire.MAX_REQUEST) + b"x" * (wire.MAX_REQUEST - 1)), (200, b"")],
    ids=["recordings unread", "many questions at once", "half a request", "nothing"],
)
def test_clients_that_hold_what_they_can_are_bounded_together(ranks: TinyRanks, count: int, data: bytes) -> None:
    child = ranks.start("--then", "sleep")
    path = ranks.socket_of(child)
    status(path)
    before, open_before = memory(child.pid, "VmRSS"), len(descriptors(child.pid))
    Path(f"/proc/{child.pid}/clear_refs").write_text("5")  # the peak begins anew
    with connected(path, count, data):
        for _ in range(3):
            status(path)
        assert len(descriptors(child.pid)) <= open_before + MAX_CONNECTIONS + 2
    assert memory(child.pid, "VmHWM") - before < BOUND // 2
    until("what is to come", lambda: len(descriptors(child.pid)) <= open_before + 1)
    status(path)
    assert memory(child.pid, "VmRSS") - before < BOUND // 3, "it is given back"


def test_a_flood_takes_its_share_of_the_thread_and_others_are_answered(ranks: TinyRanks) -> None:
    child = ranks.start("--then", "sleep", "--count", "2000")
    path = ranks.socket_of(child)
    program = f"""
import socket
from pdctl.protocol import wire
from pdctl.protocol.stream import framed
many = []
for _ in range(10):
    one = socket.socket(socket.AF_UNIX)
    one.connect({str(path)!r})
    one.setblocking(False)
    many.append(one)
question = framed(wire.encode(wire.Request("queues"))) * 10
print("floods", flush=True)
while True:
    for one in many:
        try:
            one.send(question)
        except BlockingIOError:
            pass
        try:
            one.recv(1 << 20)
        except BlockingIOError:
            pass
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as flood:
        try:
            assert flood.stdout is not None
            flood.stdout.readline()
            before, began = status(path).agent_cpu_s, time.monotonic()
            for _ in range(100):
                status(path)
            used, wall = status(path).agent_cpu_s - before, time.monotonic() - began
        finally:
            flood.kill()
    print(f"100 polite questions beside a flood: {wall * 10:.1f} ms each, agent {used / wall:.1%}")
    assert used <= BURST_S + 0.1 + ALL_SHARE * wall


def test_a_client_that_hangs_up_does_not_end_a_rank_that_dies_of_broken_pipes(ranks: TinyRanks) -> None:
    program = """
import signal, sys
from pdctl.agent.core import Agent
from tests.system.targets.tiny import TinyAdapter
agent = Agent.start(TinyAdapter(0, 1, 1, None))
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
print(agent.registration.endpoint, *sorted({"zmq"} & set(sys.modules)), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=ranks.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        ranks.children.append(child)
        assert child.stdout is not None
        [endpoint] = child.stdout.readline().split()  # and pyzmq is not loaded
        path = Path(endpoint.removeprefix("ipc://"))
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as rude:
                rude.connect(str(path))
                rude.sendall(CHUNK)
        status(path)
        child.communicate("")
        assert child.returncode == 0


def test_a_socket_whose_name_was_taken_away_is_there_again(ranks: TinyRanks) -> None:
    child = ranks.start("--then", "sleep")
    path = ranks.socket_of(child)
    path.unlink()
    until("what is to come", path.exists)
    [row] = ranks.rows(code=0)
    assert row["state"] == "live"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(path))
    until("what is to come", lambda: "live" in ranks.pdctl("ranks", "-o", "csv").stdout)
    assert child.poll() is None


def test_a_child_of_a_rank_does_not_hold_its_socket(ranks: TinyRanks) -> None:
    program = """
import os, sys, time
from pdctl.agent.core import Agent
from tests.system.targets.tiny import TinyAdapter
agent = Agent.start(TinyAdapter(0, 1, 1, None))
child = os.fork()
if child == 0:
    print(agent.registration.endpoint, os.getpid(), flush=True)
time.sleep(1_000_000)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, env=ranks.env, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        endpoint, child = parent.stdout.readline().split()
        try:
            status(Path(endpoint.removeprefix("ipc://")))
            parent.kill()
            parent.wait()
            with pytest.raises(ConnectionRefusedError), Wire(Path(endpoint.removeprefix("ipc://"))) as late:
                late.ask("hello")
        finally:
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk to fill")
def test_a_full_disk_leaves_the_rank_without_a_socket_or_with_one(ranks: TinyRanks, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", disk], check=False).returncode:
        pytest.skip("this root may not mount anything")

    def fill() -> None:
        with contextlib.suppress(OSError), (disk / "full").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    try:
        early = ranks.start("--then", "sleep", PDCTL_RUN_DIR=str(disk))
        fill()
        late = ranks.begin("--then", "sleep", PDCTL_RUN_DIR=str(disk))
        assert "No space left on device" in ranks.ready(late)
        [path] = disk.glob(f"{early.pid}-*.sock")
        assert status(path).identity.pid == early.pid
        path.unlink()
        until("what is to come", path.exists)
        assert status(path).identity.pid == early.pid
        assert [early.poll(), late.poll()] == [None, None]
    finally:
        for child in ranks.children:
            child.kill()
            child.wait()
        subprocess.run(["umount", disk], check=True)
