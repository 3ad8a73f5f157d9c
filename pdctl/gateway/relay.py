"""The TCP connections of a gateway. Each is forwarded to libzmq byte by byte, with bounded buffers.

    a client's frames     read while it owes less than WINDOW (:mod:`pdctl.gateway.frames`), one frame of 64 KiB more
    answers to it         held by libzmq until they are sent; then the next question is taken
    connections           MAX_CONNECTIONS; above that one ends: the oldest that never asked, or the idlest of the key with most

A client that sends no whole question for STALLED_S, or does not read its answer for so long, is cut off.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pdctl.gateway.door import Door, Question
from pdctl.gateway.frames import Frames, NoQuestion
from pdctl.protocol.budget import Budget

MAX_CONNECTIONS = 64
STALLED_S = 10.0
"""How long a client may owe the rest of a question, or leave an answer unread."""
SOON_S = 1.0
"""The same for answers, while others wait for the room that they take."""
FEW = 8
"""Connections that every key may have."""
SILENT_S = 5.0
"""How long a new connection is spared, to shake hands and ask, where a key has more than FEW."""
YOUNG_S = 2.0
"""How long it is spared where no key has more: meanwhile nobody is let in, or none of many would ever shake hands."""
ACCEPTS_S = 100.0
"""New connections a second, after a burst of twice as many."""
_COPY = 32 * 1024
_PAUSE_S = 0.2
_KEPT_FDS = 4


@dataclass
class Connection:
    """One client. name: its connection's at libzmq; user: its key, None before its first question.

    owed: bytes of answers that libzmq has not sent yet. moved_at: when some of them were last sent.
    asks_since: when it began to send a question that is still incomplete. wait_until: nothing is read from it before that.
    """

    tcp: socket.socket
    inner: socket.socket
    name: bytes
    host: str
    frames: Frames
    born: float
    moved_at: float
    asks_since: float
    user: str | None = None
    owed: int = 0
    inwards: bytes = b""
    outwards: bytes = b""
    questions: deque[Question] = field(default_factory=deque)
    wait_until: float = 0.0

    def close(self) -> None:
        """End it in both directions."""
        self.tcp.close()
        self.inner.close()


class Relay:
    """All connections, and the listening socket. door: libzmq's part; note: told once for each kind of trouble."""

    def __init__(self, listening: socket.socket, door: Door, note: Callable[[str, str], None], now: float) -> None:
        self._listening = listening
        self.door = door
        self._note = note
        self._number = 0
        self._prefix = b"\0pdctl-gateway-" + os.urandom(8).hex().encode()
        self.by_name: dict[bytes, Connection] = {}
        self._by_fd: dict[int, Connection] = {}
        self._accepts = Budget(ACCEPTS_S, now, 2 * ACCEPTS_S)
        self._deaf_until = 0.0
        self._spare: list[int] = []

    def close(self) -> None:
        """End all connections, not the listening socket."""
        for connection in list(self.by_name.values()):
            self.end(connection)
        for fd in self._spare:
            os.close(fd)
        self._spare.clear()

    def hosts(self) -> str:
        """Return the hosts of the connections in a handshake; nearly always it is one."""
        shaking = {c.host for c in self.by_name.values() if c.user is None and c.frames.shaken}
        return " or ".join(sorted(shaking)[:3]) or "an address that is gone"

    def register(self, poll: select.poll, now: float) -> float:
        """Register descriptors with ``poll``. Return the seconds after which to check again at the latest."""
        wait = 1.0
        deaf = max(self._deaf_until - now, self._accepts.due(now))
        if deaf > 0:
            wait = min(wait, deaf)
        else:
            poll.register(self._listening, select.POLLIN)
        for c in self.by_name.values():
            paused = c.wait_until - now
            if paused > 0:
                wait = min(wait, paused)
            reads = not c.inwards and paused <= 0 and c.frames.room() > 0
            outside = (select.POLLIN if reads else 0) | (select.POLLOUT if c.outwards else 0)
            inside = (select.POLLOUT if c.inwards else 0) | (0 if c.outwards else select.POLLIN)
            if outside:  # what is not to be read yet would say again and again that it has ended
                poll.register(c.tcp, outside)
            if inside:
                poll.register(c.inner, inside)
        return wait

    def turn(self, ready: list[tuple[int, int]], now: float) -> None:
        """Forward the bytes that can be forwarded."""
        for fd, events in ready:
            if fd == self._listening.fileno():
                self._accept(now)
                continue
            c = self._by_fd.get(fd)
            if c is None:
                continue
            try:
                self._move(c, fd == c.tcp.fileno(), events, now)
            except NoQuestion:
                self.door.strange()
                self.end(c)
            except OSError:
                self.end(c)
        for c in list(self.by_name.values()):
            if c.owed and now - c.moved_at > STALLED_S:
                self._note("unread", f"cut off a client at {c.host}: it reads no answer (further ones are not noted)")
                self.end(c)
            elif c.frames.owed and not c.questions and now - c.asks_since > STALLED_S:
                self._note(
                    "partly", f"cut off a client at {c.host}: its question never ends (further ones are not noted)"
                )
                self.end(c)

    def asked(self, question: Question) -> Connection | None:
        """Return the connection whose question waits now, None if it is gone."""
        c = self.by_name.get(question.connection)
        if c is not None:
            c.user = question.user
            c.questions.append(question)
        return c

    def answered(self, c: Connection, size: int, now: float) -> None:
        """Note that libzmq has an answer of ``size`` bytes to the connection's oldest question; 0 if there is no answer."""
        if not c.owed:
            c.moved_at = now
        c.owed += size
        c.frames.taken(c.questions.popleft().frames)
        c.asks_since = now

    def owed(self, user: str | None = None) -> int:
        """Return the bytes of unsent answers to the clients with this key, or to all clients."""
        return sum(c.owed for c in self.by_name.values() if user is None or c.user == user)

    def make_room(self, now: float, user: str | None = None) -> None:
        """End the connections (with this key) that do not read their answers."""
        for c in list(self.by_name.values()):
            if c.owed and (user is None or c.user == user) and now - c.moved_at > SOON_S:
                self._note("unread", f"cut off a client at {c.host}: it reads no answer (further ones are not noted)")
                self.end(c)

    def end(self, c: Connection) -> None:
        """End a connection, and forget what it asked."""
        if self.by_name.pop(c.name, None) is not None:
            del self._by_fd[c.tcp.fileno()], self._by_fd[c.inner.fileno()]
            c.close()

    def _move(self, c: Connection, outside: bool, events: int, now: float) -> None:
        if events & select.POLLOUT:
            if outside:
                sent = c.tcp.send(c.outwards)
                c.outwards = c.outwards[sent:]
                self._gone_out(c, sent, now)
            else:
                c.inwards = c.inwards[c.inner.send(c.inwards) :]
        if events & select.POLLIN:
            if outside:
                data = c.tcp.recv(min(_COPY, c.frames.room()))
                if not data:
                    raise OSError(errno.EPIPE, "ended")
                c.asks_since = c.asks_since if c.frames.owed else now
                c.frames.feed(data)
                c.inwards = data[c.inner.send(data) :]
            else:
                data = c.inner.recv(_COPY)
                if not data:
                    raise OSError(errno.EPIPE, "libzmq has ended it")
                sent = 0
                with contextlib.suppress(BlockingIOError):
                    sent = c.tcp.send(data)
                c.outwards = data[sent:]
                self._gone_out(c, sent, now)
        elif events & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
            raise OSError(errno.EPIPE, "ended")

    @staticmethod
    def _gone_out(c: Connection, sent: int, now: float) -> None:
        if c.owed and sent:
            c.owed, c.moved_at = max(0, c.owed - sent), now

    # ---- coming in --------------------------------------------------------------------------------------------------

    def _accept(self, now: float) -> None:
        """Accept one connection. If descriptors are scarce it is closed at once, and no other is accepted for a while."""
        full = len(self.by_name) >= MAX_CONNECTIONS
        victim = self._victim(now) if full else None
        if full and victim is None:
            self._deaf_until = now + _PAUSE_S
            return
        with contextlib.suppress(OSError):
            while len(self._spare) < _KEPT_FDS:
                self._spare.append(os.dup(self._listening.fileno()))
        try:
            tcp, address = self._listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._deaf_until = now + _PAUSE_S
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._spare:
                os.close(self._spare.pop())
                with contextlib.suppress(OSError):
                    self._listening.accept()[0].close()
                self._short()
            return
        self._accepts.take(1.0)
        if victim is not None:
            self._note("many", f"{MAX_CONNECTIONS} connections: for each new one another one ends")
            self.end(victim)
        try:
            # libzmq can't be without a descriptor when it accepts: there are some in reserve, and it gets theirs.
            spare = [os.dup(tcp.fileno()) for _ in range(2 + _KEPT_FDS)]
            for fd in spare:
                os.close(fd)
            self._take(tcp, address[0], now)
        except OSError:
            tcp.close()
            self._deaf_until = now + _PAUSE_S
            self._short()

    def _take(self, tcp: socket.socket, host: str, now: float) -> None:
        tcp.setblocking(False)
        for level, option, value in (
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        ):
            tcp.setsockopt(level, option, value)
        self._number += 1
        name = b"%s-%d" % (self._prefix, self._number)
        inner = self.door.connect(name)
        c = Connection(tcp, inner, name, host, Frames(self.door.commands), now, now, now)
        self.by_name[name] = self._by_fd[tcp.fileno()] = self._by_fd[inner.fileno()] = c

    def _short(self) -> None:
        self._note("descriptors", "its gateway has no file descriptors left: clients are refused until it has")

    def _victim(self, now: float) -> Connection | None:
        """Return whose place a new connection takes: of the oldest that never asked, or of the idlest of the key with most.

        None: of nobody yet, since those that never asked are young, and no key has more than FEW.
        """
        silent = next((c for c in self.by_name.values() if c.user is None), None)
        of_keys = Counter(c.user for c in self.by_name.values() if c.user is not None)
        [(most, many)] = of_keys.most_common(1) or [("", 0)]
        if silent is not None and now - silent.born > (YOUNG_S if many <= FEW else SILENT_S):
            return silent
        if silent is not None and many <= FEW:
            return None
        return min((c for c in self.by_name.values() if c.user == most), key=lambda c: c.moved_at)
