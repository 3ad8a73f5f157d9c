"""Connections of a client to ranks, which never wait: to a rank of this host over its Unix socket, to others over ZeroMQ."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Protocol

from pdctl.protocol.stream import PART, Reader, framed

AGAIN_S = 0.02
"""After how long what can't be waited for is tried again: a connection where too many wait already."""
_TRIES = 3
"""How often a question is asked over a new connection where the old one ended without an answer."""
_PARTS_A_TURN = 16


class Line(Protocol):
    """One connection. It is asked one question at a time."""

    def begin(self, payload: bytes, limit: int) -> None:
        """Ask; an answer may have ``limit`` bytes. Raises OSError where nobody can be asked."""

    def turn(self) -> bytes | None:
        """Return the answer, None while it is not whole. Raises OSError where none can come, ValueError for what is none."""

    @property
    def poll_on(self) -> object:
        """What a poll watches, None where it has to be tried again after AGAIN_S."""

    @property
    def held(self) -> int:
        """Bytes of an answer that is not whole."""


class LocalLine:
    """A line to a rank of this host."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._payload = b""
        self._out = memoryview(b"")
        self._reader = Reader(1)
        self._tries = 0
        self._again_at = 0.0

    def begin(self, payload: bytes, limit: int) -> None:
        """Ask. Raises OSError where nobody listens; where too many wait already it is tried again in turns."""
        self._payload, self._reader = framed(payload), Reader(limit)
        self._out = memoryview(self._payload)
        self._tries, self._again_at = _TRIES, 0.0
        if self._socket is None:
            self._connect()
        self._send()

    def turn(self) -> bytes | None:
        """Return the answer, None while it is not whole. Raises OSError, ValueError for an answer over the limit."""
        if self._socket is None and time.monotonic() >= self._again_at:
            self._connect()
        self._send()
        if self._socket is None:
            return None
        try:
            for _ in range(_PARTS_A_TURN):
                data = self._socket.recv(min(PART, self._reader.wants))
                if not data:
                    raise ConnectionError
                for answer in self._reader.feed(data):
                    return answer
        except BlockingIOError:
            pass
        except ConnectionError:
            self._ended()
        return None

    @property
    def poll_on(self) -> object:
        """The descriptor to watch."""
        return None if self._socket is None or self._out else self._socket.fileno()

    @property
    def held(self) -> int:
        """Bytes of an answer that is not whole."""
        return self._reader.held

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.connect(self._path)
        except BlockingIOError:  # more wait than it takes: stopped, most likely
            made.close()
        except BaseException:
            made.close()
            raise
        else:
            self._socket = made

    def _send(self) -> None:
        if self._socket is None or not self._out:
            return
        try:
            with contextlib.suppress(BlockingIOError):
                while self._out:
                    self._out = self._out[self._socket.send(self._out, socket.MSG_NOSIGNAL) :]
        except ConnectionError:
            self._ended()

    def _ended(self) -> None:
        """Ask over a new connection: the agent ends those that it has no room for. It has not seen the question then."""
        self.close()
        self._tries -= 1
        if self._reader.held or self._tries < 0:
            raise ConnectionResetError("its agent has ended the connection without an answer")
        self._out = memoryview(self._payload)
        self._again_at = time.monotonic() + AGAIN_S
