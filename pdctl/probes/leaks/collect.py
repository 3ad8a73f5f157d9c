"""Looks at every rank several times over a while: what is on its way at one look has arrived at another."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
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
    failed = _failed(view.ranks, now, taken)
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
                failed=failed.get(id(rank), {}),
            )
        )
    return watches


def _shared(one: Look, known: dict[frozenset[int], frozenset[int]]) -> Look:
    """Return the look with sets of rooms that ranks which have the same share."""
    named = {address: known.setdefault(rooms, rooms) for address, rooms in one.named.items()}
    return replace(one, rooms=known.setdefault(one.rooms, one.rooms), named=named)


def _failed(ranks: Sequence[FoundRank], view: View, taken: Mapping[int, list[Look]]) -> dict[int, dict[int, float]]:
    """Return when failed requests in the bootstrap queue of later pipeline stages failed, by the id of the rank.

    In seconds before the end of the watch.
    """
    last = {
        id(rank): taken[id(rank)][-1]
        for rank in ranks
        if rank.identity.pp and rank.identity.role == "prefill" and taken[id(rank)] and taken[id(rank)][-1].failed
    }
    asked = [rank for rank in ranks if id(rank) in last]
    if not asked:
        return {}
    from pdctl.recording.excerpt import MAX_ROOMS, Wanted  # loads numpy

    rooms = {key: sorted(look.failed) for key, look in last.items()}
    far = [rank for rank in asked if view.is_far(rank) and len(rooms[id(rank)]) <= MAX_ROOMS]
    answers = view.excerpts([(rank, Wanted(newest=1, rooms=rooms[id(rank)])) for rank in far])
    recordings = {id(answer.rank): answer.body.recording for answer in answers if answer.body is not None}
    found = {}
    for rank in asked:
        recording = recordings.get(id(rank)) or view.recording(rank).body
        events = recording.events_told((EventKind.STATE,), rooms[id(rank)]) if recording is not None else ()
        end = last[id(rank)].mono_ns
        found[id(rank)] = {e.room: max(0.0, (end - e.mono_ns) / 1e9) for e in events if e.a == KVPoll.FAILED}
    return found
