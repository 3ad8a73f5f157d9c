"""Agents that answer whatever they like, to hurt who looks: each is a row with a reason, and the command stays small."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from pdctl.protocol import paths, wire
from pdctl.protocol.model import Identity
from pdctl.protocol.processes import look
from pdctl.protocol.stream import HEAD, framed
from pdctl.recording import format as f
from pdctl.recording.writer import RecordingWriter
from tests.support import crafted
from tests.support.patience import patience
from tests.support.tiny_ranks import ROOT, TinyRanks

pytestmark = pytest.mark.system
MANY = 16
SMALL_CLIENT = 256 << 20
"""What a command may use, whatever ranks answer."""

PROGRAM = """
import sys
from pdctl.cli import main
try:
    main()
finally:
    print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")), end="", file=sys.stderr)
"""
"""Tells its own peak: what wait4 tells begins with that of the process it was forked from."""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[TinyRanks]:
    with TinyRanks(tmp_path) as ranks:
        yield ranks


def ran(ranks: TinyRanks, *args: str, **env: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """Return how a command ended, by itself, and the most memory that it used, in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *args, "-o", "json"],
        cwd=ROOT, env=ranks.env | env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    err, _, peak = done.stderr.rpartition("VmHWM:")
    print(f"{args[0]} took {peak.strip()}")
    assert "Traceback" not in err
    return done, int(peak.split()[0]) << 10


def looked(ranks: TinyRanks, *args: str, **env: str) -> tuple[list[dict[str, str]], str]:
    """Return the rows of a command that ends by itself, and its errors; it must have stayed small."""
    done, peak = ran(ranks, *args, **env)
    assert peak < SMALL_CLIENT
    return json.loads(done.stdout)["ranks"], done.stderr


def reply(body: object) -> bytes:
    """Return a reply to whatever was asked."""
    return wire.encode(wire.Reply(body=msgspec.Raw(wire.encode(body))))


def error(text: str) -> bytes:
    return wire.encode(wire.Reply(error=text))


LARGE = reply({"queues": {"decode.transfer": [(1, "")] * 1_900_000}})
KINDS: dict[str, tuple[bytes, str]] = {
    "large": (LARGE, "can't be read"),
    "long error": (error("no \x1b[2J" * 900_000), "can't be read"),
    "error": (error("x" * 50_000), "xxxx"),
    "garbage": (b"\xc1" * 1000, "can't be read"),
}


class Far:
    """Ranks of another host that are none: each answers every question alike."""

    def __init__(self, count: int, answer: Callable[[], bytes]) -> None:
        self._context = zmq.Context()
        self._stop = threading.Event()
        self.endpoints: list[str] = []
        self._poller = zmq.Poller()
        for _ in range(count):
            one: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
            one.setsockopt(zmq.LINGER, 0)
            port = one.bind_to_random_port("tcp://127.0.0.1")
            self.endpoints.append(f"tcp://127.0.0.1:{port}")
            self._poller.register(one, zmq.POLLIN)
        self._answer = answer
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            for one, _ in self._poller.poll(100):
                client, *_ = one.recv_multipart()
                with contextlib.suppress(zmq.ZMQError):
                    one.send_multipart([client, self._answer()])

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)


@pytest.mark.parametrize("kind", KINDS)
def test_far_ranks_that_answer_too_much_are_rows_with_a_reason(ranks: TinyRanks, kind: str) -> None:
    answer, reason = KINDS[kind]
    far = Far(MANY, lambda: answer)
    try:
        rows, _ = looked(
            ranks, "ranks", "--timeout", "60", "--rank-timeout", "15", PDCTL_ENDPOINT=" ".join(far.endpoints)
        )
    finally:
        far.close()
    assert len(rows) == MANY
    assert all(reason in row["reason"] and len(row["reason"]) < 5000 for row in rows), rows[0]


class Endless:
    """Speaks as much of ZMTP as it takes to send a message of empty frames that never ends."""

    GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
    READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._flood, args=(client,), daemon=True).start()

    def _flood(self, client: socket.socket) -> None:
        ready = bytes([4, len(self.READY)]) + self.READY
        frames = b"\x01\x00" * 32768
        with contextlib.suppress(OSError), client:
            client.sendall(self.GREETING + ready)
            heard = b""
            while b"READY" not in heard:
                part = client.recv(4096)
                if not part:
                    return  # it only looked whether anybody listens
                heard += part
            while True:
                client.sendall(frames)

    def close(self) -> None:
        self._server.close()


