"""Gets what ``story`` tells from: recordings, from files or through sockets, and the lines of logs that name the request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.probes.story.model import RankPast
from pdctl.protocol.rank import Silence

if TYPE_CHECKING:
    from pdctl.probes.story.loglines import Names
    from pdctl.probes.view import View
    from pdctl.protocol.errors import PdctlError
    from pdctl.recording.excerpt import Excerpt, Part, Wanted
    from pdctl.recording.reader import Recording
    from pdctl.targets.logtext import LogText

_LARGE_AT_ONCE = 4
"""Ranks that are asked at the same time for what may be megabytes."""
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


def collect(view: View, asked: str = "", *, sockets: bool = True, files: bool = True) -> Seen:
    """Return the past of every rank, in the view's order. sockets, files: what recordings may be read through.

    asked: a room, or the id of a request: of recordings on other hosts only what tells of it is read.
    """
    from pdctl.targets.sources.agentless import unrecorded

    excerpts, found = _excerpts(view, asked) if asked and sockets else ({}, {})
    near = [n for n in range(len(view.ranks)) if n not in excerpts and n not in found]
    found.update(_whole(view, near, sockets=sockets, files=files))
    if excerpts:
        found.update(_excerpted(view, asked, excerpts, found))
    pasts = [found[n] for n in range(len(view.ranks))]
    return Seen(pasts, view.found.salts, view.found.earlier, unrecorded(view.ranks), time.time_ns())


def _whole(view: View, those: Sequence[int], *, sockets: bool, files: bool) -> dict[int, RankPast]:
    """Return the pasts of the ranks with these numbers, by their whole recordings."""
    there = [n for n in those if view.ranks[n].recording is not None or (sockets and view.has_recording(view.ranks[n]))]
    answers = view.recordings([view.ranks[n] for n in there], sockets=sockets, files=files)
    found = dict(zip(there, answers, strict=True))
    pasts = {}
    for n in those:
        rank = view.ranks[n]
        if n in found:
            pasts[n] = RankPast(rank.identity, rank.state, found[n].body, "" if found[n].body else found[n].reason)
        else:
            pasts[n] = RankPast(rank.identity, rank.state, None, rank.recording_off or rank.endpoint_off)
    return pasts


def _excerpts(view: View, asked: str) -> tuple[dict[int, Excerpt], dict[int, RankPast]]:
    """Return excerpts of recordings on other hosts, and the pasts of ranks there that do not answer, by number."""
    far = [n for n, rank in enumerate(view.ranks) if view.is_far(rank)]
    if not far:
        return {}, {}
    from pdctl.probes.story.excerpts import first_of

    excerpts, silent = {}, {}
    for n, answer in zip(far, view.excerpts([(view.ranks[n], first_of(asked)) for n in far]), strict=True):
        if answer.body is not None:
            excerpts[n] = answer.body
        elif answer.silence not in (Silence.NONE, Silence.GARBAGE):
            silent[n] = RankPast(answer.rank.identity, answer.rank.state, None, answer.reason)
    return excerpts, silent


def _excerpted(view: View, asked: str, excerpts: dict[int, Excerpt], found: dict[int, RankPast]) -> dict[int, RankPast]:
    """Return the pasts of ranks by what is needed of their recordings, or by all where that can't be told."""
    from pdctl.probes.story.excerpts import Reading

    read: dict[int, RankPast] = {}

    def ask(wanted: Mapping[int, Wanted]) -> dict[int, Part | None]:
        answers = []
        large = any(one.runs or one.kinds for one in wanted.values())
        those, step = list(wanted.items()), _LARGE_AT_ONCE if large else len(wanted)
        for at in range(0, len(those), step):
            answers += view.parts([(view.ranks[n], one) for n, one in those[at : at + step]])
        return {n: answer.body for n, answer in zip(wanted, answers, strict=True)}

    def whole(those: Sequence[int]) -> dict[int, Recording | None]:
        read.update(_whole(view, those, sockets=True, files=True))
        return {n: read[n].recording for n in those}

    near = {n: past.recording for n, past in found.items() if past.recording is not None}
    reading = Reading(asked, near, excerpts, ask, whole)
    reading.read()
    told = {n: RankPast(view.ranks[n].identity, view.ranks[n].state, reading.recordings.get(n)) for n in excerpts}
    return {**told, **read}


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
