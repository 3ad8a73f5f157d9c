"""Attacks over TCP on a rank that listens: its process feels none of them, and its gateway stays small and comes again."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zmq

from pdctl.gateway.limits import ALL_SHARE, BURST_S, KEY_SHARE
from pdctl.gateway.relay import MAX_CONNECTIONS
from pdctl.gateway.service import CPU_BURST_S, CPU_SHARE
from pdctl.protocol import wire
from pdctl.protocol.model import Status
from pdctl.protocol.paths import Registration
from pdctl.targets.client import Client
from tests.support.curve import Curve, Keyring, endpoint_of, gateway_of, notes
from tests.support.patience import until
from tests.support.tiny_ranks import ROOT, TinyRanks

pytestmark = pytest.mark.system
ANYWHERE = "tcp://127.0.0.1"
BOUND = 64 << 20
"""What an agent, with its gateway, may use for clients whatever they do (docs/security.md)."""
LITTLE = 8 << 20
"""More than the rank's own process needs for any of this."""
CHUNK = wire.encode(wire.Request("recording", id=1, args={"offset": 0, "length": 1 << 20}))


class Watched:
    """A process and how large it has been since it was last looked at. Memory in bytes, CPU time in seconds."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
        self.before = self.now()

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name))

    def now(self) -> int:
        return self._status("VmRSS")

    def grew(self) -> int:
        return self._status("VmHWM") - self.before

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def there(self) -> bool:
        return Path(f"/proc/{self.pid}").exists() and "(zombie)" not in Path(f"/proc/{self.pid}/status").read_text()


def watched(pid: int) -> tuple[Watched, Watched]:
    """Return a rank's process and its gateway's."""
    return Watched(pid), Watched(gateway_of(pid))


def clock() -> float:
    """Return seconds that pass with the machine's."""
    return os.times().elapsed


def port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def greeted(endpoint: str) -> socket.socket:
    """Return a connection that has shaken hands without CURVE, as a DEALER does."""
    made = socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=60)
    made.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    heard = b""
    while len(heard) < 64:
        heard += made.recv(64 - len(heard))
    ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    made.sendall(bytes([4, len(ready)]) + ready)
    return made


def sent_until_cut_off(endpoint: str, block: bytes) -> int:
    """Return how many bytes went out before the other side ended the connection."""
    sent = 0
    with greeted(endpoint) as stranger, contextlib.suppress(ConnectionError):
        while True:
            sent += stranger.send(block)
    return sent


@contextlib.contextmanager
def many(ring: Keyring, where: str, name: str, count: int) -> Iterator[list[Curve]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Curve(where, ring.access(name), RCVHWM=1, RCVBUF=4096)) for _ in range(count)]


def test_a_message_without_an_end_is_not_kept(ranks: TinyRanks) -> None:
    child = ranks.start("--then", "sleep", PDCTL_LISTEN=ANYWHERE, PDCTL_LISTEN_OPEN="observe")
    where = endpoint_of(ranks, child.pid)
    rank, gateway = watched(child.pid)
    tiny = b"\x01\x00" * 32768  # two bytes on the wire, 64 in libzmq
    large = b"\x03" + struct.pack(">Q", 65000) + bytes(65000)
    with ThreadPoolExecutor(8) as pool:
        attacks = [pool.submit(sent_until_cut_off, where, block) for block in (tiny, large) * 4]
        with Curve(where, None) as other:
            while not all(attack.done() for attack in attacks):
                assert not other.ask("hello").error, "others are served meanwhile"
        assert all(attack.result() for attack in attacks)
    assert rank.grew() < LITTLE
    assert gateway.grew() < LITTLE
    assert any("never ends" in note for note in notes(ranks, child.pid))


