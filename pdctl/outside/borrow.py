"""Starts a native thread in another process by borrowing one of its parked threads for a moment. x86-64 Linux.

The borrowed thread is never the main one: a thread that runs may hold any lock of malloc's or the loader's. It is stopped,
pointed at code that restores it by itself (:mod:`pdctl.outside.shellcode`), and let go at once: a pdctl that is killed at
any point leaves a process that runs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pdctl.outside.memory import BadAddressError, GoneError, Memory, NotPermittedError
from pdctl.outside.shellcode import FUNCTIONS, STACK, build
from pdctl.outside.symbols import NotFoundError, addresses, room
from pdctl.processes import look

_GETREGS, _SETREGS, _DETACH, _SEIZE, _INTERRUPT = 12, 13, 17, 0x4206, 0x4207
_WALL, _EVENT_STOP = 0x40000000, 128
_RED_ZONE = 128
_FIRST_IN_LINE = 1
_STOP_S = 0.2
_TRIES_S = 1.0
_BACK_S = 2.0

# A thread that waits in one of these holds no lock of malloc's or the loader's. First those that are never told of it.
_FUTEX, _FUTEX_WAIT_BITSET = 202, 9
_SLEEPS = {35: 3, 230: 3}  # nanosleep, clock_nanosleep
_POLLS = {7: 1, 271: 1, 23: 2, 270: 2, 232: 2, 281: 2}  # poll, ppoll, select, pselect6, epoll_wait, epoll_pwait
_RESTART = {-512, -513, -514}  # the kernel would enter the system call again
_RESTART_BLOCK, _RESTART_SYSCALL = -516, 219

_NAMES = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs gs"


class _Registers(ctypes.Structure):
    """``struct user_regs_struct``."""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in _NAMES.split())


class NoThreadError(Exception):
    """No thread of the process could be borrowed, in words; nothing was changed."""


@dataclass(frozen=True)
class Borrowed:
    """A thread was started. tid: of the thread that was borrowed; ms: how long it stood, at most."""

    tid: int
    ms: float


def unsupported() -> str:
    """Return why this machine can't do it, "" where it can."""
    machine = platform.machine()
    return "" if machine == "x86_64" else f"starting a thread from outside is built for x86-64 only, this is {machine}"


def start_thread(pid: int, source: str) -> Borrowed:
    """Have ``pid`` run Python ``source`` on a new thread as soon as that gets the GIL, and return at once.

    Raises NoThreadError, NotFoundError, NotPermittedError, GoneError; the process is as it was then.
    """
    with _alone(pid):
        return _start(pid, source.encode())


