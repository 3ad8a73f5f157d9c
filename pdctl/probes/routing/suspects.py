"""What contradicts what, room by room. Pure.

A suspect is a difference in one look; whether it is a finding or only skew, :mod:`pdctl.probes.routing.judge` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pdctl.probes.queues.formatting import names
from pdctl.probes.routing.facts import (
    CONFLICT,
    CONFLICTING,
    NONE,
    Decoding,
    Ranks,
    RoomFacts,
    asks,
    cleanup_s,
    forced,
    is_set,
    registers,
    way_out,
)
from pdctl.probes.routing.model import waits
from pdctl.probes.routing.pairs import Request, pairs, together, units_of
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import EventKind
from pdctl.protocol.requests import FORCE_QUERY, NOTES_CONFLICTS

LAST_QUARTER = 0.75


@dataclass(frozen=True)
class Suspect:
    """A difference. bundle: suspects of one code and bundle are one finding. age_s: for how long what differs has been as it
    is, at least; None where that can't be told. detail: what else tells two suspects of a room apart. passing: its rooms come
    and go while it lasts. units, next_step: as in :class:`~pdctl.report.findings.Finding`, "" for the catalogue's. whose: units
    that have these rooms, where units is empty.
    """

    code: str
    summary: str
    bundle: str
    rooms: tuple[int, ...] = ()
    ranks: tuple[str, ...] = ()
    evidence: tuple[str, ...] = field(default=(), compare=False)
    versions: str = ""
    age_s: float | None = None
    cluster: str = ""
    detail: str = ""
    passing: bool = False
    units: tuple[str, ...] = ()
    next_step: str = field(default="", compare=False)
    whose: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for the same difference in two looks."""
        return (self.code, self.cluster, self.bundle, () if self.passing else self.rooms, self.detail)


def suspects_of(facts: RoomFacts, *, named: bool) -> Iterator[Suspect]:
    """Yield what is wrong with one room, as it seems in this look. named: the user asked for it."""
    if facts.plain:
        return
    yield from _duplicates(facts)
    for pair in pairs(facts):
        whose = units_of(pair)
        yield from (replace(suspect, whose=whose) for suspect in _suspects_of(pair, named=named))


def _suspects_of(pair: RoomFacts, *, named: bool) -> Iterator[Suspect]:
    split = list(_split(pair))
    yield from split
    if not split:
        yield from _elsewhere(pair)
        yield from _conflict(pair)
        yield from _unregistered(pair)
    yield from _expiring(pair)
    yield from _refused(pair, named=named)


def _least(ages: Iterable[float | None]) -> float | None:
    known = list(ages)
    return None if not known or any(age is None or age < 0 for age in known) else min(a for a in known if a is not None)


def _ages(facts: RoomFacts, decodings: Iterable[Decoding]) -> float | None:
    ages = [entry.age_s for _, entry in facts.holders]
    return _least([*ages, *(entry.age_s for decoding in decodings for entry in decoding.entries)])


def _services(ranks: Iterable[Ranks]) -> str:
    return ", ".join(dict.fromkeys(some.first.identity.service for some in ranks))


def _dps(ranks: Iterable[int]) -> str:
    return f"prefill dp {names(map(str, ranks))}"


def _labels(ranks: Iterable[Ranks]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(label for some in ranks for label in some.labels))


def _of(decodings: Iterable[Decoding]) -> list[Ranks]:
    return [decoding.ranks for decoding in decodings]


def _places(decodings: Iterable[Decoding]) -> list[str]:
    return [place for decoding in decodings for place in decoding.ranks.places]