def test_clients_that_read_no_answer_fill_nothing(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start("--then", "sleep", PDCTL_LISTEN=ANYWHERE, PDCTL_RECORD_SIZE="4m", **ring.env)
    where = endpoint_of(ranks, child.pid)
    rank, gateway = watched(child.pid)
    with many(ring, where, "alice", 200) as silent:
        asked = 0
        while asked < 2000:
            for one in silent:
                with contextlib.suppress(zmq.Again):
                    one.socket.send(CHUNK, zmq.NOBLOCK)
                    asked += 1
        with Curve(where, ring.access("bob")) as other:
            other.hello()
            assert other.reply(120_000) is not None, "another key gets its turn"
        assert len(list(Path(f"/proc/{gateway.pid}/fd").iterdir())) < 3 * MAX_CONNECTIONS + 32
    assert rank.grew() < LITTLE
    assert rank.grew() + gateway.grew() < BOUND
    until("what is to come", lambda: gateway.now() - gateway.before < LITTLE)  # it is given back
    assert gateway.there()


def test_floods_take_no_more_time_than_they_may(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start("--then", "sleep", PDCTL_LISTEN=ANYWHERE, **ring.env)
    where = endpoint_of(ranks, child.pid)
    rank, gateway = watched(child.pid)
    over = threading.Event()
    question = wire.encode(wire.Request("queues", id=1))

    def frames() -> None:
        """Send messages of so many frames that they are no questions."""
        with Curve(where, ring.access("alice")) as client:
            client.socket.setsockopt(zmq.SNDTIMEO, 1000)
            while not over.is_set():
                with contextlib.suppress(zmq.Again):
                    client.socket.send_multipart([b""] * 3000 + [b"x"])

    def questions() -> None:
        with Curve(where, ring.access("alice"), SNDHWM=1000) as client:
            while not over.is_set():
                with contextlib.suppress(zmq.Again):
                    client.socket.send(question, zmq.NOBLOCK)
                client.reply(0)

    floods = [threading.Thread(target=flood, daemon=True) for flood in (frames, frames, questions, questions)]
    used, began = gateway.cpu_s(), clock()
    for flood in floods:
        flood.start()
    try:
        with Client(timeout_s=120, rank_timeout_s=60) as polite:
            bob = ring.rank(where, "bob")
            first = polite.ask([bob], "status", Status)[0].body
            while clock() - began < 3 * (BURST_S + CPU_BURST_S):
                last = polite.ask([bob], "status", Status)[0].body
                assert last is not None, "every polite question is answered"
    finally:
        took = clock() - began
        over.set()
        for flood in floods:
            flood.join()
    assert first is not None
    agent = last.agent_cpu_s - first.agent_cpu_s
    print(
        f"flooded for {took:.1f} s: agent {agent / took:.1%}, gateway {(gateway.cpu_s() - used) / took:.1%} of a core"
    )
    assert agent < 2 * BURST_S + 2 * KEY_SHARE * took, "what two keys may use of the agent's thread"
    assert agent < BURST_S + ALL_SHARE * took
    assert gateway.cpu_s() - used < CPU_BURST_S + CPU_SHARE * took + 1.0
    assert rank.grew() < LITTLE
    assert gateway.grew() < LITTLE


def test_questions_that_no_client_asks_are_answered_with_an_error(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start("--then", "sleep", PDCTL_LISTEN=ANYWHERE, **ring.env)
    _, gateway = watched(child.pid)
    asks = wire.encode(wire.Request("status", id=3))
    nested = b"\x84" + asks[1:].removesuffix(b"\xa4args\x80") + b"\xa4args\x81\xa1a" + b"\x91" * 60_000 + b"\xc0"
    with Curve(endpoint_of(ranks, child.pid), ring.access("alice")) as client:
        for question in (
            nested,
            b"\xc1",
            b"\xdf\xff\xff\xff\xff",
            asks[:-2],
            wire.encode(wire.Request("status", v=99)),
        ):
            client.send(question)
            reply = client.reply(60_000)
            assert reply is not None
            assert reply.error
        assert not client.ask("status").error
    assert gateway.there()


def test_a_gateway_without_descriptors_refuses_and_is_there_again(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start("--then", "sleep", PDCTL_LISTEN=ANYWHERE, **ring.env)
    where = endpoint_of(ranks, child.pid)
    _, gateway = watched(child.pid)
    before = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
    with Curve(where, ring.access("bob")) as early:
        assert not early.ask("hello").error
        there = len(list(Path(f"/proc/{gateway.pid}/fd").iterdir()))
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (there, before[1]))
        with Curve(where, ring.access("alice")) as late:
            late.hello()
            until(
                "what is to come", lambda: any("no file descriptors left" in note for note in notes(ranks, child.pid))
            )
            assert not early.ask("hello").error, "who is in is served on"
            resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, before)
            assert late.reply(60_000) is not None
    assert gateway.there()


def test_a_gateway_that_ends_is_started_again_where_it_was(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start("--then", "sleep", PDCTL_LISTEN=ANYWHERE, **ring.env)
    where = endpoint_of(ranks, child.pid)

    def answers() -> bool:
        with Curve(where, ring.access("alice")) as client:
            client.hello()
            return client.reply(2000) is not None

    for number in range(2):
        _, gateway = watched(child.pid)
        if number:
            resource.prlimit(gateway.pid, resource.RLIMIT_DATA, (1 << 20, 1 << 20))
            until("what is to come", lambda: answers() and not gateway.there())  # noqa: B023
        else:
            os.kill(gateway.pid, signal.SIGKILL)
        until("what is to come", answers)
        assert gateway_of(child.pid) != gateway.pid
    said = [note for note in notes(ranks, child.pid) if "another one is started" in note]
    assert len(said) == len(set(said)), "each way to end is noted once"
    assert any("SIGKILL" in note for note in said), said
    assert child.poll() is None


def test_a_gateway_ends_with_its_rank_however_that_ends(ranks: TinyRanks, ring: Keyring) -> None:
    killed = ranks.start("--then", "sleep", PDCTL_LISTEN=ANYWHERE, **ring.env)
    ended = ranks.start(PDCTL_LISTEN=ANYWHERE, **ring.env)
    gateways = [Watched(gateway_of(child.pid)) for child in (killed, ended)]
    killed.kill()
    ended.communicate("")
    until("what is to come", lambda: not any(gateway.there() for gateway in gateways))
    assert {path.suffix for path in ranks.run_dir.iterdir()} <= {".sock", ".json", ".stacks"}, (
        "nothing of theirs is left"
    )


def test_a_gateway_gets_nothing_of_the_engine(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start("--then", "sleep", PDCTL_LISTEN=ANYWHERE, OPENAI_API_KEY="secret", **ring.env)
    gateway = Path(f"/proc/{gateway_of(child.pid)}")
    assert b"secret" not in (gateway / "environ").read_bytes()
    opened = {str(path.readlink()) for path in (gateway / "fd").iterdir()}
    assert not any(".pdrec" in name for name in opened)
    of_rank = {str(path.readlink()) for path in Path(f"/proc/{child.pid}/fd").iterdir()}
    shared = {name for name in opened & of_rank if name.startswith(("socket:", "/"))}
    assert shared <= {"/dev/null"}
    maps = Path(f"/proc/{child.pid}/maps").read_text()
    assert "libzmq" not in maps, "the engine's process has not loaded it"


NO_PROCESS = """
import os, resource, zmq, msgspec
from pathlib import Path
from pdctl.agent.gateway import Gateway
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
os.setuid(65534)
try:
    Gateway({"PDCTL_LISTEN": "tcp://127.0.0.1"}, Path("/nowhere/1-1.sock"), print)
except OSError as error:
    print("said:", error)
"""


def test_where_no_process_can_be_started_it_is_said(ranks: TinyRanks) -> None:
    if os.geteuid():
        pytest.skip("needs root, to be another user who may start nothing")
    done = subprocess.run(
        [sys.executable, "-c", NO_PROCESS], cwd=ROOT, env=ranks.env, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("said: can't start its gateway: Resource temporarily unavailable"), done


def test_sixteen_clients_fetch_recordings_at_once(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start("--then", "sleep", PDCTL_LISTEN=ANYWHERE, PDCTL_RECORD_SIZE="4m", **ring.env)
    where = endpoint_of(ranks, child.pid)
    rank, gateway = watched(child.pid)

    def fetch(_: int) -> int:
        with Client(timeout_s=300, rank_timeout_s=120) as client:
            far = ring.rank(where, "alice")
            [told] = client.ask([far], "hello", Registration)
            assert told.body is not None
            part = client.recordings.part(far, 0, told.body.recording_size)
            return len(part.body or b"") - told.body.recording_size

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(fetch, range(16))) == [0] * 16
    assert rank.grew() < LITTLE
    assert rank.grew() + gateway.grew() < BOUND
    assert gateway.there()
