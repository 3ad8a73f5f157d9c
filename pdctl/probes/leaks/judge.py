"""Says what stayed without an owner over a whole watch. Pure.

What is on its way between two queues is in none of them for a moment, so one look proves nothing: only what was without
an owner at every look counts, and of slots only the same allocation. A rank whose loop did not turn is not judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pdctl.probes.leaks.model import (
    BOOTSTRAP,
    LeaksDocument,
    Leftover,
    Orphan,
    RankLeaks,
    RankWatch,
    SlotLeak,
    SpaceLeak,
)
from pdctl.probes.queues.formatting import rooms as listed
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import Identity
from pdctl.report.findings import Finding, finding
from pdctl.targets import nodeset
from pdctl.targets.servers import server_of, told_apart

Server = tuple[str, str, str]
SHOWN = 20
"""Rooms of a table that are named; the others are counted."""


def judge(views: Sequence[RankWatch], *, watch_s: float) -> LeaksDocument:
    """Return what these ranks hold without an owner."""
    ranks, slots, space, orphans, leftovers = [], [], [], [], []
    of_slots, of_space, of_orphans, of_leftovers = [], [], [], []
    problems = []
    owned = _owned(views)
    unjudged = [_unjudged(view) for view in views]
    computing = {
        view.identity.instance
        for view, why in zip(views, unjudged, strict=True)
        if view.computing or (why and view.turned)
    }
    apart = told_apart([view.identity for view in views], [view.identity.label for view in views])
    for view, why, server in zip(views, unjudged, apart, strict=True):
        if view.silence:
            problems.append(f"{view.identity.label}: {view.silence}")
        elif why and view.identity.instance not in computing:  # a long forward is no fault; its peers wait for it
            problems.append(f"{view.identity.label}: {why}")
        lost = [] if why else _slots(view)
        gone = [] if why else _space(view)
        mine, kept = ([], "") if why else _orphans(view, views)
        if kept:
            problems.append(f"{view.identity.label}: {kept}")
        left = [] if why else _leftovers(view, owned[view.identity.cluster])
        last = view.looks[-1].space if view.looks else None
        row = RankLeaks(
            rank=view.identity.label,
            judged=not why,
            why=why,
            looks=len(view.looks),
            slots=last.slots if last else -1,
            slots_free=last.slots_free if last else -1,
            slots_lost=len(lost),
            kv_lost=sum(leak.tokens for leak in gone),
            orphans=len(mine),
            leftovers=sum(each.count for each in left),
            service=view.identity.service,
            instance=view.identity.instance,
            server=server,
        )
        ranks.append(row)
        of_slots += [_slot_finding(lost, row.name, view)] if lost else []
        of_space += [_space_finding(leak, row.name, view.identity) for leak in gone]
        of_orphans += [_orphan_finding(orphan, row.name, view.identity) for orphan in mine]
        others = owned[view.identity.cluster]
        of_leftovers += [_leftover_finding(left, row.name, view.identity, watch_s, others)] if left and others else []
        slots += lost
        space += gone
        orphans += mine
        leftovers += left
    return LeaksDocument(
        watch_s=watch_s,
        ranks=tuple(ranks),
        slots=tuple(slots),
        space=tuple(space),
        orphans=tuple(orphans),
        leftovers=tuple(leftovers),
        findings=(*of_slots, *of_space, *of_orphans, *of_leftovers),
        partial=bool(problems),
        problems=tuple(problems),
    )


def _unjudged(view: RankWatch) -> str:
    """Return why nothing can be said of a rank, "" when something can."""
    if view.silence:
        return view.silence
    if len(view.looks) < 2:
        return "it was seen only once"
    ticks = [look.ticks for look in view.looks]
    if ticks[-1] - ticks[0] < 2 and not view.idle:
        if view.computing or view.turned:
            return "one turn took the whole watch: what is on its way can't be told from what is lost"
        return "its loop did not turn during the watch: what is on its way can't be told from what is lost"
    return ""


# ---- slots and space -------------------------------------------------------------------------------------------------


def _slots(view: RankWatch) -> list[SlotLeak]:
    """Return the slots that were the same allocation without an owner at every look."""
    same = set(view.looks[0].ownerless.items()).intersection(*(look.ownerless.items() for look in view.looks[1:]))
    rows = view.looks[-1].lost
    span = (view.looks[-1].mono_ns - view.looks[0].mono_ns) / 1e9
    i = view.identity
    return [
        SlotLeak(i.label, slot, max(rows[slot].held_s, span), max(0, rows[slot].found), i.service, i.instance)
        for slot in sorted(slot for slot, _ in same)
    ]


def _space(view: RankWatch) -> list[SpaceLeak]:
    """Return KV tokens that were missing at every look, on a rank that had no request at any."""
    lost = []
    for look in view.looks:
        space = look.space
        if look.requests or not space.countable or space.kv < 0 or space.kv_free < 0:
            return []
        lost.append(space.kv - space.kv_free - space.evictable - space.protected)
    least = min(lost)
    page = max(1, view.looks[-1].space.page_size)
    if least < page:
        return []
    return [
        SpaceLeak(view.identity.label, least, view.looks[-1].space.kv, view.identity.service, view.identity.instance)
    ]


# ---- requests of a later pipeline stage ------------------------------------------------------------------------------


def _orphans(view: RankWatch, views: Sequence[RankWatch]) -> tuple[list[Orphan], str]:
    """Return failed requests that the first stage had at no look, and why they can't be told where that is so."""
    i = view.identity
    if i.role != "prefill" or i.pp == 0:
        return [], ""
    failed = [look.failed for look in view.looks]
    stayed = set(failed[0]).intersection(*failed[1:])
    if not stayed:
        return [], ""
    first = [
        other
        for other in views
        if other.identity.instance == i.instance and (other.identity.dp, other.identity.pp) == (i.dp, 0)
    ]
    if not first or any(_unjudged(other) for other in first):
        names = nodeset.listed([other.identity.label for other in first if _unjudged(other)]) or "its first stage"
        return (
            [],
            f"{len(stayed)} failed requests wait in its bootstrap queue; {names} can't be asked whether it has them",
        )
    known = _every(look.rooms for other in first for look in other.looks)
    orphans = []
    for room in sorted(stayed - known):
        entry = failed[-1][room]
        age = entry.age_s if entry.age_s >= 0 else None
        orphans.append(Orphan(i.label, room, entry.rid, age, view.failed.get(room), i.service, i.instance))
    return orphans, ""


