"""One process opened for reading: permission, Python version, address of its scheduler, consistent samples of its objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pdctl.introspect import interpreter, permissions, pyspy, selftest, snapshot
from pdctl.introspect.layouts import Layout
from pdctl.introspect.memory import BadAddressError, Bulk, GoneError, Memory, NotPermittedError
from pdctl.introspect.objects import Objects
from pdctl.introspect.proxy import Proxy, World
from pdctl.protocol.processes import NO_PROCESS, Process, look
from pdctl.protocol.rank import Silence

T = TypeVar("T")

_TRIES = 3
MOST_PAGES = 2048
"""Pages copied in one stop: a hundred take a tenth of a millisecond and less."""


class UnreadableError(Exception):
    """A process can't be read. The text says why, next_step what helps, silence which kind of refusal it is."""

    def __init__(self, reason: str, next_step: str = "", silence: Silence = Silence.ERROR) -> None:
        super().__init__(reason)
        self.reason = reason
        self.next_step = next_step
        self.silence = silence


@dataclass(frozen=True)
class Sample:
    """How a sample was taken. stopped_ms: for how long the main thread was stopped, 0.0: not at all.

    torn: why the data may not be of one moment, "" if it is.
    """

    stopped_ms: float = 0.0
    torn: str = ""


class OpenProcess:
    """A process that can be read. Raises UnreadableError where it can't.

    python: ``3.11``. stack: the main thread's stack with locals, from py-spy at the call of :meth:`root`; opened_ns and
    opened_runs: the time and :meth:`runs` then. longest_stop_ms: of all samples.
    checked: whether the layout was checked against this interpreter; this needs the same Python version.
    """

    def __init__(self, pid: int, timeout_s: float) -> None:
        self.pid = pid
        self.process = _running(pid)
        self.longest_stop_ms = 0.0
        self._end = time.monotonic() + timeout_s
        try:
            self.files = interpreter.mapped_files(pid)
            self.layout = interpreter.layout_of(self.files)
            self._memory = Memory(pid)
            self._memory.read(_somewhere(pid), 8)
        except interpreter.ForeignError as error:
            raise UnreadableError(str(error), "Start it with pdctl's agent (pdctl run).") from None
        except (PermissionError, NotPermittedError):
            raise self._refused() from None
        except (OSError, GoneError, BadAddressError) as error:
            raise self._failed(error) from None
        self.checked = _checked(self.layout)
        self._objects = Objects(self._memory, self.layout)
        self.opened_ns, self.opened_runs, self.stack = 0, 0, pyspy.Stack((), (), ())

    @property
    def python(self) -> str:
        """The version of its Python, ``3.11``."""
        return ".".join(map(str, self.layout.version))

    def runs(self) -> int:
        """Return a number that grows whenever the main thread runs. Raises UnreadableError."""
        try:
            if look(self.pid).runs_since(self.process.start):
                return sum(_times(self.pid))
        except OSError:
            pass  # it ended meanwhile
        raise self._failed(GoneError("process has ended"))

    def look_at_stack(self, timeout_s: float) -> pyspy.Stack:
        """Return the main thread's stack as it is now, with its locals. Raises UnreadableError."""
        end = time.monotonic() + timeout_s
        try:
            command = pyspy.find(self.pid, interpreter.environments(self.files))
            return pyspy.main_thread(command, self.pid, end - time.monotonic(), with_locals=True)
        except pyspy.PySpyError as error:
            raise self._failed(error, error.next_step) from None

    def root(self, accept: Callable[[Proxy], bool]) -> int:
        """Return the address of the first object that ``accept`` takes among the locals ``self`` and ``scheduler`` of the
        main thread, outermost frame first. 0 if there is none. Raises UnreadableError.

        If the stack changes while py-spy reads it, its end may be missing. Then the stack is read again.
        """
        for _ in range(_TRIES):
            self.opened_ns, self.opened_runs = time.monotonic_ns(), self.runs()
            self.stack = self.look_at_stack(self._end - time.monotonic())
            found = self._root(accept)
            if found or self.opened_runs == self.runs() or time.monotonic() > self._end:
                return found
        return 0

    def _root(self, accept: Callable[[Proxy], bool]) -> int:
        self._memory.forget()
        world = World(self._objects)
        for local in (v for frame in reversed(self.stack.locals) for v in frame if v.name in ("scheduler", "self")):
            try:
                found = world.at(local.addr or 0)
                if isinstance(found, Proxy) and accept(found):
                    return int(local.addr or 0)
            except BadAddressError:
                continue
        return 0

    def glance(self, address: int, read: Callable[[Any, World], T]) -> T:
        """Return ``read`` of the object at ``address``, for data that doesn't change. Nothing is stopped.

        Raises UnreadableError.
        """
        value: list[T] = []
        try:
            for _ in range(_TRIES):
                self._memory.forget()
                if self._read(address, read, value):
                    return value[-1]
        except NotPermittedError:
            raise self._refused() from None
        except (OSError, GoneError) as error:
            raise self._failed(error) from None
        raise self._failed(BadAddressError("what is in its memory is not what was expected there"))

    def look(self, address: int, read: Callable[[Any, World], T]) -> tuple[T, Sample]:
        """Return ``read`` of the object at ``address``, from data of one moment if possible.

        While the main thread does not run, nothing is stopped. If it runs, it is stopped while the needed pages are copied.
        Raises UnreadableError.
        """
        torn, needed = "it moved while it was read", set[int]()
        value: list[T] = []
        try:
            for _ in range(_TRIES):
                before = _movement(self.pid)
                self._memory.forget()
                ended = self._read(address, read, value)
                needed.update(self._memory.pages)
                if before and before == _movement(self.pid) and ended:
                    return value[-1], Sample()
                if not needed:
                    continue
                if len(needed) > MOST_PAGES:
                    torn = f"it moved while it was read, and {len(needed)} pages are too many to stop it for"
                    break
                bulk = Bulk(sorted(needed))
                try:
                    stop = snapshot.copy(self.pid, bulk)
                except (NotPermittedError, snapshot.NotStoppedError) as error:
                    torn = f"it moved while it was read, and could not be stopped: {error}"
                    continue
                self.longest_stop_ms = max(self.longest_stop_ms, stop.ms)
                self._memory.forget()
                self._memory.put(bulk.pages())
                asked = self._memory.reads
                ended = self._read(address, read, value)
                needed.update(self._memory.pages)
                if ended and self._memory.reads == asked:
                    return value[-1], Sample(stop.ms)
        except NotPermittedError:
            raise self._refused() from None
        except (OSError, GoneError) as error:
            raise self._failed(error) from None
        if value:
            return value[-1], Sample(torn=torn)
        raise self._failed(BadAddressError("what is in its memory is not what was expected there"))

    def _read(self, address: int, read: Callable[[Any, World], T], value: list[T]) -> bool:
        try:
            world = World(self._objects)
            value.append(read(world.at(address), world))
        except (BadAddressError, LookupError, AttributeError, TypeError, ValueError, RecursionError):
            return False  # a moving rank: addresses were followed that are somebody else's by now
        return True

    def _refused(self) -> UnreadableError:
        refusal = permissions.explain(self.pid)
        return UnreadableError(f"not permitted ({refusal.what}): {refusal.why}", refusal.cure, Silence.NOT_AUTHORISED)

    def _failed(self, error: Exception, next_step: str = "") -> UnreadableError:
        now = look(self.pid)
        if not now.runs_since(self.process.start):
            return UnreadableError(now.why_silent if now.state == "Z" else "process has ended", "", Silence.DEAD)
        return UnreadableError(str(error) or type(error).__name__, next_step)


