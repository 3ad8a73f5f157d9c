"""Counts the frames that a client sends, before libzmq keeps them: ZMTP 3 (RFC 37), whose framing is plain also under CURVE.

A frame of two bytes on the wire costs libzmq 64 bytes, and a message may have any number of frames. So libzmq's limit on the
frame size does not bound its memory. Here each frame has a price. The frames of incomplete and unanswered questions may cost
a client at most WINDOW; above that, nothing is read from it.
"""

from __future__ import annotations

import struct
from collections import deque

from pdctl.protocol import wire

WINDOW = 16 * 1024
"""What a client may owe before a next frame of it is read. That frame may be of the largest size."""
PRICE = 64
"""What a frame costs libzmq, whatever is in it."""
MAX_FRAME = wire.MAX_REQUEST + 64
"""A request of the largest size, encrypted."""
_CHUNK = 16 * 1024
_GREETING = 64
_LONG, _COMMAND = 2, 4


class NoQuestion(Exception):  # noqa: N818  # it says what was found
    """The received bytes are no message of a client."""


class Frames:
    """The frames of one client. commands: number of handshake frames at the start, which libzmq does not keep.

    begun: bytes received. shaken: handshake commands received.
    """

    def __init__(self, commands: int) -> None:
        self._commands = commands
        self._head = bytearray()
        self._left = 0
        self._greeted = False
        self._prices: deque[int] = deque()
        self.owed = 0
        self.begun = 0
        self.shaken = 0

    def room(self) -> int:
        """Return how many bytes may be read now, 0 for none. The worst case is assumed: frames without content."""
        if not self._greeted:
            return _GREETING - len(self._head)
        return min(_CHUNK, self._left + max(0, WINDOW - self.owed) // PRICE)

    def feed(self, data: bytes) -> None:
        """Count what has arrived. Raises NoQuestion for another protocol, or a frame over MAX_FRAME."""
        self.begun += len(data)
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            step = min(self._needed() - len(self._head), len(data) - at)
            self._head += data[at : at + step]
            at += step
            if len(self._head) == self._needed():
                self._header()

    def taken(self, frames: int) -> None:
        """Note that a question of so many frames was answered, or dropped."""
        for _ in range(min(frames, len(self._prices))):
            self.owed -= self._prices.popleft()

    def _needed(self) -> int:
        if not self._greeted:
            return _GREETING
        return 9 if self._head and self._head[0] & _LONG else 2

    def _header(self) -> None:
        head = bytes(self._head)
        self._head.clear()
        if not self._greeted:
            if head[0] != 0xFF or head[9] != 0x7F or head[10] != 3:
                raise NoQuestion("it does not speak ZMTP 3")
            self._greeted = True
            return
        self._left = struct.unpack(">Q", head[1:])[0] if head[0] & _LONG else head[1]
        if self._left > MAX_FRAME:
            raise NoQuestion(f"a frame of {self._left} bytes is over the limit")
        if head[0] & _COMMAND and self.shaken < self._commands:
            self.shaken += 1
            return
        self._prices.append(PRICE + self._left)
        self.owed += PRICE + self._left
