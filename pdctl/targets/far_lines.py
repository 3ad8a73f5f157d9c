"""Connections of a client to ranks of other hosts, over ZeroMQ. Loaded only where there is such a rank.

libzmq keeps a message of many frames until the last frame has come, without a limit on their number. Only this process's memory
shows how much libzmq holds. So the memory is checked while the client waits for answers.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from pdctl.protocol import wire
from pdctl.protocol.rank import Access, FoundRank

MAX_HELD = 32 << 20
"""Bytes that this process may grow by while it waits for answers."""
MAX_SOCKETS = 32_768
"""Sockets of one context: a line takes three, its watch included. ZeroMQ itself stops at 1,023."""
FILES = 16
"""Files that are allowed for a line. It takes some five, and a process has several clients."""
_MAX_FRAMES = 4
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Prepare a connection for CURVE and record its events, to explain a missing answer."""

    def __init__(self, socket: zmq.Socket[bytes], how: Access) -> None:
        if how.server_key:
            socket.setsockopt(zmq.CURVE_SERVERKEY, bytes.fromhex(how.server_key))
            socket.setsockopt(zmq.CURVE_PUBLICKEY, bytes.fromhex(how.public))
            socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(how.secret))
        socket.setsockopt(zmq.IPV6, 1)  # where the endpoint's host has an address of that kind; IPv4 goes on working
        self._socket = socket
        self._other = "another server key" if how.server_key else "it takes a key, and none was given (--server-key)"
        self._monitor = socket.get_monitor_socket(
            zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED
        )  # fmt: skip

    def close(self) -> str:
        """End the watch; returns why the connection does not get through, "" where it did."""
        seen: list[int] = []
        while self._monitor.poll(0):
            seen.append(recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"])
        self._socket.disable_monitor()
        if zmq.EVENT_HANDSHAKE_FAILED_AUTH in seen:
            return "not authorised: its agent does not know this key"
        if zmq.EVENT_HANDSHAKE_SUCCEEDED in seen:
            lost = max(n for n, event in enumerate(seen) if event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
            return "not reachable: the connection broke" if zmq.EVENT_DISCONNECTED in seen[lost:] else ""
        if zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL in seen or zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL in seen:
            return f"not authorised or not reachable: no handshake; {self._other}, or no agent of pdctl"
        if zmq.EVENT_CONNECTED in seen:
            return "not authorised or not reachable: nobody shakes hands: its process is stopped, or no agent"
        return "not authorised or not reachable: no connection"


def new_context() -> zmq.Context[Any]:
    """Return a context for as many lines as endpoints may be named."""
    context: zmq.Context[Any] = zmq.Context(io_threads=1)
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    return context


class FarLine:
    """A line to a rank of another host."""

    held = 0

    def __init__(self, context: zmq.Context[Any], rank: FoundRank) -> None:
        """Raises OSError where the connection can't be made: this process has too many."""
        assert rank.access is not None
        self._limit = wire.MAX_MESSAGE
        try:
            self._socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            raise _no_line(error) from None
        try:
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_MESSAGE)
            self._socket.setsockopt(zmq.SNDHWM, 64)
            self._socket.setsockopt(zmq.RCVHWM, 4)
            self._watch = Watch(self._socket, rank.access)
            self._socket.connect(rank.endpoint)
        except zmq.ZMQError as error:
            self._socket.disable_monitor()
            self._socket.close(linger=0)
            raise _no_line(error) from None

    def begin(self, payload: bytes, limit: int) -> None:
        """Ask. Raises OSError where too many questions wait to be sent."""
        self._limit = limit
        try:
            self._socket.send(payload, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise TimeoutError(f"question can't be sent: {error}") from None

    def turn(self) -> bytes | None:
        """Return the answer, None while there is none. Raises ValueError for an invalid answer."""
        frames = 0
        try:
            frame, more = self._receive()
            while more:
                frames += 1
                if frames > _MAX_FRAMES:
                    raise ValueError("it has very many frames")
                frame, more = self._receive()
        except zmq.Again:
            return None
        if len(frame) > self._limit:
            raise ValueError(f"it has {len(frame)} bytes; {self._limit} are allowed")
        return frame

    def _receive(self) -> tuple[bytes, int]:
        frame = self._socket.recv(zmq.NOBLOCK)
        return frame, int(self._socket.getsockopt(zmq.RCVMORE))

    @property
    def poll_on(self) -> object:
        """The socket to watch."""
        return self._socket

    def close(self) -> str:
        """End the line. Return why it was not established, "" if it was."""
        why = self._watch.close()
        self._socket.close(linger=0)
        return why


def _no_line(error: zmq.ZMQError) -> OSError:
    return OSError(f"not reachable: no connection can be made: {error}")


class Memory:
    """The growth of this process's memory while it waits. Growth at other times doesn't count."""

    def __init__(self) -> None:
        self._allowed = resident() + MAX_HELD
        self._before = 0

    def waits(self) -> None:
        """Note that a wait begins."""
        now = resident()
        if self._before:
            self._allowed += max(0, now - self._before)
        self._before = now

    def waited(self) -> bool:
        """Note the end of a wait. Return whether too much data came."""
        self._before = resident()
        return self._before > self._allowed


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE


def give_back() -> None:
    """Give freed memory back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
