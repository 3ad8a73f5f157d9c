"""Looks at every rank several times over a while: what is on its way at one look has arrived at another."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.probes import turns
from pdctl.probes.leaks.model import Look, RankWatch, look
from pdctl.probes.turns import Looked, Turn
from pdctl.protocol.model import EventKind, KVPoll
from pdctl.protocol.rank import FoundRank

if TYPE_CHECKING:
    from pdctl.probes.view import View

LOOKS = 5
"""Looks of a watch, spread evenly."""


def collect(view: View, *, watch_s: float, looks: int = LOOKS) -> list[RankWatch]:
    """Return what was seen of every rank over ``watch_s`` seconds, in the view's order."""
    taken: dict[int, list[Look]] = {id(rank): [] for rank in view.ranks}
    silence: dict[int, str] = {}
    known: dict[frozenset[int], frozenset[int]] = {}
    started, now = time.monotonic(), view
    for number in range(looks):
        due = started + watch_s * number / max(1, looks - 1)
        view.pause(max(0.0, due - time.monotonic()))
        now = view.again() if number else view
        asked = [rank for rank in view.ranks if id(rank) not in silence]
        rooms = now.rooms(asked)
        slots = now.metadata(asked, sums=False)
        for rank, first, second in zip(asked, rooms, slots, strict=True):
            if first.body is None or second.body is None:
                silence[id(rank)] = first.reason or second.reason or rank.state
            else:
                taken[id(rank)].append(_shared(look(first.body, second.body), known))
    live = [rank for rank in view.ranks if id(rank) not in silence]
    after = {id(a.rank): a.body for a in now.status(live) if a.body is not None}
    watches = []
    for rank in view.ranks:
        status, seen = after.get(id(rank)), taken[id(rank)]
        turn = Turn() if status is None else turns.judge(Looked((status,)))
        inside = rank.state != "outside"
        watches.append(
            RankWatch(
                identity=rank.identity,
                state=rank.state,
                silence=silence.get(id(rank), ""),
                looks=tuple(seen),
                idle=turn.idle,
                computing=turn.computing and inside,
                turned=inside and status is not None and bool(seen) and status.ticks != seen[-1].ticks,
                failed=_failed(rank, now, seen),
            )
        )
    return watches


def _shared(one: Look, known: dict[frozenset[int], frozenset[int]]) -> Look:
    """Return the look with a set of rooms that ranks which have the same share."""
    return replace(one, rooms=known.setdefault(one.rooms, one.rooms))


def _failed(rank: FoundRank, view: View, looks: list[Look]) -> dict[int, float]:
    """Return when the failed requests in the bootstrap queue of a later pipeline stage failed, seconds before the end."""
    if rank.identity.pp == 0 or rank.identity.role != "prefill" or not looks:
        return {}
    last = looks[-1]
    if not last.failed:
        return {}
    recording = view.recording(rank).body
    if recording is None:
        return {}
    return {
        event.room: max(0.0, (last.mono_ns - event.mono_ns) / 1e9)
        for event in recording.events_told((EventKind.STATE,), last.failed)
        if event.a == KVPoll.FAILED
    }