# ---- rooms in tables -------------------------------------------------------------------------------------------------


def _every(sets: Iterable[frozenset[int]]) -> set[int]:
    """Return all rooms of these sets; one that several looks share is taken once."""
    distinct = {id(each): each for each in sets}
    return set().union(*distinct.values())


@dataclass(frozen=True)
class _Owned:
    """Rooms that ranks of a cluster had at any look.

    elsewhere: who has those that are in tables of a server which has no such request. at: bootstrap servers that the requests
    of each server name.
    """

    rooms: set[int]
    elsewhere: dict[int, set[tuple[Server, str, str]]]
    at: dict[Server, set[str]]

    def of_others(self, room: int, server: Server) -> bool:
        """Return whether all requests with this room are surely of other pairs of servers: both sides name one address."""
        found = self.elsewhere.get(room, ())
        return bool(found) and all(
            address
            and one != server
            and address not in self.at[server]
            and any(other != role and there == address for _, other, there in found)
            for one, role, address in found
        )


def _elsewhere(servers: dict[Server, list[RankWatch]]) -> dict[int, set[tuple[Server, str, str]]]:
    """Return who has rooms that are in a table of a server which has no such request: server, role, bootstrap server."""
    asked: set[int] = set()
    for those in servers.values():
        tables = [rooms for view in those for rooms in view.looks[-1].tables.values()]
        asked |= set().union(*tables) - _every(look.rooms for view in those for look in view.looks)
    found: dict[int, set[tuple[Server, str, str]]] = defaultdict(set)
    for server, those in servers.items() if asked else ():
        for view in those:
            for look in view.looks:
                for address, rooms in look.named.items():
                    for room in rooms & asked:
                        found[room].add((server, view.identity.role, address))
    return found


def _owned(views: Sequence[RankWatch]) -> dict[str, _Owned | None]:
    """Return cluster → rooms that any rank had at any look, None where a rank was silent: they may be its."""
    clusters: dict[str, list[RankWatch]] = defaultdict(list)
    for view in views:
        clusters[view.identity.cluster].append(view)
    return {
        name: None if any(view.silence or not view.looks for view in members) else _owned_in(members)
        for name, members in clusters.items()
    }


def _owned_in(members: Sequence[RankWatch]) -> _Owned:
    servers: dict[Server, list[RankWatch]] = defaultdict(list)
    for view in members:
        servers[server_of(view.identity)].append(view)
    at = {
        server: {address for view in those for look in view.looks for address in look.named}
        for server, those in servers.items()
    }
    rooms = _every(look.rooms for view in members for look in view.looks)
    return _Owned(rooms, _elsewhere(servers), at)


