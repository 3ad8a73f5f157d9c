"""Judges where every room is taken to be: one look (or two) in, rows with four beliefs and findings out. Pure.

A difference is a finding when what differs has been as it is for ``grace_s``, or when two looks at least that far apart
show the same; with two looks it must be in both. Younger ones are counted and may be skew: a room that arrived a moment ago
is not registered yet on one side and known already on the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from pdctl.probes.queues.formatting import names
from pdctl.probes.routing import GRACE_S
from pdctl.probes.routing.facts import FOLLOW, Decoding, RoomFacts, asks, balance, gather
from pdctl.probes.routing.lookups import suspects_of_lookups
from pdctl.probes.routing.model import (
    Asker,
    Holder,
    Look,
    RoomRow,
    RoutingDocument,
    ServerRow,
    UnknownRoom,
    waits,
)
from pdctl.probes.routing.pairs import pairs, together, units_of
from pdctl.probes.routing.peers import suspects_of_peers
from pdctl.probes.routing.sides import sides_of, suspects_of_sides
from pdctl.probes.routing.suspects import Suspect, suspects_of
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import EventKind, poll_name
from pdctl.protocol.requests import RoomEntry
from pdctl.report.findings import Finding, finding

NEAREST = 3

_VERDICTS = {
    "PD106": "SPLIT",
    "PD120": "CONFLICT",
    "PD121": "REFUSED",
    "PD122": "UNREGISTERED",
    "PD123": "UNREGISTERED",
    "PD124": "UNREGISTERED",
    "PD125": "CONFLICT",
    "PD126": "EXPIRES",
    "PD127": "DUPLICATE",
    "PD137": "SHARED",
    "PD144": "REPLACED",
    "PD145": "UNHEARD",
}


def judge(look: Look, before: Look | None = None, *, grace_s: float = GRACE_S) -> RoutingDocument:
    """Return the document of a look, with a row for each pair of servers that has a room.

    before: an earlier look, to tell what lasts.
    """
    rooms = gather(look)
    suspects = _suspects(look, rooms)
    if look.named:
        rooms = [facts for facts in rooms if facts.room in look.named]
        suspects = [one for one in suspects if not one.rooms or not set(one.rooms).isdisjoint(look.named)]
    sure = _sure(suspects, look, before, grace_s)
    surely, perhaps = _by_room(sure), _by_room([s for s in suspects if s not in sure])
    rows = []
    for facts in rooms:
        parts = [facts] if facts.plain else pairs(facts)
        for part in parts:
            several = len(parts) > 1
            doubted = bool(_of(part, perhaps, several=several))
            rows.append(_row(part, _of(part, surely, several=several), look, doubted))
    unknown = _unknown(look, rooms)
    problems = _problems(look)
    return RoutingDocument(
        rooms=tuple(rows),
        sides=sides_of(look),
        servers=tuple(_servers(look)),
        findings=tuple(_findings(sure)),
        unknown=unknown,
        young=len(suspects) - len(sure),
        partial=bool(problems or unknown),
        problems=tuple(problems),
        notes=tuple(_notes(look)),
    )


def pause_s(look: Look, grace_s: float) -> float | None:
    """Return how long to wait before a second look can settle what this one leaves open, None where nothing is."""
    suspects = [s for s in _suspects(look, gather(look)) if s.age_s != float("inf")]
    if not suspects:
        return None
    young = any(s.age_s is None or s.age_s < grace_s for s in suspects)
    return grace_s if young else min(0.5, grace_s)


def _suspects(look: Look, rooms: Sequence[RoomFacts]) -> list[Suspect]:
    named = set(look.named)
    found = [suspect for facts in rooms for suspect in suspects_of(facts, named=facts.room in named)]
    return [*suspects_of_lookups(look), *suspects_of_peers(look), *suspects_of_sides(look), *found]


def _sure(suspects: Sequence[Suspect], look: Look, before: Look | None, grace_s: float) -> list[Suspect]:
    if before is None:
        return [s for s in suspects if s.age_s is not None and s.age_s >= grace_s]
    seen = {s.key for s in _suspects(before, gather(before))}
    apart_s = look.taken_s - before.taken_s
    lasts = [s for s in suspects if s.key in seen]
    sure = [s for s in lasts if apart_s >= grace_s or (s.age_s is not None and s.age_s >= grace_s)]
    twice = f"the same at two looks, {seconds(apart_s)} apart"
    return [replace(s, evidence=(*s.evidence, twice)) if s.age_s is None else s for s in sure]


def _by_room(suspects: Iterable[Suspect]) -> dict[tuple[str, int], list[Suspect]]:
    found: dict[tuple[str, int], list[Suspect]] = defaultdict(list)
    for suspect in suspects:
        for room in suspect.rooms:
            found[suspect.cluster, room].append(suspect)
    return found


def _of(facts: RoomFacts, by_room: Mapping[tuple[str, int], Sequence[Suspect]], *, several: bool) -> Sequence[Suspect]:
    """Return what is wrong with the room on these servers. several: other pairs of servers have it, too."""
    found = by_room.get((facts.cluster, facts.room), ())
    if not several:
        return found
    units = units_of(facts)
    return [one for one in found if not (whose := one.whose or one.units) or units.intersection(whose)]


def _findings(suspects: Sequence[Suspect]) -> list[Finding]:
    """Return one finding for all suspects of a code and bundle: the first one's words, and how many more there are."""
    bundles: dict[tuple[str, str, str], list[Suspect]] = {}
    for suspect in suspects:
        bundles.setdefault((suspect.code, suspect.cluster, suspect.bundle), []).append(suspect)
    found = []
    for (code, _, bundle), members in bundles.items():
        rooms = tuple(dict.fromkeys(room for suspect in members for room in suspect.rooms))
        about = next((suspect for suspect in members if suspect.rooms), members[0])
        summary = members[0].summary
        if about is not members[0]:  # settings, and the rooms that they hold up
            summary = f"{summary} {about.summary}"
        more = len(rooms) - len(about.rooms)
        if more > 0:
            summary = f"{summary} So it is with {more} more room{'s'[: more != 1]}."
        if not rooms and len(members) > 1:
            summary = f"{summary} So it is with {len(members) - 1} more rank{'s'[: len(members) != 2]}."
        ranks = tuple(dict.fromkeys(rank for suspect in members for rank in suspect.ranks))
        evidence = tuple(dict.fromkeys((*members[0].evidence, *about.evidence)))
        found.append(
            finding(
                code,
                summary,
                group=bundle,
                rooms=rooms,
                ranks=ranks,
                evidence=evidence,
                next_step=next((suspect.next_step for suspect in members if suspect.next_step), ""),
                units=(unit for suspect in members for unit in suspect.units),
            )
        )
    return found


