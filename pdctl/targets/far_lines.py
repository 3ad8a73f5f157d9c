"""Connections of a client to ranks of other hosts, over ZeroMQ. Loaded only where there is such a rank.

libzmq keeps a message of many frames until the last one has come, however many there are: what it holds can be seen from the
memory of this process only. So that is looked at while answers are waited for.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import zmq

from pdctl.protocol import wire
from pdctl.protocol.rank import FoundRank
from pdctl.targets.sources.endpoints import Watch

MAX_HELD = 32 << 20
"""Bytes that this process may grow by while it waits for answers."""
_MAX_FRAMES = 4
_PAGE = os.sysconf("SC_PAGE_SIZE")


class FarLine:
    """A line to a rank of another host."""

    held = 0

    def __init__(self, context: zmq.Context[Any], rank: FoundRank) -> None:
        self._socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_MESSAGE)
        self._socket.setsockopt(zmq.SNDHWM, 64)
        self._socket.setsockopt(zmq.RCVHWM, 4)
        assert rank.access is not None
        self._watch = Watch(self._socket, rank.access)
        self._limit = wire.MAX_MESSAGE
        self._socket.connect(rank.endpoint)

    def begin(self, payload: bytes, limit: int) -> None:
        """Ask. Raises OSError where too many questions wait to be sent."""
        self._limit = limit
        try:
            self._socket.send(payload, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise TimeoutError(f"question can't be sent: {error}") from None

    def turn(self) -> bytes | None:
        """Return the answer, None while there is none. Raises ValueError for what is none."""
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
        """End it; returns why it did not get through, "" where it did."""
        why = self._watch.close()
        self._socket.close(linger=0)
        return why


class Memory:
    """How much this process has grown while it waited. What it grows by at other times is its own."""

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
        """Note that it is over; returns whether too much came."""
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
