"""Child processes that are talked to over their standard input and output, and never waited for. They end with this process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence

from pdctl.protocol.stream import PART

MAX_STDERR = 4096
"""Bytes of a child's standard error that are kept: its last ones."""
MAX_WORDS = 300
"""Characters of its last line that are passed on."""
MAX_UNSENT = 16 << 20
"""Bytes that wait until a child takes them."""
PARTS_A_TURN = 16
"""Parts of a child's output, of PART bytes, that are read before others get their turn."""
_EXIT_CODE = re.compile(
    r"command terminated with exit code|srun: error: \S+ tasks? \S+ Exited with exit code", re.ASCII
)
"""With this kubectl and srun end, whatever their command has said before."""
_FILES = 4
"""Files that a child takes here: three pipes, and what polls them."""
_SPARE_FILES = 256
_EOF_S = 0.3
_TERM_S = 0.2
_CODE_S = 0.2
"""How long the exit code of a child is waited for after the end of its output."""

_running: set[Child] = set()
_aside: dict[Child, float] = {}
"""Children that were set aside, and when."""


class Child:
    """A running program in a session of its own, so that it can ask nobody for a password. Raises OSError if it can't start.

    ``argv`` goes to no shell. All pipes are non-blocking. :meth:`fileno` is what a poll watches: it is readable when the child
    has written, when it can take what it was not sent yet, and when it has ended.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        allow_files(_FILES * (len(_running) + 1))
        self._poll = select.epoll()  # first: where no more files can be open, no process is left behind
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
        )
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._in, self._out, self._err = (pipe.fileno() for pipe in pipes if pipe is not None)
        self._unsent = bytearray()
        self._stderr = b""
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)
        self._watched = {self._out, self._err}
        for fd in self._watched:
            self._poll.register(fd, select.EPOLLIN)
        self.started_at = time.monotonic()
        self.ended = False
        """Whether its standard output has ended."""
        self._ended_at = 0.0
        _running.add(self)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._poll.fileno()

    @property
    def exit_code(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def gone(self) -> bool:
        """Whether its standard output has ended, and its exit status is known or was waited for in vain."""
        return self.ended and (self.exit_code is not None or time.monotonic() - self._ended_at > _CODE_S)

    @property
    def last_words(self) -> str:
        """The last line of its standard error that tells a cause, "" without one."""
        self._drain()
        lines = [line.strip() for line in self._stderr.decode(errors="replace").splitlines() if line.strip()]
        telling = [line for line in lines if not _EXIT_CODE.match(line)]
        return (telling or lines or [""])[-1][-MAX_WORDS:]

    def send(self, data: bytes) -> None:
        """Send ``data``, now or when it can be taken.

        Raises ConnectionError if nobody reads any more, and another OSError if MAX_UNSENT bytes wait already.
        """
        if len(self._unsent) + len(data) > MAX_UNSENT:
            raise OSError(f"it has not read the last {len(self._unsent) >> 10} KiB that it was sent")
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Send what was not sent yet. Raises ConnectionError if nobody reads it."""
        try:
            while self._unsent:
                del self._unsent[: os.write(self._in, memoryview(self._unsent)[:PART].tobytes())]
        except BlockingIOError:
            if self._in not in self._watched:
                self._poll.register(self._in, select.EPOLLOUT)
                self._watched.add(self._in)
            return
        except ConnectionError:  # a pipe that nobody reads is always ready
            self._unsent.clear()
            self._unwatch(self._in)
            raise
        self._unwatch(self._in)

    def receive(self) -> bytes:
        """Return what it has written, at most PART bytes; b"" for nothing, or the end (:attr:`ended`)."""
        self._drain()
        if self.ended:
            return b""
        try:
            data = os.read(self._out, PART)
        except BlockingIOError:
            return b""
        if not data:
            self.ended, self._ended_at = True, time.monotonic()
            self._unwatch(self._out)
        return data

    def close(self) -> None:
        """End it: its input ends, and if it then does not, it is killed."""
        end([self])

    def _drain(self) -> None:
        for _ in range(PARTS_A_TURN):
            if self._err not in self._watched:
                return
            try:
                data = os.read(self._err, PART)
            except BlockingIOError:
                return
            if not data:
                self._unwatch(self._err)
            self._stderr = (self._stderr + data)[-MAX_STDERR:]

    def _unwatch(self, fd: int) -> None:
        if fd in self._watched:
            self._poll.unregister(fd)
            self._watched.discard(fd)

    def _hang_up(self) -> None:
        self.ended = True
        self._unwatch(self._in)
        self._unsent.clear()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _kill(self, signum: int) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signum)

    def _forget(self) -> None:
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._poll.close()
        self._watched.clear()
        _running.discard(self)


def allow_files(many: int) -> None:
    """Let this process have ``many`` files open beside its own, or as many as it may: the usual limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = many + _SPARE_FILES if hard == resource.RLIM_INFINITY else min(many + _SPARE_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def end(children: Collection[Child]) -> None:
    """End children, all at the same time: their input ends, then they are told to, then killed."""
    for child in children:
        child._hang_up()
    for wait_s, signum in ((_EOF_S, signal.SIGTERM), (_TERM_S, signal.SIGKILL)):
        until = time.monotonic() + wait_s
        while any(child.exit_code is None for child in children) and time.monotonic() < until:
            time.sleep(0.005)
        for child in children:
            child._kill(signum)
    for child in children:
        child._forget()


def set_aside(child: Child) -> None:
    """Part with a child, and wait for nothing: its input ends, and it is told to end. :func:`end_aside` sees to the rest.

    One that was set aside before, and has had the time to end, is killed.
    """
    now = time.monotonic()
    for one, since in list(_aside.items()):
        if now - since > _EOF_S + _TERM_S and _aside.pop(one, None) is not None:
            one._kill(signal.SIGKILL)
            one._forget()
    child._hang_up()
    child._kill(signal.SIGTERM)
    _aside[child] = now


def end_aside() -> None:
    """End all children that were set aside, at the same time."""
    children = list(_aside)
    for child in children:
        _aside.pop(child, None)
    end(children)


def _end_all() -> None:
    end(list(_running))


atexit.register(_end_all)

# ---- programs that read no standard input ----------------------------------------------------------------------------

_SCRIPT = """
import os, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
except (ImportError, OSError, AttributeError):
    pass
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
_ASK_S = 2.0


def ends_with_this() -> tuple[str, ...]:
    """Return what to put before a command line, so that its program ends with this process, however that ends.

    The first word of the command line is a path. It is run by ``setpriv`` where that can do so, else by a line of Python.
    """
    found = _setpriv()
    if not found and sys.executable:
        return (sys.executable, "-ISc", _SCRIPT, str(os.getpid()))
    return found


@functools.cache
def _setpriv() -> tuple[str, ...]:
    """Return the start of a command line of ``setpriv``, () where there is none, or one that can't do it, as busybox's."""
    found = shutil.which("setpriv")
    command = (found or "", "--pdeathsig", "KILL")
    try:
        subprocess.run([*command, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return command
