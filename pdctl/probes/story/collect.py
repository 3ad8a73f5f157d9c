"""Gets the recordings of all ranks for ``story``: from their files, through sockets where a file can't be read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.probes.story.model import RankPast

if TYPE_CHECKING:
    from pdctl.probes.view import View
    from pdctl.protocol.errors import PdctlError


@dataclass(frozen=True)
class Seen:
    """The past of every rank. salts: with which names are hashed in it. earlier: ranks of earlier starts that were left out.

    unrecorded: what to say where it is known why no rank has a recording. now_ns: when it was looked, on the wall clock.
    """

    pasts: list[RankPast]
    salts: tuple[str, ...] = ()
    earlier: int = 0
    unrecorded: PdctlError | None = None
    now_ns: int = 0


def collect(view: View, *, sockets: bool = True, files: bool = True) -> Seen:
    """Return the past of every rank, in the view's order. sockets, files: what recordings may be read through."""
    from pdctl.targets.sources.agentless import unrecorded

    pasts = []
    for rank in view.ranks:
        if rank.recording is None and not (sockets and view.has_recording(rank)):
            pasts.append(RankPast(rank.identity, rank.state, None, rank.recording_off or rank.endpoint_off))
            continue
        answer = view.recording(rank, sockets=sockets, files=files)
        pasts.append(RankPast(rank.identity, rank.state, answer.body, "" if answer.body else answer.reason))
    return Seen(pasts, view.found.salts, view.found.earlier, unrecorded(view.ranks), time.time_ns())


__all__ = ["Seen", "collect"]
