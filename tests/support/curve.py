"""Keys for a test, ranks that listen with them, and bare connections that do what a well-behaved client would not."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

import zmq

from pdctl.protocol import keys, wire
from pdctl.protocol.model import EventKind
from pdctl.protocol.rank import Access, FoundRank
from pdctl.recording.reader import read
from pdctl.targets.sources.endpoints import unknown_rank
from tests.support.tiny_ranks import TinyRanks, Wire


class Keyring:
    """A directory of keys: the ranks' own, and clients with a role each."""

    def __init__(self, folder: Path, **roles: str) -> None:
        self.folder = folder / "keys"
        self.env = {"PDCTL_KEYS": str(self.folder)}
        self.server = keys.make(self.folder, keys.SERVER)
        self.pairs = {name: keys.make(self.folder, name) for name in roles}
        self.allow(**roles)

    def allow(self, **roles: str) -> None:
        """Write the list of clients anew."""
        listed = [keys.Client(name, role, self.pairs[name].public) for name, role in roles.items()]
        keys.write_authorized(self.folder, {client.public: client for client in listed})

    def stranger(self, name: str = "eve") -> None:
        """Make a key that nobody has authorised."""
        self.pairs[name] = keys.make(self.folder, name)

    def access(self, name: str, server_key: str = "") -> Access:
        """Return how ``name`` comes in."""
        pair = self.pairs[name]
        return Access(server_key or self.server.public, pair.public, pair.secret)

    def rank(self, endpoint: str, name: str) -> FoundRank:
        """Return a rank at ``endpoint`` that nobody has asked anything, for a client of its own."""
        return unknown_rank(endpoint, self.access(name))


def endpoint_of(ranks: TinyRanks, pid: int) -> str:
    """Return where a rank listens for other hosts, as it registered it."""
    [path] = ranks.run_dir.glob(f"{pid}-*.json")
    return str(json.loads(path.read_text())["tcp"])


def _text(file: Path) -> str:
    """Return what a file of /proc says, "" where its thread or process has ended meanwhile."""
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def gateway_of(pid: int) -> int:
    """Return the pid of a rank's gateway. Raises AssertionError while it has none."""
    children = [child for task in Path(f"/proc/{pid}/task").iterdir() for child in _text(task / "children").split()]
    [gateway] = [int(child) for child in children if "gateway/process.py" in _text(Path(f"/proc/{child}/cmdline"))]
    return gateway


def notes(ranks: TinyRanks, pid: int) -> list[str]:
    """Return what a rank's agent noted in its recording."""
    [path] = ranks.record_dir.glob(f"{pid}-*.pdrec")
    return [event.text for event in read(path).events() if event.kind == EventKind.NOTE]


class Curve(Wire):
    """A bare connection over TCP. ``how`` None: without CURVE; ``options`` are set before it connects."""

    def __init__(self, endpoint: str, how: Access | None, **options: Any) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if how is not None:
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, bytes.fromhex(how.server_key))
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, bytes.fromhex(how.public))
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(how.secret))
        for name, value in options.items():
            self.socket.setsockopt(getattr(zmq, name), value)
        self.socket.connect(endpoint)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.context.destroy(linger=0)

    def send(self, *frames: bytes) -> None:
        """Send frames as they are."""
        self.socket.send_multipart(frames)

    def reply(self, wait_ms: int = 20_000) -> wire.Reply | None:
        """Return the next reply, None when none comes."""
        return wire.decode_reply(self.socket.recv()) if self.socket.poll(wait_ms) else None

    def hello(self) -> None:
        """Ask who is there; the answer may never come."""
        self.send(wire.encode(wire.Request("hello", id=1)))
