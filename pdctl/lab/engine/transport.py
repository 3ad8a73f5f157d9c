"""Writes into another rank's memory: by Mooncake's TransferEngine over TCP, or over plain sockets.

Both have the shape of SGLang's ``distributed/device_communicators/mooncake_transfer_engine.py``: memory is registered
by address, a session is named ``host:port``, and a write returns 0 or a negative number.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from typing import Any, Protocol

Block = tuple[int, int, int]
"""Source address, destination address, bytes."""

HOST = "127.0.0.1"
_FRAME = struct.Struct("<QQ")


class Transport(Protocol):
    """What the lab needs of a transfer engine. ``name`` says which it is and why."""

    name: str

    @property
    def session_id(self) -> str:
        """Name of this rank for peers that write to it."""
        ...

    def register(self, address: int, length: int) -> None:
        """Let peers write into this memory."""

    def write(self, session: str, blocks: list[Block]) -> int:
        """Write all blocks into the peer's memory and return when they are there: 0, or a negative number."""
        ...


class MooncakeTransport:
    """Mooncake's TransferEngine over TCP. Raises ImportError or RuntimeError where it can't be had."""

    name = "mooncake tcp"

    def __init__(self) -> None:
        os.environ["MC_FORCE_TCP"] = "1"
        os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
        os.environ.setdefault("GLOG_minloglevel", "2")
        from mooncake.engine import TransferEngine

        self._engine: Any = TransferEngine()
        if self._engine.initialize(HOST, "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("Mooncake's TransferEngine did not initialise")

    @property
    def session_id(self) -> str:
        """Name of this rank for peers that write to it."""
        return f"{HOST}:{self._engine.get_rpc_port()}"

    def register(self, address: int, length: int) -> None:
        """Let peers write into this memory. Raises RuntimeError when the engine refuses."""
        if self._engine.register_memory(address, length) != 0:
            raise RuntimeError("Mooncake refused to register memory")

    def write(self, session: str, blocks: list[Block]) -> int:
        """Write all blocks into the peer's memory and return when they are there: 0, or a negative number."""
        sources, destinations, lengths = (list(column) for column in zip(*blocks, strict=True))
        return int(self._engine.batch_transfer_sync_write(session, sources, destinations, lengths))


class SocketTransport:
    """The same over plain TCP sockets: the peer copies what it is sent into memory that it has registered."""

    def __init__(self, why: str) -> None:
        self.name = f"plain sockets ({why})"
        self._regions: list[tuple[int, int]] = []
        self._peers: dict[str, socket.socket] = {}
        self._lock = threading.Lock()
        self._server = socket.create_server((HOST, 0))
        threading.Thread(target=self._accept, name="lab-transport", daemon=True).start()

    @property
    def session_id(self) -> str:
        """Name of this rank for peers that write to it."""
        return f"{HOST}:{self._server.getsockname()[1]}"

    def register(self, address: int, length: int) -> None:
        """Let peers write into this memory."""
        self._regions.append((address, length))

    def write(self, session: str, blocks: list[Block]) -> int:
        """Write all blocks into the peer's memory and return when they are there: 0, or -1 when the peer is gone."""
        with self._lock:
            try:
                peer = self._peers.get(session)
                if peer is None:
                    host, _, port = session.rpartition(":")
                    peer = self._peers[session] = socket.create_connection((host, int(port)), timeout=10)
                for source, destination, length in blocks:
                    peer.sendall(_FRAME.pack(destination, length) + ctypes.string_at(source, length))
                peer.sendall(_FRAME.pack(0, 0))
                return 0 if _exactly(peer, 1) == b"\0" else -1
            except OSError:
                self._peers.pop(session, None)
                return -1

    def _accept(self) -> None:
        while True:
            peer, _ = self._server.accept()
            threading.Thread(target=self._serve, args=(peer,), name="lab-transport", daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        good = True
        with peer:
            while True:
                try:
                    address, length = _FRAME.unpack(_exactly(peer, _FRAME.size))
                    if length == 0:
                        peer.sendall(b"\0" if good else b"\1")
                        good = True
                        continue
                    data = _exactly(peer, length)
                except OSError:
                    return
                if any(start <= address and address + length <= start + size for start, size in self._regions):
                    ctypes.memmove(address, data, length)
                else:
                    good = False


def _exactly(peer: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = peer.recv(count - len(data))
        if not part:
            raise ConnectionError("the peer closed the connection")
        data += part
    return bytes(data)


def make_transport(wanted: str) -> Transport:
    """Return the transport: ``mooncake``, ``socket``, or for ``auto`` Mooncake if it loads and sockets if it does not.

    Raises ImportError, OSError or RuntimeError when ``mooncake`` was asked for and can't be had.
    """
    if wanted == "socket":
        return SocketTransport("asked for")
    try:
        return MooncakeTransport()
    except (ImportError, OSError, RuntimeError) as error:
        if wanted == "mooncake":
            raise
        return SocketTransport(f"Mooncake can't load: {error}"[:120])