# ---- rows ------------------------------------------------------------------------------------------------------------


def _row(facts: RoomFacts, sure: Sequence[Suspect], look: Look, doubted: bool) -> RoomRow:
    formula, note = _formula(facts)
    bootstrap_note = ""
    if facts.registered is None:
        why = next((s.silence or s.asked_off for s in facts.servers if s.silence or s.asked_off), "no server is known")
        bootstrap_note = "not registered" if facts.answered else f"missing: {why}"
    if facts.plain and not sure and not doubted:
        verdict, text = "AGREE", f"prefill dp {facts.decode[0].dp}"
    else:
        verdict, text = _verdict(facts, sure, look, doubted)
    seen = facts.registration if facts.events else None
    if facts.plain:
        rids: tuple[str, ...] = (facts.prefill[0][1].rid,)
    else:
        entries = [entry for _, entry in facts.prefill] + [entry for d in facts.decode for entry in d.entries]
        rids = tuple(dict.fromkeys([entry.rid for entry in entries]))
    return RoomRow(
        room=facts.room,
        rids=rids,
        verdict=verdict,
        text=text,
        formula=formula,
        formula_note=note,
        implied=facts.implied,
        bootstrap=facts.registered,
        bootstrap_note=bootstrap_note,
        address=facts.address,
        registered_s=None if seen is None else seen[0],
        prefill=tuple([Holder(ranks.labels, ranks.dp, e.queue, _state(e), _age(e)) for ranks, e in facts.prefill]),
        decode=tuple([_asker(facts, d) for d in facts.decode]),
        cluster=facts.cluster,
    )


_STATES = {value: poll_name(value) for value in range(256)}


def _state(entry: RoomEntry) -> str:
    return _STATES.get(entry.state, "-")


def _age(entry: RoomEntry) -> float | None:
    return None if entry.age_s < 0 else entry.age_s


def _asker(facts: RoomFacts, decoding: Decoding) -> Asker:
    ranks, first = decoding.ranks, decoding.entries[0]
    asked = facts.event(EventKind.DP_QUERY, ranks) if facts.events else None
    return Asker(
        ranks=ranks.labels,
        places=ranks.places,
        dp=decoding.dp,
        queues=decoding.queues,
        state=_state(first),
        age_s=_age(first),
        pinned=first.pinned >= 0,
        asked_s=None if asked is None else asked[0].age_s(asked[1].mono_ns),
    )


def _all_pinned(facts: RoomFacts) -> bool:
    return all(entry.pinned >= 0 for d in facts.decode for entry in d.entries)


def _formula(facts: RoomFacts) -> tuple[int | None, str]:
    if facts.decode and facts.decode[0].entries[0].pinned >= 0 and _all_pinned(facts):
        return None, "does not apply: the request names its prefill dp rank"
    if facts.size is None or facts.follows is None:
        return None, "unknown: nobody says how many dp ranks prefill has"
    if facts.size <= 1:
        return 0, "one dp rank"
    if not facts.follows:
        views = [ranks.first for ranks, _ in facts.prefill]
        how = next((balance(view) for view in views if balance(view) not in ("", FOLLOW)), "not by room")
        return None, f"does not apply: load balancing is {how}"
    if facts.forced:
        return None, "does not apply: decode asks for every room (FORCE_QUERY)"
    return facts.implied, ""