def beliefs(facts: RoomFacts) -> tuple[str, ...]:
    """Return the four beliefs as lines of evidence."""
    lines = []
    if facts.holders:
        held = max(entry.age_s for _, entry in facts.holders)
        waits = f" for {seconds(held)}" if held >= 0 else ""
        at = _dps(sorted({ranks.dp for ranks, _ in facts.holders}))
        lines.append(f"dispatched to {at}, which has it in prefill.bootstrap{waits}")
    if facts.size is not None and facts.size > 1:
        lines.append(f"implied by room % dp_size: prefill dp {facts.room} % {facts.size} = {facts.implied}")
    lines.append(registered_words(facts))
    for decoding in facts.decode:
        what = "waits to be told where it is" if decoding.dp is None else f"expects it from prefill dp {decoding.dp}"
        lines += [f"{label} {what} ({', '.join(decoding.queues)})" for label in decoding.ranks.labels]
    return tuple(lines)


def registered_words(facts: RoomFacts) -> str:
    """Return what is registered for the room and since when, and whose word that is."""
    seen = facts.registration
    since = f", {seconds(seen[0])} ago" if seen is not None and seen[0] is not None else ""
    if facts.registered is not None:
        return f"registered as prefill dp {facts.registered}{since}"
    if facts.answered:
        gone = f", though prefill sent it as dp {seen[1]}{since}" if seen is not None else ""
        return f"registered: none{gone}"
    why = next((s.silence or s.asked_off for s in facts.servers if s.silence or s.asked_off), "no server is known")
    sent = f"; prefill sent it as dp {seen[1]}{since}" if seen is not None else ""
    return f"registered: the bootstrap server was not heard ({why}){sent}"


# ---- one kind each ---------------------------------------------------------------------------------------------------


def _conflict(facts: RoomFacts) -> Iterator[Suspect]:
    """The decode ranks expect the room from a dp rank that does not have it."""
    wrong = [
        d
        for d in facts.decode
        if d.dp is not None
        and d.dp not in facts.prefill_dps
        and d.dp != facts.registered
        and any(map(waits, d.entries))
    ]
    if not facts.holders or not wrong:
        return
    at = sorted({ranks.dp for ranks, _ in facts.holders})
    expected = sorted({d.dp for d in wrong if d.dp is not None})
    held = [ranks for ranks, _ in facts.holders]
    registered = "none" if facts.registered is None and facts.answered else facts.registered
    said = f", registered {registered}" if registered is not None else ""
    implied = f", implied {facts.implied}" if facts.size is not None and facts.size > 1 else ""
    one = wrong[0]
    by = (
        "the request names it"
        if one.entries[0].pinned >= 0
        else "by the formula"
        if not _asks(one)
        else "it was told so"
    )
    out = way_out(held[0].first)
    notes: tuple[str, ...] = ()
    if any(ranks.first.seams.get(NOTES_CONFLICTS) is False for ranks in held):
        notes = ("this prefill's code does not notice that the room was routed against room % dp_size",)
    yield Suspect(
        "PD120",
        f"Room {facts.room}: dispatched {names(map(str, at))}{implied}{said}, receiver expects {names(map(str, expected))}"
        f" ({by}). Prefill dp {names(map(str, at))} waits to be asked, and {names(_places(wrong))} "
        f"{'waits' if len(_places(wrong)) == 1 else 'wait'} for prefill dp {names(map(str, expected))}.",
        f"{_services(held)} > {_services(_of(wrong))}",
        (facts.room,),
        _labels([*held, *_of(wrong)]),
        (*beliefs(facts), *notes),
        age_s=_ages(facts, wrong),
        cluster=facts.cluster,
        detail=f"{at}{expected}",
        next_step=f"Abort the room: it can't be saved. {out}",
    )


def _asks(decoding: Decoding) -> bool:
    return any(asks(decoding.view, entry) for entry in decoding.entries)


def _elsewhere(facts: RoomFacts) -> Iterator[Suspect]:
    """The registration names another dp rank than the one that holds the room, and decode goes by it."""
    there = facts.registered
    if there is None or not facts.holders or there in facts.prefill_dps or not any(_asks(d) for d in facts.decode):
        return
    at = sorted({ranks.dp for ranks, _ in facts.holders})
    asking = [d for d in facts.decode if _asks(d)]
    held = [ranks for ranks, _ in facts.holders]
    yield Suspect(
        "PD125",
        f"Room {facts.room} is held by {_dps(at)} and registered as dp {there}: "
        f"{names(_places(asking))} {'goes' if len(_places(asking)) == 1 else 'go'} to the wrong one.",
        f"{_services(held)} > {_services(_of(asking))}",
        (facts.room,),
        _labels([*held, *_of(asking)]),
        beliefs(facts),
        age_s=_ages(facts, asking),
        cluster=facts.cluster,
        detail=f"{at}{there}",
    )


