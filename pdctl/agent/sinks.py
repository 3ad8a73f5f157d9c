"""Interfaces of a tap: the sink that it writes to (a recording), and the view of a queue (from an engine adapter)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pdctl.recording import format as f


class Live(Protocol):
    """The store for a stream's current run; :class:`pdctl.recording.writer.LiveRun` is one."""

    words: memoryview[int]
    """Stored into, then flushed, when the run is entered once more: 1 the time, 0 ``tag | repeat``; when applied 2 the same."""
    tag: int

    def store(self, head: tuple[int, ...], tail: bytes) -> None:
        """Store a run, or a new phase of it."""


class Sink(Protocol):
    """What a tap writes to; :class:`pdctl.recording.writer.RecordingWriter` is one. Capacities count records."""

    items_capacity: int
    rounds_capacity: int

    def visits(self, queue: int) -> memoryview[int]:
        """Return the two words of a queue: turns so far (or-ed with EMPTY_BIT), monotonic ns of the last."""

    def live(self, stream: int) -> Live:
        """Return where the run of a stream is kept."""

    def flush(self) -> None:
        """Keep what was stored into the words of :meth:`visits` and :class:`Live`. Never raises."""

    def close_run(self, head: tuple[int, ...], tail: bytes) -> None:
        """Append a run that has ended."""

    def items(self, data: bytes) -> int:
        """Append item records and return the number of the first."""
        ...


class Recorder(Sink, Protocol):
    """The recorder that an adapter gets from the agent: a recording, or the null recorder if recording is off."""

    def pulse(self, ticks: int, mono_ns: int) -> None:
        """Store that the scheduler took a turn."""

    def event(
        self,
        kind: int,
        *,
        mono_ns: int | None = None,
        queue: int = f.NO_QUEUE,
        room: int = 0,
        slot: int = -1,
        a: int = 0,
        b: int = 0,
        text: str = "",
    ) -> None:
        """Append an event."""


class QueueView(Protocol):
    """How a tap reads one engine queue; an adapter implements it."""

    def describe(self, entry: Any) -> tuple[int, int]:
        """Return (room, slot) of a queue entry; 0 and -1 where it has none."""

    def found(self, slots: Sequence[int]) -> Sequence[int] | None:
        """Return the rooms these metadata slots hold now, None where they can't be read."""
