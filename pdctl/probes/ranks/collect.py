"""Asks ranks for their status, and reads the recordings of those that stay silent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.probes.turns import Loop
from pdctl.protocol.model import Status
from pdctl.protocol.rank import Answer

if TYPE_CHECKING:
    from pdctl.probes.view import View
    from pdctl.recording.reader import Recording


@dataclass(frozen=True)
class Seen:
    """Every rank's answer, and the recording of each whose agent gives none. loops: of all ranks, those looked at first.

    The rest is as the ranks were found.
    """

    answers: list[Answer[Status]]
    recordings: list[Recording | None]
    earlier: int = 0
    problems: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    loops: tuple[Loop, ...] = ()


def collect(view: View) -> Seen:
    """Ask every rank for its status and read the recording of each whose agent gives none, in the view's order."""
    answers = view.status()
    recordings = [
        None
        if answer.body is not None and not answer.rank.agent_off
        else view.recording(answer.rank, sockets=False).body
        for answer in answers
    ]
    found = view.found
    return Seen(answers, recordings, found.earlier, found.problems, found.others, tuple(view.loops()))
