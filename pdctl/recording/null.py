"""The recorder of a rank whose recording is off: takes everything, keeps nothing."""

from __future__ import annotations

from pdctl.recording import format as f


class NullRecorder:
    """Stands where :class:`pdctl.recording.writer.RecordingWriter` would, with the reason why there is none."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.rounds_capacity = self.items_capacity = 1 << 40  # a ring that never comes round

    def pulse(self, ticks: int, mono_ns: int) -> None:
        """Keep nothing."""

    def visits(self, queue: int) -> memoryview[int]:  # noqa: ARG002
        """Return two words that nobody reads."""
        return memoryview(bytearray(16)).cast("Q")

    def live(self, stream: int) -> NullRun:  # noqa: ARG002
        """Return what keeps no run."""
        return NullRun()

    def flush(self) -> None:
        """Keep nothing."""

    def close_run(self, head: tuple[int, ...], tail: bytes) -> None:
        """Keep nothing."""

    def items(self, data: bytes) -> int:  # noqa: ARG002
        """Keep nothing; the number returned refers to no item."""
        return 0

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
        """Keep nothing."""


class NullRun:
    """Stands where :class:`pdctl.recording.writer.LiveRun` would."""

    tag = 0

    def __init__(self) -> None:
        self.words = memoryview(bytearray(24)).cast("Q")

    def store(self, head: tuple[int, ...], tail: bytes) -> None:
        """Keep nothing."""
