"""Looks at every rank several times over a while: what is on its way at one look has arrived at another."""

from __future__ import annotations

import time
from dataclasses import replace

from pdctl.probes.leaks.model import Look, RankWatch, look
from pdctl.protocol.metadata import Metadata
from pdctl.protocol.model import EventKind, KVPoll, Status
from pdctl.protocol.requests import Rooms
from pdctl.targets.client import Client
from pdctl.targets.find import Found, FoundRank

LOOKS = 5
"""Looks of a watch, spread evenly."""


def collect(found: Found, client: Client, *, watch_s: float, looks: int = LOOKS) -> list[RankWatch]:
    """Return what was seen of every rank over ``watch_s`` seconds, in ``found``'s order."""
    taken: dict[int, list[Look]] = {id(rank): [] for rank in found.ranks}
    silence: dict[int, str] = {}
    known: dict[frozenset[int], frozenset[int]] = {}
    started = time.monotonic()
    for number in range(looks):
        due = started + watch_s * number / max(1, looks - 1)
        client.pause(max(0.0, due - time.monotonic()))
        asked = [rank for rank in found.ranks if id(rank) not in silence]
        rooms = client.ask(asked, "rooms", Rooms)
        slots = client.ask(asked, "metadata", Metadata, {"sums": False})
        for rank, first, second in zip(asked, rooms, slots, strict=True):
            if first.body is None or second.body is None:
                silence[id(rank)] = first.reason or second.reason or rank.state
            else:
                taken[id(rank)].append(_shared(look(first.body, second.body), known))
    live = [rank for rank in found.ranks if id(rank) not in silence]
    statuses = {id(answer.rank): answer.body for answer in client.ask(live, "status", Status)}
    views = []
    for rank in found.ranks:
        status = statuses.get(id(rank))
        views.append(
            RankWatch(
                identity=rank.identity,
                state=rank.state,
                silence=silence.get(id(rank), ""),
                looks=tuple(taken[id(rank)]),
                idle=status is not None and status.call.inside == "idle",
                failed=_failed(rank, client, taken[id(rank)]),
            )
        )
    return views


def _shared(one: Look, known: dict[frozenset[int], frozenset[int]]) -> Look:
    """Return the look with a set of rooms that ranks which have the same share."""
    return replace(one, rooms=known.setdefault(one.rooms, one.rooms))


def _failed(rank: FoundRank, client: Client, looks: list[Look]) -> dict[int, float]:
    """Return when the failed requests in the bootstrap queue of a later pipeline stage failed, seconds before the end."""
    if rank.identity.pp == 0 or rank.identity.role != "prefill" or not looks:
        return {}
    last = looks[-1]
    if not last.failed:
        return {}
    recording = client.recording(rank).body
    if recording is None:
        return {}
    return {
        event.room: max(0.0, (last.mono_ns - event.mono_ns) / 1e9)
        for event in recording.events()
        if event.kind is EventKind.STATE and event.a == KVPoll.FAILED and event.room in last.failed
    }
