"""The agent's socket for other hosts: TCP with CURVE, served by the agent's own thread.

CURVE gives encryption and proves both sides' keys; who may come in, and with which role, is asked of this module by
libzmq (ZAP, RFC 27) before a client's first message can arrive. Without a key of its own and at least one authorised
client the agent does not listen. What a client may do is looked up anew for each message, so that a key that was taken off the
list is refused also where it is connected already. Where another server.key takes the place of the one it has, it listens
anew with that. Connections end with the listening socket they came from: who is still there, and knows the key, connects again.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from pdctl import keys, wire
from pdctl.agent.limits import Limits
from pdctl.agent.listen import Authorised, Listen, OwnKeys, parse_listen
from pdctl.errors import Exit, PdctlError

MAX_CONNECTIONS = 256
"""Over this many the agent takes no more until some end: each is a file descriptor of the engine's process."""
PAUSE_S = 0.02
"""How long nothing is taken from TCP after a turn in which somebody was over their budget."""
_BURST = 64
_MAX_FRAMES = 4
_HANDSHAKE_MS = 5000
_MAX_NOTES = 64
_ZAP_DOMAIN = b"pdctl"
_BIND_AGAIN_MS = 20
_CHANGES = frozenset(("inject", "renew", "heal", "leave"))


class TcpSocket:
    """One ROUTER socket on TCP, with what decides who comes in. All of it belongs to the agent's thread once it runs."""

    def __init__(
        self,
        context: zmq.Context[Any],
        env: Mapping[str, str],
        note: Callable[[str], None],
        rotated: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Bind. Raises ValueError or OSError with the reason (zmq.ZMQError is an OSError's kin); nothing is bound then.

        rotated: told the public key by which clients know the agent from now on.
        """
        self._tell = note
        self._rotated = rotated
        self._noted: set[str] = set()
        listen = parse_listen(env.get("PDCTL_LISTEN", ""))
        folder = keys.folder(env)
        self.server_key = ""
        self.open_role = ""
        self._authorised: Authorised | None = None
        self._own: OwnKeys | None = None
        pair = self._own_keys(listen, folder, env)
        self.limits = Limits()
        self._connections: set[int] = set()
        self._closed = False
        self._bind_again = False
        self._rotations = 0
        self._paused_until = 0.0
        self.dropped = 0
        self._zap: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        self.monitor: zmq.Socket[bytes] | None = None
        try:
            self._zap.setsockopt(zmq.LINGER, 0)
            self._zap.bind("inproc://zeromq.zap.01")  # before anybody can connect: without it CURVE lets all keys in
            self._options(listen, pair)
            self.monitor = self.router.get_monitor_socket(
                zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
                | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            )  # fmt: skip
            self.endpoint = self._bind(listen)
        except BaseException:
            self.close()
            raise

    def _own_keys(self, listen: Listen, folder: Path, env: Mapping[str, str]) -> keys.Pair | None:
        """Return the agents' pair, None where it was asked to be open to everybody of this host."""
        role = env.get("PDCTL_LISTEN_OPEN", "")
        if role:
            if role not in keys.ROLES:
                raise ValueError(f"PDCTL_LISTEN_OPEN={role[:20]!r}: write {' or '.join(keys.ROLES)}")
            if not listen.loopback:
                raise ValueError(f"PDCTL_LISTEN_OPEN is for loopback addresses only, {listen.host} is none")
            self.open_role = role
            return None
        self._own = OwnKeys(folder, self._once)
        pair = self._own.pair
        self._authorised = Authorised(folder, self._once)
        if self._authorised.why:
            raise ValueError(f"{self._authorised.why}; pdctl keys authorize adds one")
        self.server_key = pair.public
        return pair

    def _options(self, listen: Listen, pair: keys.Pair | None) -> None:
        options = {
            zmq.LINGER: 0, zmq.MAXMSGSIZE: wire.MAX_REQUEST, zmq.RCVHWM: 64, zmq.SNDHWM: 8,
            zmq.ROUTER_MANDATORY: 1, zmq.BACKLOG: 64, zmq.HANDSHAKE_IVL: _HANDSHAKE_MS, zmq.TCP_KEEPALIVE: 1,
            zmq.TCP_KEEPALIVE_IDLE: 30, zmq.TCP_KEEPALIVE_INTVL: 10, zmq.TCP_KEEPALIVE_CNT: 3,
            zmq.IPV6: int(listen.host.startswith("[")),
        }  # fmt: skip
        for option, value in options.items():
            self.router.setsockopt(option, value)
        if pair is not None:
            self.router.setsockopt(zmq.CURVE_SERVER, 1)
            self.router.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(pair.secret))
            self.router.setsockopt(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)

    def _bind(self, listen: Listen) -> str:
        for port in listen.ports:
            try:
                self.router.bind(f"tcp://{listen.host}:{port or '*'}")
            except zmq.ZMQError as error:
                if error.errno != errno.EADDRINUSE or port == listen.ports[-1]:
                    first = "" if error.errno != errno.EADDRINUSE or len(listen.ports) == 1 else f"{listen.ports[0]}-"
                    raise OSError(f"can't listen on tcp://{listen.host}:{first}{port}: {error.strerror}") from None
            else:
                bound = self.router.getsockopt(zmq.LAST_ENDPOINT)
                assert isinstance(bound, bytes)
                return bound.rstrip(b"\0").decode()
        raise AssertionError("a range of ports is never empty")

    def close(self) -> None:
        """Close what is open; nothing is waited for."""
        if self.monitor is not None:
            self.router.disable_monitor()
        self.router.close(linger=0)
        self._zap.close(linger=0)

    # ---- the thread -------------------------------------------------------------------------------------------------

    def register(self, poller: zmq.Poller) -> None:
        """Have ``poller`` look at what can arrive here."""
        assert self.monitor is not None
        for socket in (self.router, self._zap, self.monitor):
            poller.register(socket, zmq.POLLIN)

    def turn(self, poller: zmq.Poller, ready: Mapping[Any, int], reply: Callable[[bytes, str], bytes]) -> None:
        """Serve what is ready. reply: the answer to a request of the client with this public key ("" where all are open)."""
        if self._own is not None and self._own.changed():
            self._take(self._own.pair)
        if self._bind_again:
            self._listen_again()
        if self._zap in ready:
            self._handshakes()
        if self.monitor in ready:
            self._events()
        elif self._closed:
            self._cap()
        if self.router in ready and not self._drain(reply):
            self._paused_until = time.monotonic() + PAUSE_S
            poller.unregister(self.router)

    def resume(self, poller: zmq.Poller, wait_ms: int) -> int:
        """Return how long the next poll may wait, at most ``wait_ms``; ends a pause that is over."""
        if self._bind_again:
            wait_ms = min(wait_ms, _BIND_AGAIN_MS)
        if not self._paused_until:
            return wait_ms
        left = self._paused_until - time.monotonic()
        if left > 0:
            return min(wait_ms, int(left * 1000) + 1)
        self._paused_until = 0.0
        poller.register(self.router, zmq.POLLIN)
        return wait_ms

    def _take(self, pair: keys.Pair) -> None:
        """Shake hands with ``pair`` from now on: what listens keeps the key it was bound with, so it is bound anew."""
        self.router.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(pair.secret))
        self.server_key = pair.public
        if not self._closed:
            self.router.unbind(self.endpoint)
            self._bind_again = True
        self._rotations += 1
        self._once(f"own key {self._rotations}", f"has another key now: clients know it by {pair.public}")
        self._rotated(pair.public)

    def _listen_again(self) -> None:
        try:
            self.router.bind(self.endpoint)
            self._bind_again = False
        except zmq.ZMQError as error:  # the port is still being let go
            if error.errno != errno.EADDRINUSE:
                self._once("again", f"can't listen on {self.endpoint} again: {error.strerror}")

    def _handshakes(self) -> None:
        """Answer libzmq, which asks about each client key that has proved itself."""
        for _ in range(_BURST):
            try:
                frames = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            status, user = b"400", b""
            if len(frames) == 7 and frames[0] == b"1.0" and frames[2] == _ZAP_DOMAIN and frames[5] == b"CURVE":
                public, host = frames[6].hex(), frames[3].decode(errors="replace")
                if self._client(public) is not None:
                    status, user = b"200", public.encode()
                else:
                    self._once(public, f"refused a client at {host}: its key {public} is not authorised")
            self._zap.send_multipart([b"1.0", frames[1] if len(frames) > 1 else b"", status, b"", user, b""])

    def _client(self, public: str) -> keys.Client | None:
        return self._authorised.clients().get(public) if self._authorised is not None else None

    def _events(self) -> None:
        assert self.monitor is not None
        for _ in range(_BURST):
            try:
                event = recv_monitor_message(self.monitor, zmq.NOBLOCK)
            except zmq.Again:
                break
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._connections.add(event["value"])
            elif event["event"] == zmq.EVENT_DISCONNECTED:
                self._connections.discard(event["value"])
            elif event["event"] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                why = "a client did not get through: no CURVE, or made for another server key than this agent's"
                self._once("handshake", f"{why} (further ones are not noted)")
            else:
                self._once("no handshake", "a connection ended without a handshake (further ones are not noted)")
        self._cap()

    def _cap(self) -> None:
        """Take no more connections while there are very many: the engine needs file descriptors too."""
        if self._closed or len(self._connections) >= MAX_CONNECTIONS:
            self._connections = {fd for fd in self._connections if _is_socket(fd)}  # an event may have been lost
        if not (self._closed or self._bind_again) and len(self._connections) >= MAX_CONNECTIONS:
            self.router.unbind(self.endpoint)
            self._closed = True
            self._once("many", f"{MAX_CONNECTIONS} connections: no more are taken until some end")
        elif self._closed and len(self._connections) < MAX_CONNECTIONS * 3 // 4:
            try:
                self.router.bind(self.endpoint)
                self._closed = False
            except zmq.ZMQError:
                pass  # the port is still being let go, or was taken: tried again at the next event

    def _drain(self, reply: Callable[[bytes, str], bytes]) -> bool:
        """Serve questions that wait; returns False when somebody was over their budget."""
        within = True
        for _ in range(_BURST):
            try:
                frames = self.router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            within &= self._serve(frames, reply)
        return within

    def _serve(self, frames: list[zmq.Frame], reply: Callable[[bytes, str], bytes]) -> bool:
        body = [frame for frame in frames[1:] if len(frame)]
        if len(frames) > _MAX_FRAMES or len(body) != 1:
            self.dropped += 1
            return False
        connection, user = frames[0].bytes, self._user(frames[-1])
        now = time.monotonic()
        if not self.limits.allows(connection, user.encode(), now):
            if self.limits.tell(connection, now):
                error = "questions come faster than this rank answers one client; some were dropped"
                self._send(frames, wire.encode(wire.Reply(error=error, code=int(Exit.UNREACHABLE))))
            return False
        begun = time.thread_time()
        self._send(frames, reply(body[0].bytes, user))
        self.limits.took(connection, user.encode(), time.thread_time() - begun)
        return True

    def _send(self, frames: list[zmq.Frame], answer: bytes) -> None:
        parts = [*(frame.bytes for frame in frames[:-1]), answer]
        for _ in range(2):
            try:
                self.router.send_multipart(parts, zmq.NOBLOCK)
            except zmq.Again:
                # Full, as far as is known here: a client that was quick may have read it all by now. This takes in the news.
                self.router.getsockopt(zmq.EVENTS)
            except zmq.ZMQError:
                break  # the client is gone
            else:
                return
        self.dropped += 1

    @staticmethod
    def _user(frame: zmq.Frame) -> str:
        try:
            return str(frame.get("User-Id"))
        except zmq.ZMQError:
            return ""

    def check(self, user: str, op: str) -> None:
        """Raise PdctlError (UNREACHABLE) unless the client with this public key may do ``op`` now."""
        client = self._client(user) if self._authorised is not None else keys.Client("everybody", self.open_role, "")
        if client is None:
            self._once(f"gone {user}", f"refused {op[:40]}: the key {user} is not authorised any more")
            raise PdctlError(
                f"{wire.NOT_AUTHORISED}this key was taken off its list", "pdctl keys authorize, where the rank runs"
            )
        if op in _CHANGES and client.role != "inject":
            who = f"key {client.name} ({user[:8]}…)" if user else "whoever comes in by PDCTL_LISTEN_OPEN"
            self._once(f"role {user}", f"refused {op}: {who} has the role {client.role}")
            raise PdctlError(
                f"{wire.NOT_AUTHORISED}{who} has the role {client.role}, {op} takes the role inject",
                "pdctl keys authorize PUBLIC --role inject, where the rank runs",
            )

    def _once(self, what: str, text: str) -> None:
        """Tell the recording and the log, once for the same ``what``; many different ones are cut off."""
        if what in self._noted or len(self._noted) >= _MAX_NOTES:
            return
        self._noted.add(what)
        last = " (further notes are left out)" if len(self._noted) == _MAX_NOTES else ""
        self._tell(f"TCP socket: {text}{last}")


def _is_socket(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")  # noqa: PTH115  # cheaper
    except OSError:
        return False
