"""Stopping one thread of another process for a moment, by ptrace.

``PTRACE_SEIZE`` is safe: if the tracing thread, or pdctl, ends for any reason, the kernel lets the other process go on.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SEIZE, INTERRUPT, DETACH, GETREGS, SETREGS = 0x4206, 0x4207, 17, 12, 13
_WALL, _EVENT_STOP = 0x40000000, 128
_LOOK_EVERY_US = 20
_FIRST_IN_LINE = 1

# These keep the GIL: no other thread of pdctl may take it while the other process stands.
_libc = ctypes.PyDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_waitpid = _libc.waitpid
_waitpid.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int]


class StillRunningError(Exception):
    """A thread did not stop in time: it is in the kernel, or gets no processor. It runs on."""


class EndedError(Exception):
    """A thread has ended."""


def on_a_tracer(work: Callable[[], T], limit_s: float | None = None) -> T:
    """Run ``work`` on a new thread. Return its result, or raise its exception.

    That thread is the tracer: when it ends, the kernel releases the other process. Raises StillRunningError if it takes longer
    than ``limit_s``.
    """
    done: list[tuple[T] | Exception] = []

    def run() -> None:
        try:  # on a busy machine a stopped thread would stand until it is this thread's turn
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_FIRST_IN_LINE))
        except OSError:
            pass
        try:
            done.append((work(),))
        except Exception as error:  # noqa: BLE001  # handed to the thread that waits
            done.append(error)

    thread = threading.Thread(target=run, daemon=True, name="pdctl-tracer")
    thread.start()
    thread.join(limit_s)
    if not done:
        raise StillRunningError("it took too long")
    if isinstance(done[0], Exception):
        raise done[0]
    return done[0][0]


def ask(request: int, tid: int, data: object = None) -> int:
    """Make one request of ptrace; returns 0, or the error's number."""
    return 0 if _ptrace(request, tid, None, data) >= 0 else ctypes.get_errno()


def stop(tid: int, patience_s: float) -> tuple[int, float]:
    """Wait until a seized thread has stopped, at most ``patience_s``.

    Return the signal that it got at the same moment, to be passed on (0 for none), and when it was last seen running
    (``time.perf_counter``). Raises StillRunningError, EndedError.
    """
    status = ctypes.c_int()
    running = time.perf_counter()
    end = running + patience_s
    while (got := _waitpid(tid, ctypes.byref(status), _WALL | os.WNOHANG)) == 0:
        running = time.perf_counter()
        if running > end:
            raise StillRunningError(f"it did not stop within {patience_s * 1000:.0f} ms")
        _libc.usleep(_LOOK_EVERY_US)
    if got < 0 or not os.WIFSTOPPED(status.value):
        raise EndedError("it has ended")
    return 0 if status.value >> 16 == _EVENT_STOP else os.WSTOPSIG(status.value), running
