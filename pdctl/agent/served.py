"""What the agent's thread needs of the agent that it serves."""

from __future__ import annotations

from typing import Protocol

from pdctl.engines.base import Adapter
from pdctl.faults.table import FaultTable
from pdctl.protocol.paths import Registration
from pdctl.recording.null import NullRecorder
from pdctl.recording.writer import RecordingWriter


class Served(Protocol):
    """One rank's agent, as its thread knows it. pid: of the process that it is for."""

    pid: int
    adapter: Adapter
    faults: FaultTable
    recorder: RecordingWriter | NullRecorder

    def registered(self, r: Registration) -> None:
        """Say of this agent what ``r`` says, from now on."""

    def note(self, text: str) -> None:
        """Say something in the recording and in the engine's log. Never raises."""

    def thread_ended(self, why: str) -> None:
        """Say that nobody answers any more."""

    def stop(self) -> None:
        """End the agent."""
