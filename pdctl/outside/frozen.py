"""Copies pages of a process of one moment: its main thread stands still for about half a millisecond, nothing else does.

``PTRACE_SEIZE`` leaves no trace: whatever becomes of the thread that seized, and of pdctl with it, the kernel lets the
other process go on. A stop makes ``epoll_wait`` of that thread return EINTR; all else the kernel restarts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from dataclasses import dataclass

from pdctl.outside.memory import Bulk, GoneError, NotPermittedError

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WALL, _EVENT_STOP = 0x40000000, 128
_PATIENCE_S = 0.05
_LOOK_EVERY_US = 20
_FIRST_IN_LINE = 1

# These keep the GIL: no other thread of pdctl may take it while the rank stands.
_libc = ctypes.PyDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_waitpid = _libc.waitpid
_waitpid.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int]


class NotStoppedError(Exception):
    """The main thread could not be stopped in time: it is in the kernel, or gets no processor. It runs on."""


@dataclass(frozen=True)
class Stop:
    """How long the main thread stood, at most, in milliseconds, and how many pages were copied meanwhile."""

    ms: float
    pages: int


def copy(pid: int, bulk: Bulk) -> Stop:
    """Fill ``bulk`` while the main thread of ``pid`` stands still.

    Raises NotStoppedError, NotPermittedError (also where a debugger has the process), GoneError.
    """
    done: list[Stop | Exception] = []

    def work() -> None:
        try:
            done.append(_copy(pid, bulk))
        except Exception as error:  # noqa: BLE001  # handed to the thread that waits
            done.append(error)

    # A thread of its own: it is the tracer, and its end lets the other process go whatever happened in between.
    thread = threading.Thread(target=work, daemon=True, name="pdctl-frozen-copy")
    thread.start()
    thread.join(10 * _PATIENCE_S + 5)
    if not done:
        raise NotStoppedError("the copy took too long")
    if isinstance(done[0], Exception):
        raise done[0]
    return done[0]


def _copy(pid: int, bulk: Bulk) -> Stop:
    try:  # on a busy machine a stopped process would stand until it is this thread's turn
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_FIRST_IN_LINE))
    except OSError:
        pass
    status = ctypes.c_int()
    by_reference = ctypes.byref(status)
    if _ptrace(_SEIZE, pid, None, None) < 0:
        _raise(ctypes.get_errno())
    time.sleep(0)  # a thread that has just got the GIL keeps it for a while
    clock = time.perf_counter
    end = clock() + _PATIENCE_S
    asked = running = clock()
    if _ptrace(_INTERRUPT, pid, None, None) < 0:
        _raise(ctypes.get_errno())
    while (got := _waitpid(pid, by_reference, _WALL | os.WNOHANG)) == 0:
        running = clock()
        if running > end:
            raise NotStoppedError(f"its main thread did not stop within {_PATIENCE_S * 1000:.0f} ms")
        _libc.usleep(_LOOK_EVERY_US)
    if got < 0 or not os.WIFSTOPPED(status.value):
        raise GoneError("process has ended")
    try:
        pages = bulk.read(pid, keep_gil=True)
    finally:
        # A signal that arrived in the same moment is handed on; a stop of our own has none.
        signal = 0 if status.value >> 16 == _EVENT_STOP else os.WSTOPSIG(status.value)
        _ptrace(_DETACH, pid, None, signal or None)
        ended = clock()
    return Stop((ended - max(asked, running)) * 1000, pages)


def _raise(code: int) -> None:
    if code == errno.ESRCH:
        raise GoneError("process has ended")
    raise NotPermittedError(os.strerror(code))