def _running(pid: int) -> Process:
    process = look(pid)
    if process == NO_PROCESS:
        raise UnreadableError("no such process", "pdctl attach --all lists the schedulers of this host.", Silence.DEAD)
    if process.state in ("Z", "X"):
        raise UnreadableError(process.why_silent, "", Silence.DEAD)
    return process


def _checked(layout: Layout) -> bool:
    wrong = selftest.own()
    if layout.version != selftest.VERSION:
        return False
    if wrong:
        raise UnreadableError(f"pdctl reads this build of Python {layout.version} wrongly, as its own shows: {wrong}")
    return True


def _somewhere(pid: int) -> int:
    """Return an address that can be read."""
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        span, rights, *_ = line.split()
        if rights.startswith("rw"):
            return int(span.partition("-")[0], 16)
    raise GoneError("process has ended")  # its memory is gone before its entry in /proc is


def _movement(pid: int) -> tuple[int, ...]:
    """Return something that changes whenever the main thread runs; () while it runs."""
    return () if look(pid).state == "R" else _times(pid)


def _times(pid: int) -> tuple[int, ...]:
    """Return the main thread's CPU time in clock ticks, and how often it was given a processor and lost it."""
    folder = Path(f"/proc/{pid}/task/{pid}")
    fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
    lines = (folder / "status").read_text(errors="replace").splitlines()
    switches = [int(line.split()[1]) for line in lines if line.startswith(("voluntary_ctxt", "nonvoluntary_ctxt"))]
    return (int(fields[11]), int(fields[12]), *switches)
