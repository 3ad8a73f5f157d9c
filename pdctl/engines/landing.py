"""Slots that read 0 when their request polled Success. They are watched until the metadata lands, however late.

The engine itself reads the slot again only at its next poll. A rank that hangs never does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pdctl.protocol.model import QUEUES, EventKind

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder

_TRANSFER = QUEUES.index("decode.transfer")


class SlotReader(Protocol):
    """What is read of an engine's queues and slots; its QueueReader is one."""

    def queue(self, name: str) -> list[Any]:
        """Return the engine's list of a queue."""
        ...

    def describe(self, entry: Any) -> tuple[int, int]:
        """Return (room, slot) of a queue entry."""
        ...

    def room_in(self, slot: int) -> int | None:
        """Return the room in one slot (0: not written), None where it can't be read."""
        ...


@dataclass(frozen=True)
class _Awaited:
    room: int
    since_ns: int


class Landings:
    """The awaited slots of one decode rank. Filled on the main thread, looked at by the agent's."""

    def __init__(self, reader: SlotReader, recorder: Recorder) -> None:
        self._reader = reader
        self._recorder = recorder
        self._awaited: dict[int, _Awaited] = {}

    def expect(self, slot: int, room: int) -> None:
        """Note that ``slot`` read 0 although the poll of ``room`` is Success. The first time counts."""
        known = self._awaited.get(slot)
        if known is None or known.room != room:
            self._awaited[slot] = _Awaited(room, time.monotonic_ns())

    def seen(self, slot: int, found: int) -> None:
        """Take a value that the engine's own look at an awaited slot gave; the main thread calls it before a commit."""
        if found and self._awaited:
            self._landed(slot, found)

    def look(self) -> bool:
        """Look at the awaited slots; returns whether any is still awaited. Agent's thread."""
        if not self._awaited:
            return False
        queued = {self._reader.describe(entry) for entry in list(self._reader.queue("decode.transfer"))}
        for slot, awaited in list(self._awaited.items()):
            found = self._reader.room_in(slot)
            if found:
                self._landed(slot, found)
            elif (awaited.room, slot) not in queued:
                self._awaited.pop(slot, None)  # it left some other way: a failure, an abort
        return bool(self._awaited)

    def _landed(self, slot: int, found: int) -> None:
        awaited = self._awaited.pop(slot, None)
        if awaited is not None:
            now = time.monotonic_ns()
            self._recorder.event(
                EventKind.LANDED,
                mono_ns=now,
                queue=_TRANSFER,
                room=awaited.room,
                slot=slot,
                a=now - awaited.since_ns,
                b=found,
            )
