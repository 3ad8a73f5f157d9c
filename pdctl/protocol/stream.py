"""Messages over a Unix stream socket: four bytes of length, the least significant first, then the payload.

A length of 0 or over the limit ends a connection. No memory is reserved for announced bytes before they arrive.
Standard library only: ranks use it.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from types import TracebackType

HEAD = struct.Struct("<I")
PART = 1 << 16
"""Bytes that are taken from a socket at once."""
_AGAIN_S = 0.02


def framed(payload: bytes) -> bytes:
    """Return ``payload`` as it goes over the socket."""
    return HEAD.pack(len(payload)) + payload


class Reader:
    """Assemble messages from bytes as they arrive. It holds only the bytes of an incomplete message."""

    def __init__(self, limit: int) -> None:
        """limit: the bytes of a payload at most."""
        self.limit = limit
        self._held = bytearray()

    @property
    def wants(self) -> int:
        """Bytes that complete the current length or payload. A caller that feeds no more gets one message at a time."""
        return (self._size() if len(self._held) >= HEAD.size else HEAD.size) - len(self._held)

    @property
    def held(self) -> int:
        """How many bytes of a message that is not whole are held."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes and return the payloads that are complete now. Raises ValueError for a length that is not allowed."""
        self._held += data
        found = []
        while len(self._held) >= HEAD.size and len(self._held) >= (end := self._size()):
            found.append(bytes(memoryview(self._held)[HEAD.size : end]))
            del self._held[:end]
        return found

    def _size(self) -> int:
        """Return the bytes of the message that has begun, with its length."""
        size = int(HEAD.unpack_from(self._held)[0])
        if not 0 < size <= self.limit:
            self._held.clear()
            raise ValueError(f"a message of {size} bytes was announced; 1 to {self.limit} are allowed")
        return HEAD.size + size


class Connection:
    """A blocking client of the socket at ``path``. It connects at the first use, and again after an error."""

    def __init__(self, path: str | Path, limit: int = 8 << 20) -> None:
        """limit: the bytes of an answer at most."""
        self._path = os.fspath(path)
        self._limit = limit
        self._socket: socket.socket | None = None
        self._reader = Reader(limit)

    def __enter__(self) -> Connection:  # noqa: PYI034  # typing.Self is newer than Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, where there is one."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._reader = None, Reader(self._limit)

    def ask(self, payload: bytes, timeout_s: float) -> bytes:
        """Send ``payload`` and return what is answered.

        Raises TimeoutError after ``timeout_s``, ConnectionError if the peer ends the connection, and OSError for any other
        failure, also for an answer over the limit.
        """
        self.send(payload, timeout_s)
        return self.receive(timeout_s)

    def send(self, payload: bytes, timeout_s: float) -> None:
        """Send ``payload``. Raises OSError as :meth:`ask`."""
        self.send_raw(framed(payload), timeout_s)

    def send_raw(self, data: bytes, timeout_s: float) -> None:
        """Send raw bytes, which need not be a message. Raises OSError as :meth:`ask`."""
        end = time.monotonic() + timeout_s
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._connect(self._socket, end)
            self._socket.settimeout(max(0.001, end - time.monotonic()))
            self._socket.sendall(data, socket.MSG_NOSIGNAL)
        except BaseException:
            self.close()
            raise

    def _connect(self, made: socket.socket, end: float) -> None:
        made.setblocking(False)
        while True:
            try:
                made.connect(self._path)
            except BlockingIOError:  # as many wait to be let in as can
                if time.monotonic() >= end:
                    raise TimeoutError("timed out") from None
                time.sleep(_AGAIN_S)
            else:
                return

    def receive(self, timeout_s: float) -> bytes:
        """Return the next message. Raises OSError as :meth:`ask`."""
        end = time.monotonic() + timeout_s
        try:
            while True:
                if self._socket is None:
                    raise ConnectionError("there is no connection")
                self._socket.settimeout(max(0.001, end - time.monotonic()))
                data = self._socket.recv(min(PART, self._reader.wants))
                if not data:
                    raise ConnectionError("the other side has ended the connection")
                found = self._reader.feed(data)
                if found:
                    return found[0]
                if time.monotonic() >= end:
                    raise TimeoutError("timed out")
        except ValueError as error:
            self.close()
            raise OSError(str(error)) from None
        except BaseException:
            self.close()
            raise
