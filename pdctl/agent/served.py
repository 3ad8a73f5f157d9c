"""The interface of an agent towards its thread."""

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

    def follow_identity(self, r: Registration) -> Registration | None:
        """Take over the rank's identity if it is another one now; return ``r`` with it, None where it is the same."""

    def update_registration(self, r: Registration) -> None:
        """Replace this agent's registration by ``r``."""

    def note(self, text: str) -> None:
        """Write a note into the recording and the engine's log. Never raises."""

    def thread_ended(self, why: str) -> None:
        """Report that the agent's thread has ended."""

    def stop(self) -> None:
        """End the agent."""
