"""What ``watch`` does about an alarm besides telling it: evidence, a command, a webhook. Each in a thread of its own.

None of them is waited for, and what one can't take any more is left out and said. Texts of ranks reach a command and a server
as JSON only, on standard input and in a body: never in a command line, an address or an environment.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from pdctl.report import escaping
from pdctl.watch.incidents import Change

Say = Callable[[str], None]

WAITING = 64
"""Changes that wait for one action. What comes while as many wait is left out."""
EXEC_S = 60.0
"""How long a command may take."""
POST_S = 5.0
POST_AGAIN_S = (1.0, 5.0, 15.0)
"""How long one request may take, and the pauses before the next tries."""
LAST_S = 130.0
"""How long a watch that has ended by itself waits for an action: evidence may take two times 60 s."""
_END_S = 2.0
_STEP_S = 0.1


class Action:
    """Takes changes one after the other. say: tells a line to the user, at most once for each thing that goes wrong."""

    name = ""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._said: set[str] = set()
        self._over = threading.Event()
        self._queue: queue.Queue[Change | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._run, name=f"pdctl {self.name}", daemon=True)
        self._thread.start()

    def take(self, change: Change) -> None:
        """Take a change, or leave it out where too many wait. Never waits."""
        try:
            self._queue.put_nowait(change)
        except queue.Full:
            self.trouble("waits", f"{self.name}: {WAITING} changes wait for it; those that come meanwhile are left out")

    def close(self, most_s: float = _END_S, over: threading.Event | None = None) -> None:
        """Wait for what it has taken, no longer than this; the rest is left out. Once it is ``over``: only for a moment."""
        end = time.monotonic() + most_s
        last, heard = False, False
        while self._thread.is_alive() and (left_s := end - time.monotonic()) > 0:
            if not last:
                with suppress(queue.Full):
                    self._queue.put_nowait(None)
                    last = True
            if over is not None and over.is_set() and not heard:
                heard, end = True, min(end, time.monotonic() + _END_S)
            self._thread.join(min(left_s, _STEP_S))
        self._over.set()
        self._thread.join(_END_S)

    def trouble(self, what: str, text: str) -> None:
        """Say what went wrong, once until :meth:`well`."""
        if what not in self._said:
            self._said.add(what)
            self._say(text)

    def well(self) -> None:
        """Note that it goes well again."""
        self._said.clear()

    def act(self, change: Change) -> None:
        """Do it, in the action's thread. Raises nothing that the caller has to know."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._over.is_set() and (change := self._queue.get()) is not None:
            try:
                self.act(change)
            except Exception as error:  # noqa: BLE001  # the watch goes on without it
                self.trouble(type(error).__name__, f"{self.name} failed: {type(error).__name__}: {error}")


class Exec(Action):
    """Runs a command for each change, which it gets as JSON on standard input."""

    name = "--exec"

    def __init__(self, command: Sequence[str], say: Say, *, within_s: float = EXEC_S) -> None:
        self._command, self._within_s = tuple(command), within_s
        super().__init__(say)

    def act(self, change: Change) -> None:
        """Run the command, and end it with all that it started when its time is over."""
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self.trouble("start", f"--exec: {self._command[0]} can't be started: {error.strerror}")
            return
        end = time.monotonic() + self._within_s
        text: bytes | None = f"{escaping.json_encoded(change)}\n".encode()
        while True:
            try:
                process.communicate(text, timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                text = None
                if time.monotonic() > end or self._over.is_set():
                    end_group(process)
                    why = "at the end of the watch" if self._over.is_set() else f"after {self._within_s:g} s"
                    self.trouble("late", f"--exec: {self._command[0]} was ended {why}")
                    return
        if process.returncode:
            self.trouble("failed", f"--exec: {self._command[0]} exited with {process.returncode}")
        else:
            self.well()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session of its own, with all of that session's, and wait for it."""
    import os

    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


class Webhook(Action):
    """Posts each change to a server as JSON. url: http or https. Raises ValueError with a sentence for any other."""

    name = "--webhook"

    def __init__(
        self, url: str, say: Say, *, within_s: float = POST_S, again_s: Sequence[float] = POST_AGAIN_S
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("write http://HOST/… or https://HOST/…")
        if parts.username is not None or parts.password is not None:
            raise ValueError("a URL with a user's name is not taken")
        if not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError("it has characters that no URL has")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._within_s, self._again_s = within_s, tuple(again_s)
        super().__init__(say)

    def act(self, change: Change) -> None:
        """Post it, and again a few times where that fails."""
        body = escaping.json_encoded(change).encode()
        why = ""
        for pause_s in (0.0, *self._again_s):
            if self._over.wait(pause_s):
                break
            why, again = self._post(body)
            if not why:
                self.well()
                return
            if not again:
                break
        if why:
            self.trouble("failed", f"--webhook: {self._host}: {why}; changes are left out until it answers")

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Return why it was not taken, "" where it was, and whether another try may help. The address may be a secret."""
        import http.client

        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._within_s)
        # Each step has a time limit of its own; all of them together, too.
        limit = threading.Timer(self._within_s, _cut, (connection,))
        limit.daemon = True
        limit.start()
        try:
            connection.request("POST", self._path, body, {"Content-Type": "application/json", "Connection": "close"})
            code = connection.getresponse().status
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            said = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return f"no answer within {self._within_s:g} s" if isinstance(error, TimeoutError) else said, True
        finally:
            limit.cancel()
            connection.close()
        if 200 <= code < 300:
            return "", False
        return f"it answered {code}", code >= 500 or code == 429


def _cut(connection: object) -> None:
    import socket

    sock = getattr(connection, "sock", None)
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
