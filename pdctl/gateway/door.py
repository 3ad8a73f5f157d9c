"""libzmq's part of the gateway: CURVE with each client, on a Unix socket that only the gateway itself can reach.

CURVE encrypts and proves both sides' keys. libzmq asks this module (ZAP, RFC 27) whether a client may connect, before the
client's first message can arrive. The socket's file is removed after bind: the relay connects through its descriptor.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import zmq

from pdctl.protocol import keys, wire

MAX_FRAMES = 4
"""Over this many a message is no question: one that REQ sends has an empty frame in front, and ROUTER puts one before that."""
_HANDSHAKE_MS = 5000
_BURST = 64
_ZAP_DOMAIN = b"pdctl"
_ABANDONED = "a connection ended without a handshake"
_STRANGE = "a client did not get through: no CURVE, or made for another server key than this agent's"


@dataclass
class Question:
    """A message of a client. connection: its name at the relay; user: the public key that CURVE proved, "" without.

    frames: number of frames. body: None if it is no question. route: the frames of the way back. packs: its answer is packed.
    """

    connection: bytes
    user: str
    frames: int
    body: bytes | None
    at: float
    route: list[bytes] = field(default_factory=list)
    packs: bool = False


class Door:
    """A ROUTER socket. pair: the keys to shake hands with, None for everybody of this host.

    knows: whether a client with this public key may connect. hosts: the hosts in a handshake now, in words.
    """

    def __init__(
        self,
        folder: str,
        pair: keys.Pair | None,
        knows: Callable[[str], bool],
        hosts: Callable[[], str],
        note: Callable[[str, str], None],
    ) -> None:
        """Bind. folder: a private directory of this user, where the socket's file exists for a moment."""
        self._knows, self._hosts, self._note = knows, hosts, note
        self._context: zmq.Context[Any] = zmq.Context(io_threads=1)
        self._zap: zmq.Socket[bytes] = self._context.socket(zmq.REP)
        self._router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._zap.setsockopt(zmq.LINGER, 0)
        self._zap.bind("inproc://zeromq.zap.01")  # before anybody can connect: without it CURVE lets all keys in
        options = {
            zmq.LINGER: 0, zmq.MAXMSGSIZE: wire.MAX_REQUEST, zmq.RCVHWM: 64, zmq.SNDHWM: 8, zmq.ROUTER_MANDATORY: 1,
            zmq.HANDSHAKE_IVL: _HANDSHAKE_MS,
        }  # fmt: skip
        for option, value in options.items():
            self._router.setsockopt(option, value)
        if pair is not None:
            self._router.setsockopt(zmq.CURVE_SERVER, 1)
            self._router.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(pair.secret))
            self._router.setsockopt(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)
        self.commands = 1 if pair is None else 2
        """How many commands a client's handshake has: READY, or HELLO and INITIATE."""
        self._monitor = self._router.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )
        self._inside = self._bind(folder)

    def _bind(self, folder: str) -> int:
        """Bind so that only this process can connect. Return the descriptor for connecting."""
        place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            name = f"/proc/self/fd/{place}/.gateway-{os.getpid()}"  # short: paths of sockets may not be long
            self._router.bind(f"ipc://{name}")
            inside = os.open(name, os.O_PATH | os.O_CLOEXEC)
            os.unlink(name)  # noqa: PTH108  # beside the line above
        finally:
            os.close(place)
        return inside

    def close(self) -> None:
        """End all that is connected."""
        self._router.disable_monitor()
        os.close(self._inside)
        self._context.destroy(linger=0)

    def connect(self, name: bytes) -> socket.socket:
        """Return a connection for the relay. Its messages carry ``name``. Raises OSError."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.bind(name)
            made.connect(f"/proc/self/fd/{self._inside}")
        except OSError:
            made.close()
            raise
        return made

    def filenos(self) -> Iterator[int]:
        """Yield the descriptors that may signal a message; only ``waits`` is certain."""
        for one in (self._router, self._zap, self._monitor):
            fd = one.getsockopt(zmq.FD)
            assert isinstance(fd, int)
            yield fd

    def waits(self) -> bool:
        """Return whether something has arrived."""
        for one in (self._router, self._zap, self._monitor):
            events = one.getsockopt(zmq.EVENTS)
            assert isinstance(events, int)
            if events & zmq.POLLIN:
                return True
        return False

    def turn(self, now: float) -> Iterator[Question]:
        """Accept or refuse new clients, and yield the questions of connected clients."""
        self._handshakes()
        self._events()
        for _ in range(_BURST):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            user = self._user(frames[-1])
            route = [frame.bytes for frame in frames[:-1]] if len(frames) <= MAX_FRAMES else []
            parts = [frame for frame in frames[1:] if len(frame)]
            body = parts[0].bytes if len(frames) <= MAX_FRAMES and len(parts) == 1 else None
            yield Question(_peer(frames[-1]), user, len(frames) - 1, body, now, route)

    def answer(self, question: Question, payload: bytes) -> bool:
        """Hand an answer to libzmq, which copies it; returns whether the client is still there."""
        try:
            self._router.send_multipart([*question.route, payload], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def _handshakes(self) -> None:
        """Answer libzmq, which asks about each client key that has proved itself."""
        for _ in range(_BURST):
            try:
                frames = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            status, user = b"400", b""
            if len(frames) == 7 and frames[0] == b"1.0" and frames[2] == _ZAP_DOMAIN and frames[5] == b"CURVE":
                public = frames[6].hex()
                if self._knows(public):
                    status, user = b"200", public.encode()
                else:
                    self._note(public, f"refused a client at {self._hosts()}: its key {public} is not authorised")
            self._zap.send_multipart([b"1.0", frames[1] if len(frames) > 1 else b"", status, b"", user, b""])

    def _events(self) -> None:
        for _ in range(_BURST):
            try:
                event, _ = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            # By hand: pyzmq's own way to read an event loads asyncio and ssl, which is half of what this process needs.
            if struct.unpack_from("=H", event)[0] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self.strange()
            else:
                self._note("no handshake", f"{_ABANDONED} (further ones are not noted)")

    def strange(self) -> None:
        """Note a peer that does not follow the clients' protocol."""
        self._note("handshake", f"{_STRANGE} (further ones are not noted)")

    @staticmethod
    def _user(frame: zmq.Frame) -> str:
        try:
            return str(frame.get("User-Id"))
        except zmq.ZMQError:
            return ""


def _peer(frame: zmq.Frame) -> bytes:
    """Return the name of the connection of a message, b"" if the connection has ended."""
    try:
        with socket.socket(fileno=os.dup(int(frame.get(zmq.SRCFD)))) as peer:
            name = peer.getpeername()
    except (zmq.ZMQError, OSError, ValueError):
        return b""
    return name if isinstance(name, bytes) else b""
