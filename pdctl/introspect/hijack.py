"""Start a native thread in another process by hijacking one of its parked threads for a moment. x86-64 Linux.

The hijacked thread is never the main thread: a running thread may hold a lock of malloc or of the loader. pdctl stops the
thread, points it at code that restores it (:mod:`pdctl.introspect.shellcode`), and releases it at once. If pdctl is killed at
any point, the process goes on.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pdctl.introspect import tracing
from pdctl.introspect.memory import BadAddressError, GoneError, Memory, NotPermittedError
from pdctl.introspect.shellcode import FUNCTIONS, STACK, build
from pdctl.introspect.symbols import addresses, room
from pdctl.protocol.processes import look

_RED_ZONE = 128
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
    """No thread of the process could be hijacked; the text says why. Nothing was changed."""


@dataclass(frozen=True)
class Hijacked:
    """A thread was started. tid: the hijacked thread. ms: for how long it was stopped, at most."""

    tid: int
    ms: float


def unsupported() -> str:
    """Return why this machine can't do it, "" where it can."""
    machine = platform.machine()
    return "" if machine == "x86_64" else f"starting a thread from outside is built for x86-64 only, this is {machine}"


def start_thread(pid: int, source: str) -> Hijacked:
    """Start a thread in ``pid`` that runs Python ``source`` once it gets the GIL. Return at once.

    Raises NoThreadError, NotFoundError, NotPermittedError, GoneError. The process is unchanged then.
    """
    with _alone(pid):
        return _start(pid, source.encode())


@contextmanager
def _alone(pid: int) -> Iterator[None]:
    """Lock the process against other pdctl commands. A killed command leaves no lock."""
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


def _start(pid: int, source: bytes) -> Hijacked:
    functions = addresses(pid, FUNCTIONS)
    vectors = " xsave" in Path("/proc/cpuinfo").read_text()
    length = len(build(functions, source, rip=0, rsp=0, vectors=vectors))
    end = time.monotonic() + _TRIES_S
    why = "none of its threads but the main one waits in a place where it can be borrowed"
    while True:
        for tid in _parked(pid):
            try:
                plan = _Plan(pid, tid, functions, source, room(pid, length), vectors)
                return tracing.on_a_tracer(lambda plan=plan: _trace(plan))  # type: ignore[misc]
            except NoThreadError as error:
                why = str(error)
        if time.monotonic() > end:
            raise NoThreadError(why)
        time.sleep(0.005)


def _parked(pid: int) -> Iterator[int]:
    """Return the threads that may be hijacked, the best first."""
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
    """Rate a thread for hijacking by its system call (from /proc/PID/task/TID/syscall); None: it must not be hijacked."""
    if len(call) < 3 or not call[0].isdecimal():  # running, or blocked outside a system call
        return None
    number = int(call[0])
    if number == _FUTEX:
        return 0 if int(call[2], 16) & 0x7F == _FUTEX_WAIT_BITSET else None  # the other waits are on a plain lock
    return _POLLS.get(number) or _SLEEPS.get(number)


def _call(request: int, tid: int, data: object = None) -> None:
    code = tracing.ask(request, tid, data)
    if code:
        # The kernel has let its memory be opened already: what it says now is about this thread.
        gone = code == errno.ESRCH
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


def _trace(plan: _Plan) -> Hijacked:
    pid, tid, place = plan.pid, plan.tid, plan.place
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    except PermissionError as error:
        raise NotPermittedError(error.strerror) from None
    except OSError:
        raise GoneError("process has ended") from None
    try:
        _call(tracing.SEIZE, tid)
        started = time.perf_counter()
        handed_on = 0
        try:
            handed_on = _stop(tid)
            if handed_on:
                raise NoThreadError("a thread got a signal in the moment in which it was to be borrowed")
            registers = _Registers()
            _call(tracing.GETREGS, tid, ctypes.byref(registers))
            stack = int(registers.rsp)
            goes_on = _goes_on(registers)
            _has_room(pid, stack)
            code = build(plan.functions, plan.source, rip=goes_on, rsp=stack, vectors=plan.vectors)
            os.pwrite(memory, code, place)  # its pages are copied on this write: no other process sees it
            if os.pread(memory, len(code), place) != code:
                raise NoThreadError("the kernel does not let its code be written to")
            registers.rip = place
            registers.rsp = (stack - _RED_ZONE) & ~0xF
            registers.orig_rax = (1 << 64) - 1  # in no system call
            _call(tracing.SETREGS, tid, ctypes.byref(registers))
        finally:
            tracing.ask(tracing.DETACH, tid, handed_on or None)
            stood_ms = (time.perf_counter() - started) * 1000
        _wipe(memory, plan, len(code), stack)
        return Hijacked(tid, stood_ms)
    except OSError as error:
        raise NoThreadError(f"its memory can't be written: {error.strerror}") from None
    finally:
        os.close(memory)


def _wipe(memory: int, plan: _Plan, length: int, stack: int) -> None:
    """Remove the code once its thread has left it. If that can't be seen the code stays; it is harmless."""
    try:
        if _is_back(plan, length, stack):
            os.pwrite(memory, bytes(length), plan.place)
    except OSError:
        pass  # the process has ended; its thread was started all the same


def _stop(tid: int) -> int:
    """Stop the thread; returns a signal that it got in that moment, to be handed on, 0 for none."""
    _call(tracing.INTERRUPT, tid)
    try:
        return tracing.stop(tid, _STOP_S)[0]
    except (tracing.StillRunningError, tracing.EndedError) as error:
        raise NoThreadError(f"a thread that was to be borrowed: {error}") from None


def _is_back(plan: _Plan, length: int, stack: int) -> bool:
    """Wait until a hijacked thread is back at its place: inside the code its stack is lower. False if that can't be seen."""
    end = time.monotonic() + _BACK_S
    while time.monotonic() < end:
        try:
            call = Path(f"/proc/{plan.pid}/task/{plan.tid}/syscall").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return True  # it has ended since, as one that had only waited for the GIL does
        if len(call) >= 2 and call[0] != "running":
            sp, pc = int(call[-2], 16), int(call[-1], 16)
            if sp >= stack and not plan.place <= pc < plan.place + length:
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