def test_a_far_rank_whose_message_never_ends_is_found_among_honest_ones(ranks: TinyRanks) -> None:
    endless = [Endless(), Endless()]
    far = Far(2, lambda: error("not today"))
    try:
        where = [endless[0].endpoint, *far.endpoints, endless[1].endpoint]
        limits = ("--timeout", f"{patience(60):.0f}", "--rank-timeout", f"{patience(15):.0f}")
        rows, _ = looked(ranks, "ranks", *limits, PDCTL_ENDPOINT=" ".join(where))
    finally:
        far.close()
        for one in endless:
            one.close()
    reasons = sorted(row["reason"] for row in rows)
    assert ["and no end" in one for one in reasons] == [True, True, False, False], reasons
    assert reasons[2:] == ["not today"] * 2


def head(who: Identity, size: int) -> bytes:
    """Return the header of a recording of this size."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pdrec"
        RecordingWriter.create(path, msgspec.json.encode(who), size=f.MIN_SIZE)
        made = bytearray(path.read_bytes()[: f.HEADER_SIZE])
    crafted.set_size(made, size)
    return bytes(made)


class Near:
    """Registrations of processes that are no ranks, and what answers at their sockets."""

    def __init__(self, ranks: TinyRanks, count: int, data: bytes, *, endless: bool = False, recording: int = 0) -> None:
        """recording: bytes that each says its recording has, and answers with."""
        child = ranks.start("--then", "sleep")
        path = ranks.socket_of(child)
        mine = paths.read_registration(path.with_suffix(".json"))
        child.kill()
        child.wait()
        self._data, self._endless, self._recording = data, endless, recording
        self._head = b""
        self._listeners: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for number in range(count):
            self._processes.append(subprocess.Popen(["sleep", "1000"]))
            pid = self._processes[-1].pid
            start = look(pid).start
            place = path.with_name(f"{paths.stem(pid, start)}{paths.SOCKET_SUFFIX}")
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(place))
            listener.listen()
            self._listeners.append(listener)
            who = msgspec.structs.replace(mine.identity, pid=pid, proc_start=start, service=f"s{number}")
            r = msgspec.structs.replace(mine, identity=who, endpoint=f"ipc://{place}", recording="", recording_size=0)
            if recording:
                file = place.with_suffix(".told")  # a file that is there; what is in it is not asked for
                file.touch()
                r = msgspec.structs.replace(r, recording=str(file), recording_size=recording)
                self._head = self._head or head(who, recording)
            paths.write_private(place.with_suffix(".json"), msgspec.json.encode(r))
            threading.Thread(target=self._serve, args=(listener,), daemon=True).start()
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while asked := client.recv(65536):
                request = wire.decode_request(asked[HEAD.size :])
                if self._recording and request.op == "recording":
                    offset, length = (request.args[name] for name in ("offset", "length"))
                    body = self._head[offset : offset + length].ljust(length, b"\1")
                    answer = wire.Reply(id=request.id, body=msgspec.Raw(wire.encode(body)))
                    client.sendall(framed(wire.encode(answer)))
                    continue
                client.sendall(self._data)
                while self._endless:
                    client.sendall(self._data)

    def close(self) -> None:
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("data", "endless", "reason"),
    [
        (framed(LARGE), False, "can't be read"),
        (HEAD.pack(2**32 - 1), True, "4294967295 bytes"),
        (framed(wire.encode(wire.Reply(id=1 << 40))), True, "no answer within"),
        (framed(error("y" * 500_000)), False, "yyyy"),
    ],
    ids=["large", "endless", "answers to nobody", "long error"],
)
def test_near_ranks_that_answer_too_much_are_rows_with_a_reason(
    ranks: TinyRanks, data: bytes, endless: bool, reason: str
) -> None:
    near = Near(ranks, MANY, data, endless=endless)
    try:
        rows, _ = looked(ranks, "ranks", "--timeout", "60", "--rank-timeout", "5")
    finally:
        near.close()
    there = [row for row in rows if row["state"] == "silent"]
    assert len(there) == MANY, rows
    assert all(reason in row["reason"] and len(row["reason"]) < 5000 for row in there), there[0]


HUGE = 600 << 20
"""Bytes of a recording that is delivered, none of them a hole: more than twice what a command may use."""


@pytest.mark.parametrize("command", ["diff-queues", "record"])
def test_a_recording_that_is_really_delivered_takes_no_memory(ranks: TinyRanks, tmp_path: Path, command: str) -> None:
    near = Near(ranks, 1, framed(error("only recordings")), recording=HUGE)
    made = tmp_path / "made.pdtrace"
    try:
        words = (str(made),) if command == "record" else ()
        done, peak = ran(ranks, command, *words, "--through", "sockets", "--timeout", "120", "--rank-timeout", "20")
    finally:
        near.close()
    assert "round record(s) torn and left out" in done.stdout, done
    assert peak < SMALL_CLIENT
    assert (command == "record") == made.exists()