def _unregistered(facts: RoomFacts) -> Iterator[Suspect]:
    """Decode ranks ask for a room that prefill holds and nobody has registered."""
    pending = [d for d in facts.decode if d.pending and _asks(d)]
    if not facts.holders or not pending or facts.registered is not None:
        return
    held = [ranks for ranks, _ in facts.holders]
    kinds = {registers(ranks.first) for ranks in held}
    kind = kinds.pop() if len(kinds) == 1 else ""
    at = sorted({ranks.dp for ranks in held})
    agrees = at == [facts.implied]
    never = (kind == NONE or (kind == CONFLICTING and agrees)) and facts.registration is None
    if not facts.answered and not never:
        return  # the only one who could tell is silent
    code, why = "PD122", "Nobody has registered it"
    seen = facts.registration
    if seen is not None:
        limit = max(cleanup_s(ranks.first) for ranks in held)
        code, why = "PD122", f"Prefill registered it as dp {seen[1]}, and the bootstrap server has it no longer"
        if seen[0] is not None and seen[0] > limit:
            why = f"Its registration has expired: it is {seconds(seen[0])} old, and they are dropped after {limit:g} s"
    elif kind == CONFLICTING and agrees:
        code = "PD124"
        why = f"It is never registered: its route does not conflict, and prefill registers {CONFLICTING}"
    elif kind == NONE and any(forced(d.view) for d in pending):
        code = "PD123"
        heed = "does not heed it" if any(is_set(ranks.first) for ranks in held) else "does not have it"
        why = f"{FORCE_QUERY} is set on decode, and prefill {heed}: it registers no room"
    yield Suspect(
        code,
        f"Room {facts.room} is held by {_dps(at)} and pending on {names(_places(pending))}, which "
        f"{'asks' if len(_places(pending)) == 1 else 'ask'} the bootstrap server for it. {why}.",
        f"{_services(held)} > {_services(_of(pending))}",
        (facts.room,),
        _labels([*held, *_of(pending)]),
        beliefs(facts),
        age_s=_ages(facts, pending),
        cluster=facts.cluster,
        detail=f"{at}",
    )


def _split(facts: RoomFacts) -> Iterator[Suspect]:
    """One rank of a group has enqueued the room, another is still pending and has not."""
    groups: dict[tuple[object, ...], list[Decoding]] = {}
    for d in facts.decode:
        i = d.view.identity
        groups.setdefault((i.service, i.instance, i.dp, i.pp), []).append(d)
    for members in groups.values():
        waiting = [d for d in members if d.queues == ("decode.pending",)]
        ahead = [d for d in members if d.enqueued and "decode.pending" not in d.queues]
        if not waiting or not ahead:
            continue
        told = [_told_s(facts, d.ranks) for d in ahead]
        seen = facts.registration
        when = f", registered {seconds(seen[0])} ago" if seen is not None and seen[0] is not None else ""
        yield Suspect(
            "PD106",
            f"Room {facts.room} is pending on {names(_places(waiting))}, and in the handshake queue on "
            f"{names(_places(ahead))}, which {'was' if len(_places(ahead)) == 1 else 'were'} told dp {ahead[0].dp}{when}.",
            _services(_of(members)),
            (facts.room,),
            _labels(_of(members)),
            beliefs(facts),
            age_s=_least([_ages(facts, members), *told]),
            cluster=facts.cluster,
            detail=f"{_places(waiting)}",
        )


