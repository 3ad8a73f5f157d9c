"""Gets the recordings of all ranks for ``story``: from their files, through sockets where a file can't be read."""

from __future__ import annotations

from pdctl.probes.story.model import RankPast
from pdctl.targets.client import Client, recording_file
from pdctl.targets.find import Found


def collect(found: Found, client: Client | None, *, files: bool = True) -> list[RankPast]:
    """Return the past of every rank, in ``found``'s order.

    client: None where only files are to be read. files: False to read through sockets only.
    """
    pasts = []
    for rank in found.ranks:
        if rank.recording is None and not (client is not None and rank.live and rank.recording_size):
            pasts.append(RankPast(rank.identity, rank.state, None, rank.recording_off or rank.endpoint_off))
            continue
        answer = recording_file(rank) if client is None else client.recording(rank, through_socket=not files)
        pasts.append(RankPast(rank.identity, rank.state, answer.body, "" if answer.body else answer.reason))
    return pasts


__all__ = ["collect"]
