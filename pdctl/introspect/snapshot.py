"""Copy pages of a process at one moment. Only its main thread is stopped, for about half a millisecond.

``PTRACE_SEIZE`` is safe: if the tracing thread, or pdctl, ends for any reason, the kernel lets the other process go on. A stop
makes ``epoll_wait`` in that thread return EINTR; the kernel restarts all other calls.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass

from pdctl.introspect import tracing
from pdctl.introspect.memory import Bulk, GoneError, NotPermittedError

_PATIENCE_S = 0.05


class NotStoppedError(Exception):
    """The main thread could not be stopped in time: it is in the kernel, or gets no CPU. It goes on."""


@dataclass(frozen=True)
class Stop:
    """How long the main thread was stopped, at most, in milliseconds, and the number of pages copied."""

    ms: float
    pages: int


def copy(pid: int, bulk: Bulk) -> Stop:
    """Fill ``bulk`` while the main thread of ``pid`` is stopped.

    Raises NotStoppedError, NotPermittedError (also where a debugger has the process), GoneError.
    """
    try:
        return tracing.on_a_tracer(lambda: _copy(pid, bulk), 10 * _PATIENCE_S + 5)
    except tracing.StillRunningError as error:
        raise NotStoppedError(f"its main thread: {error}") from None
    except tracing.EndedError:
        raise GoneError("process has ended") from None


def _copy(pid: int, bulk: Bulk) -> Stop:
    _asked(tracing.ask(tracing.SEIZE, pid))
    time.sleep(0)  # a thread that has just got the GIL keeps it for a while
    asked = time.perf_counter()
    _asked(tracing.ask(tracing.INTERRUPT, pid))
    signal, running = tracing.stop(pid, _PATIENCE_S)
    try:
        pages = bulk.read(pid, keep_gil=True)
    finally:
        tracing.ask(tracing.DETACH, pid, signal or None)
        ended = time.perf_counter()
    return Stop((ended - max(asked, running)) * 1000, pages)


def _asked(code: int) -> None:
    if code == errno.ESRCH:
        raise GoneError("process has ended")
    if code:
        raise NotPermittedError(os.strerror(code))