def _told_s(facts: RoomFacts, ranks: Ranks) -> float | None:
    """Return how long ago these ranks were told where the room is, None unknown."""
    found = facts.event(EventKind.DP_ANSWER, ranks)
    return None if found is None or found[1].a < 0 else found[0].age_s(found[1].mono_ns)


def _expiring(facts: RoomFacts) -> Iterator[Suspect]:
    """A registration that no decode rank has used yet is about to be dropped."""
    seen = facts.registration
    if facts.registered is None or seen is None or seen[0] is None or not facts.holders or facts.decode_dps:
        return
    limit = max(cleanup_s(ranks.first) for ranks, _ in facts.holders)
    if seen[0] < LAST_QUARTER * limit or (facts.decode and not any(_asks(d) for d in facts.decode)):
        return
    left = f"in {seconds(limit - seen[0])}" if seen[0] < limit else "any moment"
    held = [ranks for ranks, _ in facts.holders]
    yield Suspect(
        "PD126",
        f"Room {facts.room}: its registration is {seconds(seen[0])} old and is dropped {left} (after {limit:g} s), and no "
        f"decode rank has been told of it yet.",
        _services(held),
        (facts.room,),
        _labels(held),
        beliefs(facts),
        age_s=_ages(facts, facts.decode),
        cluster=facts.cluster,
    )


def _refused(facts: RoomFacts, *, named: bool) -> Iterator[Suspect]:
    """The engine itself noticed the conflict and failed the room."""
    if facts.refusal is None or facts.holders:
        return
    view, ago = facts.refusal
    waiting = [d for d in facts.decode if d.enqueued or d.pending]
    if not named and not waiting:
        return
    when = f" {seconds(ago)} ago" if ago is not None else ""
    rest = f"; {names(_places(waiting))} still {'waits' if len(_places(waiting)) == 1 else 'wait'}" if waiting else ""
    size = facts.size or 1
    implied = f" {facts.implied}" if size > 1 else ""
    ages = [ago, *(entry.age_s for d in waiting for entry in d.entries)]
    yield Suspect(
        "PD121",
        f"Room {facts.room}: the engine failed it{when}: dispatched to prefill dp {view.identity.dp}, implied dp{implied}"
        f" (its own words: {CONFLICT}){rest}.",
        view.identity.service,
        (facts.room,),
        (view.identity.label, *_labels(_of(waiting))),
        beliefs(facts),
        age_s=_least(ages),
        cluster=facts.cluster,
        next_step=f"{'Abort the room on decode, which still waits. ' if waiting else ''}{way_out(view)}",
    )


def _duplicates(facts: RoomFacts) -> Iterator[Suspect]:
    """Two requests of one side have the same room, and one server has both, or is to get both."""
    sides = [("prefill", facts.prefill), ("decode", _flat(facts))]
    for role, entries in ((role, group) for role, requests in sides for group in together(requests)):
        rids: dict[tuple[str, str], list[Ranks]] = {}
        for ranks, entry in entries:
            if entry.rid:
                rids.setdefault((entry.rid, ranks.first.identity.instance), []).append(ranks)
        if len(rids) < 2:
            continue
        several = len({server for _, server in rids}) > 1
        where = [
            f"{rid} on {names(sorted(_labels(on)))}" + f" of {on[0].first.identity.service}" * several
            for (rid, _), on in rids.items()
        ]
        yield Suspect(
            "PD127",
            f"Room {facts.room} belongs to {len(rids)} requests on {role}: {'; '.join(where[:4])}.",
            f"{role} {_services(ranks for ranks, _ in entries)}",
            (facts.room,),
            tuple(sorted(_labels(ranks for ranks, _ in entries))),
            tuple(where),
            age_s=_least(entry.age_s for _, entry in entries),
            cluster=facts.cluster,
            detail=f"{role} {sorted(rids)}",
            whose=frozenset(ranks.first.identity.unit for ranks, _ in entries),
        )


def _flat(facts: RoomFacts) -> list[Request]:
    return [(d.ranks, entry) for d in facts.decode for entry in d.entries]
