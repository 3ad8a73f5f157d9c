"""The agent's thread: answers the rank's socket while the rank's main thread does whatever it does.

No request can end the thread: an unreadable request gets an error, or ends its connection. If anything else ends the thread, it
is not started again. It closes its socket, so that no client waits for it, and notes its end in the recording, which the
engine's threads go on writing. Faults end without this thread.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pdctl.agent.answers import Answers
from pdctl.agent.local import LocalSocket
from pdctl.engines.base import Site
from pdctl.protocol import wire
from pdctl.protocol.errors import Exit, PdctlError

if TYPE_CHECKING:
    from pdctl.agent.core import Agent
    from pdctl.agent.gateway import Gateway
    from pdctl.protocol.paths import Registration

IDLE_MS = 250
AWAITING_MS = 20
STOP_S = 2.0
"""How long the end of the thread is waited for."""

# Signals are the main thread's business. Those a fault raises in this thread must still reach their handler.
_NOT_OURS = {
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD,
    signal.SIGALRM, signal.SIGWINCH, signal.SIGCONT,
}  # fmt: skip


class Server:
    """One daemon thread, its socket for this host and, where the environment asks for it, a gateway for others."""

    def __init__(self, agent: Agent, registration: Registration) -> None:
        self._agent = agent
        self._registration = registration
        self._answers = Answers(agent, registration, self.cpu_s)
        self._socket: LocalSocket | None = None
        self._thread = threading.Thread(target=self._run, name="pdctl-agent", daemon=True)
        self._gateway: Gateway | None = None
        self._stopping = False
        self._poll_awaited = getattr(agent.adapter, "poll_awaited", None)

    def start(self, path: Path, env: Mapping[str, str]) -> Registration:
        """Bind the socket to ``path`` (mode 0600) and start the thread. Raises OSError, RuntimeError without a thread.

        env: if PDCTL_LISTEN is set, a gateway listens on TCP as well. If the gateway fails, the returned registration says
        why, and the rest goes on.
        """
        self._socket = LocalSocket(path, self._reply, self._agent.note)
        try:
            self._listen(path, env)
            self._thread.start()
        except BaseException:
            self._close()
            self._socket.remove()
            raise
        return self._registration

    def _listen(self, path: Path, env: Mapping[str, str]) -> None:
        """Start the gateway if one is requested, and put the result into the registration."""
        if not env.get("PDCTL_LISTEN", "").strip():
            return
        r = self._registration
        try:
            from pdctl.agent.gateway import Gateway

            recording = (r.recording, r.identity.proc_start)
            self._gateway = Gateway(env, path, self._agent.note, self._rotated, recording)
        except Exception as error:  # no keys, a port in use, no process to be had: the rank has its other socket
            off = f"no TCP socket: {error}"
            self._registration = msgspec.structs.replace(r, tcp_off=off)
            self._agent.note(off)
        else:
            self._registration = msgspec.structs.replace(
                r, tcp=self._gateway.endpoint, server_key=self._gateway.server_key
            )
        self._answers.registration = self._registration

    def _rotated(self, server_key: str) -> None:
        self._register(msgspec.structs.replace(self._registration, server_key=server_key), "key")

    def _follow(self) -> None:
        """Register the rank anew if it is another one now."""
        r = self._agent.follow_identity(self._registration)
        if r is not None:
            self._register(r, "role")

    def _register(self, r: Registration, changed: str) -> None:
        self._registration = self._answers.registration = r
        try:
            self._agent.update_registration(r)
        except OSError as error:
            self._agent.note(f"its registration still names its former {changed}: {error.strerror or error}")

    def stop(self) -> None:
        """Remove the socket's file and end the thread within one poll. Called once, from any other thread.

        The thread closes what it has open. On a busy host it may do so later than it is waited for here.
        """
        self._stopping = True
        if self._socket is not None:
            self._socket.remove()
        self._thread.join(timeout=STOP_S)

    def forked(self) -> None:
        """Release the parent's connections in a forked child: otherwise they would stay open as long as the child lives."""
        for part in (self._socket, self._gateway):
            if part is not None:
                part.forked()

    def cpu_s(self) -> float:
        """Return the CPU seconds of the agent's thread so far; only that thread may ask."""
        return time.thread_time()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._gateway is not None:
            self._gateway.close()

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_OURS)
        why = ""
        try:
            self._turns()
        except BaseException as error:  # one that ends threads: the engine must not hear of it
            why = type(error).__name__
        if os.getpid() != self._agent.pid:
            return
        self._close()
        if not self._stopping:
            self._agent.thread_ended(why)

    def _turns(self) -> None:
        while not self._stopping and os.getpid() == self._agent.pid:
            try:
                self._follow()
                self._turn(AWAITING_MS if self._awaiting() else IDLE_MS)
            except Exception:  # one bad turn must not end the agent, nor spin
                time.sleep(0.05)

    def _turn(self, wait_ms: int) -> None:
        assert self._socket is not None
        if self._gateway is None:
            self._socket.turn(wait_ms)
            return
        self._gateway.ready()
        self._socket.turn(wait_ms, self._gateway.fileno())

    def _awaiting(self) -> bool:
        if self._poll_awaited is None:
            return False
        try:
            return bool(self._poll_awaited())
        except Exception:
            site = self._agent.adapter.hooks.sites.setdefault("poll_awaited", Site("poll_awaited"))
            site.failed()
            if not site.on:
                self._poll_awaited = None
            return False

    def _reply(self, frame: bytes) -> bytes:
        """Return the answer to a request."""
        number = 0
        try:
            request = wire.decode_request(frame)
            number = request.id
            self._follow()
            raw = wire.encode(self._answers.answer(request.op, request.args))
            if len(raw) > wire.MAX_MESSAGE - 1024:
                raise PdctlError(f"the answer is {len(raw)} bytes, over the limit of {wire.MAX_MESSAGE}")
            return wire.encode(wire.Reply(id=number, body=msgspec.Raw(raw)))
        except wire.ProtocolMismatch as error:
            return self._error(number, str(error), Exit.UNREACHABLE)
        except PdctlError as error:
            text = f"{error.message}\n{error.next_step}" if error.next_step else error.message
            return self._error(number, text, error.code)
        except Exception as error:  # whatever it was, the client is told and the thread lives
            return self._error(number, f"{type(error).__name__}: {error}"[:500], Exit.UNREACHABLE)

    @staticmethod
    def _error(number: int, text: str, code: int) -> bytes:
        return wire.encode(wire.Reply(id=number, error=text or "unknown error", code=int(code)))
