"""Gets what ``story`` tells from: recordings, from files or through sockets, and the lines of logs that name the request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.probes.story.model import RankPast

if TYPE_CHECKING:
    from pdctl.probes.story.loglines import Names
    from pdctl.probes.view import View
    from pdctl.protocol.errors import PdctlError
    from pdctl.targets.logtext import LogText

_LOGS_S = 5.0
"""Seconds that reading a log may take, where there is time."""


@dataclass(frozen=True)
class Seen:
    """The past of every rank. salts: with which names are hashed in it. earlier: ranks of earlier starts that were left out.

    unrecorded: what to say where it is known why no rank has a recording. now_ns: when it was looked, on the wall clock.
    logs: what logs have of the request. called: what they call it besides, rooms as their numbers.
    """

    pasts: list[RankPast]
    salts: tuple[str, ...] = ()
    earlier: int = 0
    unrecorded: PdctlError | None = None
    now_ns: int = 0
    logs: tuple[LogText, ...] = ()
    called: tuple[str, ...] = ()


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


def with_logs(view: View, seen: Seen, asked: str, logs: Sequence[Path]) -> Seen:
    """Return ``seen`` with the lines of ``logs`` that name the request.

    Where lines that name it call it something else, too, lines with that name are read as well.
    """
    from pdctl.probes.story.find import called_by, known_rooms
    from pdctl.probes.story.loglines import Names, linked

    recordings = [past.recording for past in seen.pasts if past.recording is not None]
    known = known_rooms(recordings)
    names = Names(*called_by([asked], known, recordings, seen.salts))
    texts = _read(view, logs, names)
    ids, rooms = linked(line for text in texts for line in text.lines)
    more = [one for one in (*ids, *map(str, rooms)) if one not in names.all]
    if more:
        names = Names(*called_by([*names.all, *more], known, recordings, seen.salts))
        texts = _read(view, logs, names)
    return replace(seen, logs=tuple(texts), called=names.all)


def _read(view: View, logs: Iterable[Path], names: Names) -> list[LogText]:
    from pdctl.targets.logtext import read_log

    return [read_log(path, names.needles, names.in_line, view.left(_LOGS_S)) for path in logs]
