"""Stop conditions: what ends a fault early, seen by the command from the recordings of the ranks.

The command watches them on a thread of its own, beside the lease renewals, so a slow read costs no lease. The limits that the
rank keeps (TTL, lease, hits) do not depend on this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import Action
from pdctl.targets.client import Client
from pdctl.targets.find import Found, FoundRank
from pdctl.targets.recordings import recording_file

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording

LOOK_S = 1.0
DIVERGED = "diverged"
MAX_FAILED = 1_000_000


@dataclass(frozen=True)
class Condition:
    """``diverged``: a group's ranks are out of step. Else so many rooms failed since the fault was placed."""

    text: str
    failed: int = 0


def parse(text: str) -> Condition:
    """Return the condition written as ``diverged`` or ``failed:N``. Raises ValueError with a sentence for the user."""
    if text == DIVERGED:
        return Condition(text)
    name, colon, number = text.partition(":")
    if name == "failed" and colon and number.isascii() and number.isdecimal() and 0 < int(number[:9]) <= MAX_FAILED:
        return Condition(text, int(number[:9]))
    raise ValueError(f"--stop-when {text!r} is none of diverged, failed:N")


def diverged(found: Found) -> str:
    """Return which group's recorded rounds differ, "" where none do."""
    from pdctl.probes.queues.collect import collect
    from pdctl.probes.queues.judge import judge
    from pdctl.probes.view import View

    with Client() as client:  # asks nobody: recordings alone, so that no stopped rank is waited for
        document = judge(collect(View(found, client), sockets=False), stalled_s=float("inf"), confirmed=True)
    return next((f"diverged: {group.title}" for group in document.groups if group.verdict == "DIVERGED"), "")


def failed_rooms(recordings: Sequence[Recording], since_ns: int) -> set[int]:
    """Return the rooms that any of these ranks gave up as failed in a round after ``since_ns`` of its monotonic clock."""
    rooms = set()
    for recording in recordings:
        for stream in recording.streams:
            for row in (stream.table["t_enter"] >= since_ns).nonzero()[0].tolist():
                items = stream.items(stream.run(row)) or ()
                rooms |= {item.room for item in items if item.action == Action.FAILED}
    return rooms


class Watch:
    """Check again and again until the condition is met. Then ``reason`` is set, and :meth:`wait` returns at once."""

    def __init__(self, condition: Condition, found: Found) -> None:
        """Take the present state as the start.

        Raises PdctlError (REFUSED) if the condition is met already, or if no rank has a readable recording.
        """
        self.reason = ""
        self._condition = condition
        self._found = found
        self._met = threading.Event()
        if not _recordings(found.ranks):
            raise PdctlError(
                f"--stop-when {condition.text} can't be watched: no rank has a recording that can be read here",
                "pdctl ranks says why",
                Exit.REFUSED,
            )
        self._since_ns = time.monotonic_ns()  # recordings that can be read here are of this host: of the same clock
        there = self._look()
        if there:
            raise PdctlError(f"nothing was injected, {there} already", "pdctl diff-queues shows it", Exit.REFUSED)
        self._thread = threading.Thread(target=self._run, name="pdctl-stop-when", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Return when the condition is met, or after the given time."""
        self._met.wait(seconds)

    def _look(self) -> str:
        if not self._condition.failed:
            return diverged(self._found)
        failed = failed_rooms(_recordings(self._found.ranks), self._since_ns)
        return f"{len(failed)} rooms have failed" if len(failed) >= self._condition.failed else ""

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_S)
            try:
                self.reason = self._look()
            except Exception as error:  # noqa: BLE001  # a condition that can't be seen must end the fault, not hide
                self.reason = f"--stop-when {self._condition.text} can't be watched any more: {error}"
            if self.reason:
                self._met.set()
                return


def _recordings(ranks: Sequence[FoundRank]) -> list[Recording]:
    answers = (recording_file(rank) for rank in ranks)
    return [answer.body for answer in answers if answer.body is not None]
