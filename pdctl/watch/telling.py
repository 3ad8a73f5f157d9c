"""Writes lines to standard output in a thread of its own: a reader that is slow, or gone, stops no watch."""

from __future__ import annotations

import queue
import select
import threading
from typing import TYPE_CHECKING

from pdctl.protocol.errors import PdctlError

if TYPE_CHECKING:
    from pdctl.report.output import Output

WAITING = 1000
"""Lines that wait for a slow reader. What comes while as many wait is counted, and left out."""
_END_S = 2.0


class Teller:
    """Lines for standard output. ``closed``: nobody reads them any more, or they can't be written."""

    def __init__(self, out: Output) -> None:
        self.closed = False
        self._out = out
        self._lost = 0
        self._queue: queue.Queue[str | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._run, name="pdctl output", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Write a line, soon. Never waits."""
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._lost += 1

    def note(self, line: str) -> None:
        """Write a line to standard error."""
        self._out.note(line)

    def look(self) -> None:
        """Find out whether the reader is gone, though nothing is written."""
        try:
            poll = select.poll()
            poll.register(self._out.out.fileno(), 0)
            self.closed = self.closed or any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
        except (OSError, ValueError):  # a stream without a descriptor
            pass

    def close(self) -> None:
        """Write what waits, if that does not take long."""
        try:
            self._queue.put(None, timeout=_END_S)
        except queue.Full:
            return
        self._thread.join(_END_S)

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            lost, self._lost = self._lost, 0
            try:
                if lost:
                    self._out.lines(f"{lost} lines are left out: they were not read in time")
                self._out.lines(line)
            except PdctlError as error:
                self._out.note(error.message)
                self.closed = True
                return
            if self._out.hung_up:
                self.closed = True
                return