def _verdict(facts: RoomFacts, sure: Sequence[Suspect], look: Look, doubted: bool) -> tuple[str, str]:
    if sure:
        return _VERDICTS[sure[0].code], sure[0].summary
    if not facts.prefill and not facts.decode:
        return "GONE", _last_seen(facts)
    if facts.decode and not any(waits(entry) or entry.dp >= 0 for d in facts.decode for entry in d.entries):
        queues = dict.fromkeys(entry.queue for d in facts.decode for entry in d.entries)
        return "DONE", f"past routing: {', '.join(queues)} on decode"
    if doubted:
        return "WAITS", "its beliefs differ, not for long enough to tell that from skew"
    for role, have in (("prefill", facts.prefill), ("decode", facts.decode)):
        if not have:
            if (facts.cluster, role) not in look.answering:
                return "UNKNOWN", f"no {role} rank answers"
            some = f", and some {role} ranks do not answer" if (facts.cluster, role) in look.silent else ""
            return "UNKNOWN" if some else "WAITS", f"no {role} rank has it{some}"
    left = [d for d in facts.decode if d.dp is None]
    if left:
        places = [place for d in left for place in d.ranks.places]
        where = names(places)
        need = any(asks(d.view, entry) for d in left for entry in d.entries)
        if need and not facts.answered:
            return (
                "UNKNOWN",
                f"{where} {'asks' if len(places) == 1 else 'ask'} the bootstrap server, which is not heard from here",
            )
        if need and facts.registered is not None:
            return "WAITS", f"registered, and {where} {'has' if len(places) == 1 else 'have'} not been told yet"
        return "WAITS", f"{where} {'does' if len(places) == 1 else 'do'} not know yet where it is"
    if len(facts.prefill_dps) > 1 and len(together(facts.prefill)) > 1:
        return "UNKNOWN", "several prefill requests have this number, and which of them decode has is not told"
    if set(facts.decode_dps) <= set(facts.prefill_dps):
        return "AGREE", f"prefill dp {names(map(str, facts.decode_dps))}"
    return "WAITS", "prefill has let it go, or has it elsewhere"


def _last_seen(facts: RoomFacts) -> str:
    states = [(view, event) for view, event in facts.events if event.kind == EventKind.STATE]
    if not states:
        return "no rank has it now"
    view, event = states[-1]
    ago = view.age_s(event.mono_ns)
    when = f", {seconds(ago)} ago" if ago is not None else ""
    return f"no rank has it now; last seen {poll_name(event.a)} on {view.identity.label}{when}"


# ---- the rest of the document ----------------------------------------------------------------------------------------


def _servers(look: Look) -> list[ServerRow]:
    return [
        ServerRow(
            address=s.address,
            silence=s.silence or s.asked_off,
            info=dict(s.info or {}),
            info_off=s.info_off,
            rooms_asked=len(s.asked),
            rooms_registered=len(s.dp_ranks),
            way=s.way,
        )
        for s in look.servers.values()
    ]


def _unknown(look: Look, rooms: Sequence[RoomFacts]) -> tuple[UnknownRoom, ...]:
    if not look.named:
        return ()
    known = {facts.room for facts in rooms}
    there = {n for view in look.views if view.rooms is not None for n in view.rooms.rooms.column("room") if n}
    return tuple(UnknownRoom(room, _nearest(room, there)) for room in look.named if room not in known)


def _nearest(room: int, there: set[int]) -> tuple[int, ...]:
    """Return rooms that were perhaps meant: those written alike, then the nearest numbers."""
    alike = [int(near) for near in get_close_matches(str(room), sorted(map(str, there)), NEAREST, 0.5)]
    return tuple(dict.fromkeys([*alike, *sorted(there, key=lambda one: abs(one - room))]))[:NEAREST]


def _problems(look: Look) -> list[str]:
    problems = [] if look.views else ["no rank here is of a prefill or a decode server"]
    problems += [f"{view.identity.label}: {view.silence}" for view in look.views if view.silence]
    problems += [f"{view.identity.label}: {problem}" for view in look.views for problem in view.problems]
    for server in look.servers.values():
        unregistered = (server.info or {}).get("dp_size") == "1"  # nobody has to know where a room is
        said = server.silence or ("" if unregistered else server.asked_off)
        if said:
            problems.append(f"bootstrap server {server.address}: {said}")
        if server.info_off:
            problems.append(f"bootstrap server {server.address}: {server.info_off}")
    return problems


def _notes(look: Look) -> list[str]:
    """Return what is known less well than it could be, though nothing is missing from the beliefs."""
    offs = Counter(view.events_off for view in look.views if view.events_off and not view.silence)
    return [f"{count} rank{'s'[: count != 1]}: no times of registrations: {why}" for why, count in offs.items()]
