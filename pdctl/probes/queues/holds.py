"""What the metadata gate holds now: the fix at work, or metadata that does not come. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pdctl.probes.queues import formatting
from pdctl.probes.queues.explain import where_now
from pdctl.probes.queues.gate import LONG_S, Held
from pdctl.probes.queues.groups import Group
from pdctl.probes.queues.model import RankView
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import EventKind, Identity
from pdctl.report.findings import Finding, finding
from pdctl.targets.servers import server_of


def held_findings(group: Group, held: dict[str, list[Held]], views: Sequence[RankView]) -> list[Finding]:
    """Return what is held now: PD148 for requests that were held for LONG_S on any rank, PD102 for the others.

    views: every rank that was looked at. Prefill's recordings tell of its writes.
    """
    current = [h for hs in held.values() for h in hs if h.now]
    long = {h.room for h in current if h.seconds >= LONG_S}
    found = []
    for code, those in (
        ("PD148", [h for h in current if h.room in long]),
        ("PD102", [h for h in current if h.room not in long]),
    ):
        if not those:
            continue
        rooms = tuple(sorted({h.room for h in those}))
        lines = tuple(formatting.held(h) for h in those)
        words, evidence = "; ".join(lines[:3]), lines
        if code == "PD148":
            words = _for_long(group, those)
            evidence = (*lines, *_writes(set(rooms), group.known[0].identity, views))
        found.append(
            finding(
                code,
                words,
                group=group.title,
                rooms=rooms,
                ranks=tuple({h.rank: 1 for h in those}),
                evidence=evidence,
                units=(group.known[0].identity.unit,),
            )
        )
    return found


def _for_long(group: Group, those: Sequence[Held]) -> str:
    oldest = max(those, key=lambda h: h.seconds)
    ranks = [h.rank for h in those if h.room == oldest.room]
    if len(ranks) == group.info.size:
        where = f"on every rank ({formatting.names(ranks)})" if len(ranks) > 1 else f"on {ranks[0]}"
    else:
        where = f"on {formatting.names(ranks)} only"
    rooms = {h.room for h in those}
    more = f" So it is with {len(rooms) - 1} more." if len(rooms) > 1 else ""
    return (
        f"room {oldest.room} has been held by the gate {where} for {seconds(oldest.seconds)} ({oldest.rounds} rounds):"
        f" its metadata has not come there.{more}"
    )


def _writes(rooms: Collection[int], one: Identity, views: Sequence[RankView]) -> Iterator[str]:
    """Yield what prefill's recordings say of its metadata writes for these rooms. one: a decode rank that holds them."""
    prefill = [view for view in views if (view.identity.role, view.identity.cluster) == ("prefill", one.cluster)]
    shared = _of_others(rooms, one, views)
    recorded = [view for view in prefill if view.recording is not None]
    none = True
    for view in recorded:
        assert view.recording is not None
        for event in view.recording.events_of(rooms, (EventKind.META_SENT,))[:_MOST]:
            none = False
            to = f"decode tp{event.a}, slot {event.slot}: it returned {event.b}"
            whose = " (here, or to another decode server that has this room)" if event.room in shared else ""
            yield f"{view.identity.label} wrote room {event.room} to {to}{whose}"
    if none and recorded and len(recorded) == len(prefill):
        yield "no recording of a prefill rank has a write of it"


def _of_others(rooms: Collection[int], one: Identity, views: Sequence[RankView]) -> set[int]:
    """Return the rooms that ranks of another decode server have or had: a write does not tell which of them it was for."""
    found: set[int] = set()
    for view in views:
        other = view.identity
        if (other.role, other.cluster) != ("decode", one.cluster) or server_of(other) == server_of(one):
            continue
        found.update(room for room in rooms if where_now(view, room))
        if view.recording is not None:
            found.update(event.room for event in view.recording.events_of(rooms, (EventKind.ENQUEUE,)))
    return found


_MOST = 20
