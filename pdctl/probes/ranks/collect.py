"""Asks ranks for their status, and reads the recordings of those that stay silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.protocol.model import Status
from pdctl.protocol.rank import Answer
from pdctl.targets.client import Client, recording_file
from pdctl.targets.find import Found

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording


def collect(found: Found, client: Client) -> tuple[list[Answer[Status]], list[Recording | None]]:
    """Ask every rank for its status and read the recording of each whose agent gives none; both in found.ranks' order."""
    answers = client.ask(found.ranks, "status", Status)
    recordings = [
        None if answer.body is not None and not answer.rank.agent_off else recording_file(answer.rank).body
        for answer in answers
    ]
    return answers, recordings