def _leftovers(view: RankWatch, owned: _Owned | None) -> list[Leftover]:
    """Return the rooms of each table that nobody has, of those that stayed longer than the engine keeps them anyway.

    A room has an owner while any rank of the cluster has its request: decode tells prefill of a room before prefill has
    the request, and the other way round. Ranks of another pair of servers may have another request with the number. With a
    silent rank nothing can be said.
    """
    if owned is None:
        return []
    span = (view.looks[-1].mono_ns - view.looks[0].mono_ns) / 1e9
    found = []
    for table, now in view.looks[-1].tables.items():
        if view.looks[-1].lingers.get(table, 0.0) > span:
            continue
        server = server_of(view.identity)
        left = {room for room in set(now) if room not in owned.rooms or owned.of_others(room, server)}
        if not left:
            continue
        # What came during the watch is new; it counts once it has stayed for more than one look.
        left &= set(view.looks[-2].tables.get(table, ()))
        if left:
            new = len(left - set(view.looks[0].tables.get(table, ())))
            named = tuple(sorted(left)[:SHOWN])
            i = view.identity
            found.append(Leftover(i.label, table, len(left), new, named, i.service, i.instance))
    return found


# ---- findings --------------------------------------------------------------------------------------------------------


def _slot_finding(lost: Sequence[SlotLeak], name: str, view: RankWatch) -> Finding:
    space = view.looks[-1].space
    turns = view.looks[-1].ticks - view.looks[0].ticks
    many = "slots" if len(lost) > 1 else "slot"
    named = ", ".join(str(leak.slot) for leak in lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
    return finding(
        "PD150",
        f"{name} has lost {many} {named}: taken {seconds(max(leak.held_s for leak in lost))} ago, and"
        f" no request has {'them' if len(lost) > 1 else 'it'}; {space.slots_free} of {space.slots} are free",
        rooms=tuple(leak.room for leak in lost[:SHOWN] if leak.room),
        ranks=(view.identity.label,),
        evidence=(
            *(f"slot {leak.slot}: room {leak.room or 'none'} is written in it" for leak in lost[:5]),
            f"the same at {len(view.looks)} looks, during which its loop turned {turns} times",
        ),
        units=(view.identity.unit,),
    )


def _space_finding(leak: SpaceLeak, name: str, who: Identity) -> Finding:
    return finding(
        "PD151",
        f"{name} has no request, and {leak.tokens} of its {leak.pool} KV tokens are neither free nor cached",
        ranks=(who.label,),
        evidence=("no request and the same space at every look",),
        units=(who.unit,),
    )


def _orphan_finding(orphan: Orphan, name: str, who: Identity) -> Finding:
    failed = f", failed there {seconds(orphan.failed_s)} ago" if orphan.failed_s is not None else ", Failed there"
    age = f", {seconds(orphan.age_s)} old" if orphan.age_s is not None else ""
    return finding(
        "PD152",
        f"room {orphan.room} (rid {orphan.rid}) is in {BOOTSTRAP} of {name}{failed}{age}; the first stage has it no"
        " more, so it passes it on no more, and this stage looks only at what is passed on",
        rooms=(orphan.room,),
        ranks=(who.label,),
        evidence=("Failed in the queue at every look", "in no queue of the first stage at any look"),
        units=(who.unit,),
    )


def _leftover_finding(tables: Sequence[Leftover], name: str, who: Identity, watch_s: float, owned: _Owned) -> Finding:
    most = max(tables, key=lambda left: left.count)
    named = listed(most.rooms) if most.count <= SHOWN else f"{most.count} rooms"
    new = max(left.new for left in tables)
    came = f", {new} of them new in {seconds(watch_s)}" if new else ""
    others = sorted({room for left in tables for room in left.rooms if room in owned.rooms})
    whose = "no rank of its pair of servers" if others else "no rank"
    also = f"; another pair has {listed(others)}" if others else ""
    return finding(
        "PD153",
        f"{name} keeps {named} in {', '.join(left.table for left in tables)}{came}; {whose} has a request for them{also}",
        rooms=tuple(dict.fromkeys(room for left in tables for room in left.rooms)),
        ranks=(who.label,),
        evidence=(
            *(f"{left.count} in {left.table} at the last two looks" for left in tables),
            "in no queue of any rank of its pair of servers at any look"
            if others
            else "in no queue of any rank at any look",
        ),
        units=(who.unit,),
    )
