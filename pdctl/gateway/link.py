"""The gateway's connection to its rank's own socket: one question at a time, and nothing waits while it is open."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from pathlib import Path

from pdctl.protocol import wire
from pdctl.protocol.stream import PART, Reader, framed


class Link:
    """Ask the rank with this pid at ``path``. Without a connection, a question makes a new one.

    thread: the kernel's id of the agent's thread, 0 while unknown. Its CPU time is the cost of a question.
    """

    def __init__(self, path: str, pid: int) -> None:
        self._path = path
        self._pid = pid
        self.thread = 0
        self._socket: socket.socket | None = None
        self._out = memoryview(b"")
        self._reader = Reader(wire.MAX_MESSAGE)
        self._cpu_s = 0.0
        self.busy = False
        self.asked_at = 0.0

    def fileno(self) -> int:
        """Return the descriptor to watch while ``busy``, -1 where there is none."""
        return self._socket.fileno() if self._socket is not None else -1

    def events(self) -> int:
        """Return what to watch it for."""
        return select.POLLIN | (select.POLLOUT if self._out else 0)

    def ask(self, payload: bytes, now: float) -> None:
        """Begin to ask. Raises OSError with the reason where nobody listens."""
        if self._gone():
            self.drop()
        if self._socket is None:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                made.setblocking(False)
                made.connect(self._path)
            except OSError:
                made.close()
                raise
            self._socket, self._reader = made, Reader(wire.MAX_MESSAGE)
        self.busy, self.asked_at = True, now
        self._cpu_s = self._thread_cpu_s()
        self._out = memoryview(framed(payload))
        self._send()

    def turn(self) -> bytes | None:
        """Send and receive without waiting. Return the answer once it is complete. Raises OSError if no answer can come."""
        try:
            if self._out:
                self._send()
            return self._receive()
        except (OSError, ValueError) as error:
            self.drop()
            raise OSError(str(error)) from None

    def cost_s(self, waited_s: float) -> float:
        """Return the CPU seconds of the agent's thread for the last question; the elapsed time if these are unknown."""
        return self._thread_cpu_s() - self._cpu_s if self.thread else waited_s

    def drop(self) -> None:
        """End the connection, and discard an answer that is still to come."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._out, self.busy = None, memoryview(b""), False

    def _gone(self) -> bool:
        """Return whether the rank has ended the connection since the last answer; it does so with an idle connection."""
        if self._socket is None:
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _send(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            while self._out:
                self._out = self._out[self._socket.send(self._out) :]

    def _receive(self) -> bytes | None:
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self._socket.recv(min(PART, self._reader.wants))
                if not data:
                    raise OSError("its agent has closed the connection")
                for answer in self._reader.feed(data):
                    self.busy = False
                    return answer
        return None

    def _thread_cpu_s(self) -> float:
        """Return the CPU seconds of the agent's thread; 0 and no thread any more where the kernel does not tell."""
        if not self.thread:
            return 0.0
        try:
            fields = Path(f"/proc/{self._pid}/task/{self.thread}/schedstat").read_bytes().split()
            return int(fields[0]) / 1e9
        except (OSError, ValueError, IndexError):
            pass
        try:
            fields = Path(f"/proc/{self._pid}/task/{self.thread}/stat").read_bytes().rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            self.thread = 0
            return 0.0