@contextmanager
def _alone(pid: int) -> Iterator[None]:
    """Keep every other pdctl out of the process as long as this lasts. A killed one keeps nobody out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        end = time.monotonic() + _TRIES_S
        while True:
            try:
                lock.bind(f"\0pdctl-borrow-{pid}-{look(pid).start}")
                break
            except OSError:
                if time.monotonic() > end:
                    raise NoThreadError("another pdctl is starting a thread in it") from None
                time.sleep(0.01)
        yield


def _start(pid: int, source: bytes) -> Borrowed:
    functions = addresses(pid, FUNCTIONS)
    vectors = " xsave" in Path("/proc/cpuinfo").read_text()
    length = len(build(functions, source, rip=0, rsp=0, vectors=vectors))
    end = time.monotonic() + _TRIES_S
    why = "none of its threads but the main one waits in a place where it can be borrowed"
    while True:
        for tid in _parked(pid):
            try:
                return _borrow(_Plan(pid, tid, functions, source, room(pid, length), vectors))
            except NoThreadError as error:
                why = str(error)
        if time.monotonic() > end:
            raise NoThreadError(why)
        time.sleep(0.005)


def _parked(pid: int) -> Iterator[int]:
    """Return the threads that may be borrowed, the best first."""
    found = []
    try:
        names = [path.name for path in Path(f"/proc/{pid}/task").iterdir() if path.name != str(pid)]
    except OSError:
        raise GoneError("process has ended") from None
    for name in names:
        try:
            call = Path(f"/proc/{pid}/task/{name}/syscall").read_text().split()
        except PermissionError as error:
            raise NotPermittedError(error.strerror) from None
        except OSError:
            continue
        rank = _rank(call)
        if rank is not None:
            found.append((rank, int(name)))
    return iter([tid for _, tid in sorted(found)])


def _rank(call: list[str]) -> int | None:
    """Return how well a thread in this system call (as /proc/PID/task/TID/syscall has it) can be borrowed, None: not."""
    if len(call) < 3 or not call[0].isdecimal():  # running, or blocked outside a system call
        return None
    number = int(call[0])
    if number == _FUTEX:
        return 0 if int(call[2], 16) & 0x7F == _FUTEX_WAIT_BITSET else None  # the other waits are on a plain lock
    return _POLLS.get(number) or _SLEEPS.get(number)


# These keep the GIL: no other thread of pdctl may take it while the thread stands.
_libc = ctypes.PyDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_waitpid = _libc.waitpid
_waitpid.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int]


def _call(request: int, tid: int, data: object = None) -> None:
    if _ptrace(request, tid, None, data) < 0:
        # The kernel has let its memory be opened already: what it says now is about this thread.
        gone = ctypes.get_errno() == errno.ESRCH
        raise NoThreadError(
            f"the thread that was to be borrowed {'has ended' if gone else 'ends, or is traced by another'}"
        )


@dataclass(frozen=True)
class _Plan:
    """What to do: which thread of which process, and what is put where."""

    pid: int
    tid: int
    functions: dict[str, int]
    source: bytes
    place: int
    vectors: bool


def _borrow(plan: _Plan) -> Borrowed:
    done: list[Borrowed | Exception] = []

    def work() -> None:
        try:
            done.append(_trace(plan))
        except Exception as error:  # noqa: BLE001  # handed to the thread that waits
            done.append(error)

    # It is the tracer: its end lets the borrowed thread go, also one that did not stop in time.
    thread = threading.Thread(target=work, daemon=True, name="pdctl-borrow")
    thread.start()
    thread.join()
    if isinstance(done[0], Exception):
        raise done[0]
    return done[0]


def _trace(plan: _Plan) -> Borrowed:
    pid, tid, place = plan.pid, plan.tid, plan.place
    try:  # on a busy machine the borrowed thread would stand until it is this thread's turn
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_FIRST_IN_LINE))
    except OSError:
        pass
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    except PermissionError as error:
        raise NotPermittedError(error.strerror) from None
    except OSError:
        raise GoneError("process has ended") from None
    try:
        _call(_SEIZE, tid)
        started = time.perf_counter()
        handed_on = 0
        try:
            handed_on = _stop(tid)
            registers = _Registers()
            _call(_GETREGS, tid, ctypes.byref(registers))
            stack = int(registers.rsp)
            goes_on = _goes_on(registers)
            _has_room(pid, registers.rsp)
            code = build(plan.functions, plan.source, rip=goes_on, rsp=registers.rsp, vectors=plan.vectors)
            os.pwrite(memory, code, place)  # its pages are copied on this write: no other process sees it
            if os.pread(memory, len(code), place) != code:
                raise NoThreadError("the kernel does not let its code be written to")
            registers.rip = place
            registers.rsp = (registers.rsp - _RED_ZONE) & ~0xF
            registers.orig_rax = (1 << 64) - 1  # in no system call
            _call(_SETREGS, tid, ctypes.byref(registers))
        finally:
            _ptrace(_DETACH, tid, None, handed_on or None)
            stood_ms = (time.perf_counter() - started) * 1000
        if _is_back(pid, tid, stack):
            os.pwrite(memory, bytes(len(code)), place)
        return Borrowed(tid, stood_ms)
    except OSError as error:
        raise NoThreadError(f"its memory can't be written: {error.strerror}") from None
    finally:
        os.close(memory)


def _stop(tid: int) -> int:
    """Wait for the stop that was asked for; returns a signal that came in the same moment, to be handed on."""
    _call(_INTERRUPT, tid)
    status = ctypes.c_int()
    end = time.perf_counter() + _STOP_S
    while (got := _waitpid(tid, ctypes.byref(status), _WALL | os.WNOHANG)) == 0:
        if time.perf_counter() > end:
            raise NoThreadError(f"a thread did not stop within {_STOP_S * 1000:.0f} ms")
        _libc.usleep(20)
    if got < 0 or not os.WIFSTOPPED(status.value):
        raise NoThreadError("the thread that was to be borrowed has ended")
    if status.value >> 16 != _EVENT_STOP:
        number = os.WSTOPSIG(status.value)
        _ptrace(_DETACH, tid, None, number)
        raise NoThreadError(f"a thread got {signal.Signals(number).name} in that moment")
    return 0


def _is_back(pid: int, tid: int, stack: int) -> bool:
    """Wait until a borrowed thread is where it was: in the code its stack is lower. False where that is not seen."""
    end = time.monotonic() + _BACK_S
    while time.monotonic() < end:
        try:
            call = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()
        except OSError:
            return False
        if len(call) >= 2 and call[0] != "running" and int(call[-2], 16) >= stack:
            return True
        time.sleep(0.001)
    return False


def _has_room(pid: int, rsp: int) -> None:
    try:
        Memory(pid).read(rsp - _RED_ZONE - STACK, STACK)
    except BadAddressError:
        raise NoThreadError(f"the stack of a thread has no {STACK} bytes left") from None


def _goes_on(registers: _Registers) -> int:
    """Set ``rax`` as the kernel would for the stopped system call, and return where the thread goes on."""
    result = ctypes.c_longlong(registers.rax).value
    if ctypes.c_longlong(registers.orig_rax).value < 0:
        raise NoThreadError("a thread left its system call in that moment")
    if result in _RESTART:
        registers.rax = registers.orig_rax
    elif result == _RESTART_BLOCK:
        registers.rax = _RESTART_SYSCALL
    else:
        return int(registers.rip)
    return int(registers.rip) - 2  # the instruction before, which enters the kernel


__all__ = ["STACK", "Borrowed", "NoThreadError", "NotFoundError", "start_thread", "unsupported"]
