"""Questions that wait for an answer, and a poll over their connections."""

from __future__ import annotations

import contextlib
import select
import time
from dataclasses import dataclass, field
from typing import Any

from pdctl.protocol import wire
from pdctl.protocol.rank import FoundRank
from pdctl.targets.lines import Line

_LIMITS = {"hello": 64 << 10, "status": 1 << 20, "settings": 256 << 10, "leave": 4 << 10}
"""Bytes of an answer where it is known to be small."""
_GATHER_S = 1e-5
"""Seconds, for each connection, in which answers of other hosts gather before all are looked at: that takes a tenth of it."""
_FRAME = 1 << 10
"""Bytes of a reply around its body."""
SMALL = 256 << 10
"""Bytes of an answer that any rank may give."""


@dataclass(eq=False)
class Question:
    """One question to one rank. wait_s: how long it is waited for. cut_s: the time that it needed; 0.0 where it had that."""

    index: int
    rank: FoundRank
    op: str
    args: dict[str, Any]
    wait_s: float
    cut_s: float = 0.0
    number: int = 0
    line: Line = field(init=False)

    @property
    def limit(self) -> int:
        """The bytes that an answer to it may have."""
        if self.op == "recording":
            return int(self.args.get("length", 0)) + _FRAME
        return _LIMITS.get(self.op, wire.MAX_MESSAGE)


class Watch:
    """The questions that wait for an answer, and a poll over their connections."""

    def __init__(self, *, far: bool) -> None:
        self.open: dict[int, Question] = {}
        self.ticking: dict[int, Question] = {}
        """Those that no poll tells of: they are tried again and again."""
        self._watched: dict[object, list[Question]] = {}
        """By what is watched: a bridge's is that of many questions."""
        self._on: dict[int, object] = {}
        self._held: dict[int, int] = {}
        self._far = far
        self._poll: Any = select.poll()
        if far:
            import zmq  # only where something is remote

            self._poll = zmq.Poller()

    def look(self, question: Question) -> None:
        """Register the present descriptor of the question's line."""
        index, on = question.index, question.line.poll_on
        self.open[index] = question
        if on is not None and self._on.get(index) == on:
            return
        self._unwatch(question)
        if on is None:
            self.ticking[index] = question
        else:
            self.ticking.pop(index, None)
            self._on[index] = on
            if on not in self._watched:
                self._poll.register(on, select.POLLIN)
            self._watched.setdefault(on, []).append(question)

    def ready(self, wait_s: float) -> list[Question]:
        """Wait until a question is ready. Return all ready questions."""
        if self._far and len(self._on) > 1:
            gather_s = min(wait_s, _GATHER_S * len(self._on))
            time.sleep(gather_s)
            wait_s -= gather_s
        found = [one for on, _ in self._poll.poll(int(wait_s * 1000)) for one in self._watched.get(on, ())]
        return found + list(self.ticking.values())

    def held(self, question: Question) -> int:
        """Return the bytes of all large answers held, with this question's; 0 if this answer is not large."""
        held = question.line.held
        if held <= SMALL:
            self._held.pop(question.index, None)
            return 0
        self._held[question.index] = held
        return sum(self._held.values())

    def forget(self, question: Question) -> None:
        """Wait no more for a question."""
        self._unwatch(question)
        for of in (self.open, self.ticking, self._held):
            of.pop(question.index, None)

    def _unwatch(self, question: Question) -> None:
        on = self._on.pop(question.index, None)
        if on is None or question not in self._watched.get(on, ()):
            return
        self._watched[on].remove(question)
        if not self._watched[on]:
            del self._watched[on]
            with contextlib.suppress(KeyError, OSError):
                self._poll.unregister(on)
