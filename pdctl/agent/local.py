"""The agent's socket for this host: a Unix stream socket, served without waiting by the agent's own thread.

The cost of clients for the rank is bounded: connections, unread bytes and time of the thread are counted, and a client over a
bound must wait. Connections of one process count together. If the process has no descriptor left, a reserved descriptor
serves one client at a time. No library that could end the process is used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import stat
import struct
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path

from pdctl.protocol import wire
from pdctl.protocol.budget import Budget, budget_of
from pdctl.protocol.stream import HEAD, PART, Reader

MAX_CONNECTIONS = 64
MAX_UNSENT = 8 << 20
"""Bytes of answers that wait to be read, over all clients. Over it nobody is answered until some are gone."""
PEER_SHARE = 0.5
"""Seconds of CPU a second that the connections of one process may use, once their burst is used up."""
ALL_SHARE = 0.7
"""The same for all connections together."""
BURST_S = 1.0
REQUEST_S = 10.0
"""How long a request may take from its first byte to its last one."""
STALLED_S = 10.0
"""How long an answer may wait without a byte of it being read."""
ROOM_S = 0.5
"""The same where others wait for room."""
IDLE_S = 600.0
"""How long a connection is kept that asks nothing."""
ALONE_S = 0.1
"""The same where descriptors are scarce; there a connection is good for one question."""
SCARCE = 32
"""Descriptors that are left to the engine: with fewer, one client at a time is served, on a descriptor kept for that."""
PAUSE_S = 0.02
LOOK_S = 1.0
"""How often the name of the socket is looked at."""
_TURN_S = 0.02
_ACCEPTS = 16
_MAX_PEERS = 256
_CREDENTIALS = struct.Struct("3i")
_OUT_OF = frozenset((errno.EMFILE, errno.ENFILE))


class _Connection:
    """One client. since: start, or last progress, of its unfinished request or answer."""

    __slots__ = ("alone", "out", "peer", "reader", "served", "since", "socket")

    def __init__(self, made: socket.socket, peer: int, now: float, *, alone: bool) -> None:
        self.socket, self.peer, self.alone = made, peer, alone
        self.reader = Reader(wire.MAX_REQUEST)
        self.out: list[memoryview] = []
        self.since = self.served = now

    @property
    def unsent(self) -> int:
        return sum(map(len, self.out))

    def over(self, now: float, *, room: bool) -> bool:
        """Return whether it has held its connection for too long. room: whether there is room for other clients."""
        kept = now - self.since
        if self.out:
            return kept > (STALLED_S if room else ROOM_S)
        if self.reader.held:
            return kept > REQUEST_S
        return kept > (ALONE_S if self.alone else IDLE_S)


class LocalSocket:
    """Listens at ``path`` (mode 0600) and answers requests with what ``answer`` makes of them.

    Used by one thread at a time, and by nobody else after :meth:`forked`. Any thread may call :meth:`remove`.
    """

    def __init__(self, path: Path, answer: Callable[[bytes], bytes], note: Callable[[str], None]) -> None:
        """Bind it. Raises OSError. note: told once what is to be noted."""
        self._path, self._answer, self._note = path, answer, note
        self._connections: dict[int, _Connection] = {}
        self._peers: OrderedDict[int, Budget] = OrderedDict()
        now = time.monotonic()
        self._all = Budget(ALL_SHARE, now, BURST_S)
        self._accept_at = self._look_at = now
        self._reserve = -1
        self._noted: set[str] = set()
        self._inode = 0
        self._naming = threading.Lock()
        """Held while the file is made again or removed for good."""
        self._removed = False
        self._listener = self._bind()
        self._keep_reserve()

    # ---- the turn ---------------------------------------------------------------------------------------------------

    def turn(self, wait_ms: float, other: int = -1) -> None:
        """Wait for clients, and for descriptor ``other`` where there is one, and serve those that are ready."""
        began = time.thread_time()
        try:
            self._turn(wait_ms, other)
        finally:
            self._all.take(time.thread_time() - began)

    def _turn(self, wait_ms: float, other: int) -> None:
        now = time.monotonic()
        self._look(now)
        room = self._unsent() < MAX_UNSENT
        for connection in [one for one in self._connections.values() if one.over(now, room=room)]:
            self._end(connection)
        poll = select.poll()
        if other >= 0:
            poll.register(other, select.POLLIN)
        if self._all.left(now) <= 0:
            poll.poll(PAUSE_S * 1e3)
            return
        held_up = self._watch(poll, now)
        self._serve(poll.poll(min(wait_ms, PAUSE_S * 1e3) if held_up else wait_ms))

    def _watch(self, poll: select.poll, now: float) -> bool:
        """Register the descriptors to wait for. Return whether a client is left out that may be served soon."""
        listens = self._accepts and now >= self._accept_at
        if listens:
            poll.register(self._listener, select.POLLIN)
        held_up = not listens
        room = self._unsent() < MAX_UNSENT
        for fd, one in self._connections.items():
            if one.out:
                poll.register(fd, select.POLLOUT)
            elif room and self._budget(one.peer, now).left(now) > 0:
                poll.register(fd, select.POLLIN)
            else:
                held_up = True  # not even whether it has ended: that would be told again and again
        return held_up

    @property
    def _accepts(self) -> bool:
        return not any(one.alone for one in self._connections.values())

    def _serve(self, ready: list[tuple[int, int]]) -> None:
        """Serve the ready clients, one request each. The client that waited longest is first."""
        end = time.monotonic() + _TURN_S
        listener = self._listener.fileno()
        fds = {fd for fd, _ in ready}
        for one in sorted((self._connections[fd] for fd in fds & self._connections.keys()), key=lambda c: c.served):
            began = time.thread_time()
            try:
                self._go_on(one)
            except Exception:  # it has hung up, sends what is no message, or there is no memory for it
                self._end(one)
            self._budget(one.peer, time.monotonic()).take(time.thread_time() - began)
            if time.monotonic() > end:
                break
        if listener in fds:
            self._accept()

    def _go_on(self, one: _Connection) -> None:
        now = one.served = time.monotonic()
        if not one.out:
            if self._unsent() >= MAX_UNSENT:  # others were answered in this turn
                return
            try:
                data = one.socket.recv(min(PART, one.reader.wants))
            except BlockingIOError:
                return
            if not data:
                raise ConnectionError
            if not one.reader.held:
                one.since = now
            for request in one.reader.feed(data):
                answer = self._answer(request)
                one.out = [memoryview(HEAD.pack(len(answer))), memoryview(answer)]
                one.since = now
        self._send(one, now)

    def _send(self, one: _Connection, now: float) -> None:
        while one.out:
            try:
                sent = one.socket.sendmsg(one.out, [], socket.MSG_NOSIGNAL)  # the engine may have SIGPIPE end it
            except BlockingIOError:
                return
            one.since = now
            while one.out and sent >= len(one.out[0]):
                sent -= len(one.out.pop(0))
            if one.out:
                one.out[0] = one.out[0][sent:]
            elif one.alone:
                self._end(one)

    # ---- who comes in, and who goes ---------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                made = self._accepted()
            except BlockingIOError:
                return
            except OSError:  # no descriptors, no memory
                self._accept_at = time.monotonic() + PAUSE_S
                return
            if made is None:
                return
            peer = _peer(made)
            now = time.monotonic()
            self._budget(peer, now)
            one = _Connection(made, peer, now, alone=self._reserve < 0)
            self._connections[made.fileno()] = one
            if one.alone:
                return
            if len(self._connections) > MAX_CONNECTIONS:
                self._end(self._to_go())

    def _accepted(self) -> socket.socket | None:
        """Accept the next connection. If descriptors are scarce, it uses the reserved one."""
        try:
            made, _ = self._listener.accept()
        except OSError as error:
            if error.errno not in _OUT_OF:
                raise
            made = None
        if made is None or 0 < resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= made.fileno() + SCARCE:
            self._scarce()
            if made is None:
                made, _ = self._listener.accept()
        made.setblocking(False)
        return made

    def _scarce(self) -> None:
        """Close idle connections, so the engine gets their descriptors. Free the reserved descriptor for the next client."""
        for one in [one for one in self._connections.values() if not (one.out or one.reader.held)]:
            self._end(one)
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
        self._once("the process has hardly a descriptor left: one client at a time is answered")

    def _keep_reserve(self) -> None:
        if self._reserve < 0:
            with contextlib.suppress(OSError):
                self._reserve = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def _to_go(self) -> _Connection:
        """Return the connection to close for a new one: the least recently served one of the process with most connections."""
        count = Counter(one.peer for one in self._connections.values())
        return min(self._connections.values(), key=lambda one: (-count[one.peer], one.served))

    def _end(self, one: _Connection) -> None:
        if self._connections.pop(one.socket.fileno(), None) is None:
            return
        with contextlib.suppress(OSError):
            one.socket.shutdown(socket.SHUT_RDWR)  # a child of the engine may hold it as well
        one.socket.close()
        if one.alone:
            self._keep_reserve()

    def _unsent(self) -> int:
        return sum(one.unsent for one in self._connections.values())

    def _budget(self, peer: int, now: float) -> Budget:
        return budget_of(self._peers, peer, PEER_SHARE, BURST_S, _MAX_PEERS, now)

    # ---- the socket itself ------------------------------------------------------------------------------------------

    def _bind(self) -> socket.socket:
        self._path.unlink(missing_ok=True)  # the name is this process's: what is there is of another boot
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.bind(os.fspath(self._path))
            self._path.chmod(0o600)
            made.listen(128)
            made.setblocking(False)
            self._inode = self._path.lstat().st_ino
        except BaseException:
            made.close()
            raise
        return made

    def _look(self, now: float) -> None:
        """Bind the socket again if its file is gone, and reserve a descriptor if none is reserved."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        if self._reserve < 0 and self._accepts:
            self._keep_reserve()
        if not self._lost():
            return
        try:
            with self._naming:
                if self._removed:
                    return
                before, self._listener = self._listener, self._bind()
        except OSError as error:
            self._once(f"its socket is gone and can't be made again: {error.strerror or error}")
            return
        before.close()
        self._note("its socket was taken away; it listens at the same name again")

    def _lost(self) -> bool:
        """Return whether the socket's file is gone, or is a socket on which nobody listens."""
        try:
            there = self._path.lstat()
        except OSError:
            return self._path.parent.exists()
        if there.st_ino == self._inode or not stat.S_ISSOCK(there.st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(os.fspath(self._path))
            except ConnectionRefusedError:
                return True
            except OSError:
                pass
        return False

    def _once(self, text: str) -> None:
        if text not in self._noted and len(self._noted) < 64:
            self._noted.add(text)
            self._note(text)

    def remove(self) -> None:
        """Remove the socket's file. The thread that uses it does not make it again, however late its turn."""
        with self._naming:
            self._removed = True
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """End all connections and stop listening. The socket's file stays."""
        for one in list(self._connections.values()):
            self._end(one)
        self.forked()

    def forked(self) -> None:
        """Release everything in a forked child. The parent's connections stay as they are."""
        for one in self._connections.values():
            one.socket.close()
        self._connections.clear()
        self._listener.close()
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1


def _peer(made: socket.socket) -> int:
    """Return the pid at the other end, 0 where it can't be told."""
    try:
        pid, _, _ = _CREDENTIALS.unpack(made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    except (OSError, struct.error):
        return 0
    return int(pid)
