"""The threads that an engine runs beside its scheduler for transfers, and those of them that have ended. None ever should.

A thread is one of these if its KV manager's code runs in it: its function is a method of the manager, or closes over it.
Those of a manager that is not the scheduler's any more, or that was told to stop, are not looked at. All versions read start
them as the manager is made. One that begins later may be for one task: its end counts if an exception was the reason.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from pdctl.engines.base import Hooks, before
from pdctl.engines.shared import raised_in
from pdctl.protocol.model import EventKind, ServiceThread
from pdctl.protocol.notes import THREAD_ENDED

BOOTSTRAP = "bootstrap_thread"
"""The function of the thread in which prefill hears decode ranks."""
MAX_THREADS = 256
MAX_NAME = 200


class _Watched:
    def __init__(self, thread: threading.Thread, function: str, *, late: bool) -> None:
        self.thread = thread
        self.function = function
        self.late = late
        self.ended_ns = 0
        self.error = ""


class ServiceThreads:
    """The threads of one rank. manager: returns the scheduler's KV manager. event: ``Recorder.event``.

    owed: the function of a thread that runs for as long as the manager is there, "" unknown: where it is missing when the agent
    comes, it has ended before.
    """

    def __init__(self, manager: Callable[[], Any], event: Callable[..., None], owed: str = "") -> None:
        self._manager = manager
        self._event = event
        self._owed = owed
        self._missing = ""
        self._owner: Any = None
        self._watched: list[_Watched] = []  # never changed, only replaced: threads that end read it
        self._seen: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def install(self, hooks: Hooks) -> bool:
        """Find the threads, and hear of the exceptions that end some; return whether any was found."""
        self.look()
        hooks.wrap(threading, "excepthook", "threads", before(self._raised))
        return bool(self._watched)

    def look(self) -> None:
        """Write down which have ended since. Agent's thread."""
        self._find()
        for one in self._watched:
            if not one.ended_ns and not one.thread.is_alive():
                self._ended(one, "")

    def _find(self) -> None:
        manager, late = self._manager(), True
        if manager is not self._owner:
            self._owner, self._watched, self._seen, late = manager, [], set(), False
        every = [] if manager is None else threading.enumerate()
        there = set(every[:MAX_THREADS])
        kept = [one for one in self._watched if one.ended_ns or not one.late or one.thread.is_alive()]
        new = [
            _Watched(thread, name, late=late) for thread in there - self._seen if (name := _function(thread, manager))
        ]
        self._watched = [*kept, *new][:MAX_THREADS]
        self._seen = there
        if not late:  # where none is found, or not all are looked at, a missing one is not known
            known = bool(new) and len(every) <= MAX_THREADS
            self._missing = self._owed if known and all(one.function != self._owed for one in new) else ""
            self._owed = ""  # of a manager in another role something else

    def state(self) -> tuple[ServiceThread, ...]:
        """Return the threads by their functions, those that have ended in front."""
        self.look()
        if _stops(self._owner):
            return ()
        found = {self._missing: ServiceThread(self._missing, ended=1)} if self._missing else {}
        for one in self._watched:
            known = found.get(one.function, ServiceThread(one.function))
            gone = 1 if one.ended_ns else 0
            found[one.function] = ServiceThread(
                function=one.function,
                running=known.running + 1 - gone,
                ended=known.ended + gone,
                ended_mono_ns=known.ended_mono_ns or one.ended_ns,
                error=known.error or one.error,
            )
        return tuple(sorted(found.values(), key=lambda one: not one.ended))

    def _ended(self, one: _Watched, error: str) -> None:
        with self._lock:
            if one.ended_ns:
                return
            one.ended_ns, one.error = time.monotonic_ns(), error
        if not _stops(self._owner):
            self._event(EventKind.NOTE, text=f"{THREAD_ENDED}: {one.function}{': ' if error else ''}{error}")

    def _raised(self, args: Any, /) -> None:
        for one in self._watched:
            if one.thread is args.thread:
                self._ended(one, _words(one.function, args.exc_type, args.exc_traceback))


def _words(function: str, kind: type[BaseException], at: Any) -> str:
    place = raised_in(at).replace(f" in {function}, ", ", ", 1)  # an event has little room
    text = f"{kind.__name__}{place}"[:MAX_NAME]
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _stops(manager: Any) -> bool:
    """Return whether a manager was told to stop, as one is whose rank changes its role (since 0.5.22)."""
    return bool(getattr(manager, "_stopped", False)) or sys.is_finalizing()


def _function(thread: threading.Thread, manager: Any) -> str:
    """Return the name of a thread's function if it is the manager's, without what names one that only guards another."""
    target = getattr(thread, "_target", None)  # it is there until the thread ends
    cells = getattr(target, "__closure__", None) or ()
    if getattr(target, "__self__", None) is manager or any(_holds(cell, manager) for cell in cells):
        return str(getattr(target, "__name__", "?"))[:MAX_NAME].removesuffix("_guarded")
    return ""


def _holds(cell: Any, manager: Any) -> bool:
    try:
        return cell.cell_contents is manager
    except ValueError:  # it is empty
        return False
