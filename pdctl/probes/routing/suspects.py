"""What contradicts what, room by room. Pure.

A suspect is a difference in one look; whether it is a finding or only skew, :mod:`pdctl.probes.routing.judge` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pdctl.model import EventKind
from pdctl.probes.queues.words import names, seconds
from pdctl.probes.routing.facts import (
    CONFLICT,
    CONFLICTING,
    NONE,
    Decoding,
    RoomFacts,
    asks,
    cleanup_s,
    forced,
    is_set,
    registers,
)
from pdctl.probes.routing.model import RankView, waits
from pdctl.rooms import FORCE_QUERY, NOTES_CONFLICTS, RoomEntry

LAST_QUARTER = 0.75


@dataclass(frozen=True)
class Suspect:
    """A difference. bundle: suspects of one code and bundle are one finding. age_s: for how long what differs has been as it
    is, at least; None where that can't be told. detail: what else tells two suspects of a room apart.
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

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for the same difference in two looks."""
        return (self.code, self.cluster, self.bundle, self.rooms, self.detail)


def suspects_of(facts: RoomFacts, *, named: bool) -> Iterator[Suspect]:
    """Yield what is wrong with one room, as it seems in this look. named: the user asked for it."""
    yield from _duplicates(facts)
    split = list(_split(facts))
    yield from split
    if not split:
        yield from _elsewhere(facts)
        yield from _conflict(facts)
        yield from _unregistered(facts)
    yield from _expiring(facts)
    yield from _refused(facts, named=named)


def _least(ages: Iterable[float | None]) -> float | None:
    known = list(ages)
    return None if not known or any(age is None or age < 0 for age in known) else min(a for a in known if a is not None)


def _ages(facts: RoomFacts, decodings: Iterable[Decoding]) -> float | None:
    ages = [entry.age_s for _, entry in facts.holders]
    return _least([*ages, *(entry.age_s for decoding in decodings for entry in decoding.entries)])


def services(views: Iterable[RankView]) -> str:
    """Return the servers these ranks belong to, each once."""
    return ", ".join(dict.fromkeys(view.identity.service for view in views))


def dps(ranks: Iterable[int]) -> str:
    """Return ``prefill dp 0`` or ``prefill dp 0 and 1``."""
    return f"prefill dp {names(map(str, ranks))}"


def _labels(decodings: Iterable[Decoding]) -> tuple[str, ...]:
    return tuple(decoding.view.identity.label for decoding in decodings)


def beliefs(facts: RoomFacts) -> tuple[str, ...]:
    """Return the four beliefs as lines of evidence."""
    lines = []
    if facts.holders:
        held = max(entry.age_s for _, entry in facts.holders)
        waits = f" for {seconds(held)}" if held >= 0 else ""
        at = dps(sorted({view.identity.dp for view, _ in facts.holders}))
        lines.append(f"dispatched to {at}, which has it in prefill.bootstrap{waits}")
    if facts.size is not None and facts.size > 1:
        lines.append(f"implied by room % dp_size: prefill dp {facts.room} % {facts.size} = {facts.implied}")
    lines.append(registered_words(facts))
    for decoding in facts.decode:
        what = "waits to be told where it is" if decoding.dp is None else f"expects it from prefill dp {decoding.dp}"
        lines.append(f"{decoding.view.identity.label} {what} ({', '.join(decoding.queues)})")
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
    at = sorted({view.identity.dp for view, _ in facts.holders})
    expected = sorted({d.dp for d in wrong if d.dp is not None})
    views = [view for view, _ in facts.holders]
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
    notes: tuple[str, ...] = ()
    if any(view.seams.get(NOTES_CONFLICTS) is False for view in views):
        notes = ("this prefill's code does not notice that the room was routed against room % dp_size",)
    yield Suspect(
        "PD120",
        f"Room {facts.room}: dispatched {names(map(str, at))}{implied}{said}, receiver expects {names(map(str, expected))}"
        f" ({by}). Prefill dp {names(map(str, at))} waits to be asked, and {names(d.place for d in wrong)} "
        f"{'waits' if len(wrong) == 1 else 'wait'} for prefill dp {names(map(str, expected))}.",
        f"{services(views)} > {services(d.view for d in wrong)}",
        (facts.room,),
        (*(view.identity.label for view in views), *_labels(wrong)),
        (*beliefs(facts), *notes),
        age_s=_ages(facts, wrong),
        cluster=facts.cluster,
        detail=f"{at}{expected}",
    )


def _asks(decoding: Decoding) -> bool:
    return any(asks(decoding.view, entry) for entry in decoding.entries)


def _elsewhere(facts: RoomFacts) -> Iterator[Suspect]:
    """The registration names another dp rank than the one that holds the room, and decode goes by it."""
    there = facts.registered
    if there is None or not facts.holders or there in facts.prefill_dps or not any(_asks(d) for d in facts.decode):
        return
    at = sorted({view.identity.dp for view, _ in facts.holders})
    asking = [d for d in facts.decode if _asks(d)]
    views = [view for view, _ in facts.holders]
    yield Suspect(
        "PD125",
        f"Room {facts.room} is held by {dps(at)} and registered as dp {there}: "
        f"{names(d.place for d in asking)} {'goes' if len(asking) == 1 else 'go'} to the wrong one.",
        f"{services(views)} > {services(d.view for d in asking)}",
        (facts.room,),
        (*(view.identity.label for view in views), *_labels(asking)),
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
    views = [view for view, _ in facts.holders]
    kinds = {registers(view) for view in views}
    kind = kinds.pop() if len(kinds) == 1 else ""
    at = sorted({view.identity.dp for view in views})
    agrees = at == [facts.implied]
    never = (kind == NONE or (kind == CONFLICTING and agrees)) and facts.registration is None
    if not facts.answered and not never:
        return  # the only one who could tell is silent
    code, why = "PD122", "Nobody has registered it"
    seen = facts.registration
    if seen is not None:
        limit = max(cleanup_s(view) for view in views)
        code, why = "PD122", f"Prefill registered it as dp {seen[1]}, and the bootstrap server has it no longer"
        if seen[0] is not None and seen[0] > limit:
            why = f"Its registration has expired: it is {seconds(seen[0])} old, and they are dropped after {limit:g} s"
    elif kind == CONFLICTING and agrees:
        code = "PD124"
        why = f"It is never registered: its route does not conflict, and prefill registers {CONFLICTING}"
    elif kind == NONE and any(forced(d.view) for d in pending):
        code = "PD123"
        heed = "does not heed it" if any(is_set(view) for view in views) else "does not have it"
        why = f"{FORCE_QUERY} is set on decode, and prefill {heed}: it registers no room"
    yield Suspect(
        code,
        f"Room {facts.room} is held by {dps(at)} and pending on {names(d.place for d in pending)}, which "
        f"{'asks' if len(pending) == 1 else 'ask'} the bootstrap server for it. {why}.",
        f"{services(views)} > {services(d.view for d in pending)}",
        (facts.room,),
        (*(view.identity.label for view in views), *_labels(pending)),
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
        told = [_told_s(facts, d) for d in ahead]
        seen = facts.registration
        when = f", registered {seconds(seen[0])} ago" if seen is not None and seen[0] is not None else ""
        yield Suspect(
            "PD106",
            f"Room {facts.room} is pending on {names(d.place for d in waiting)}, and in the handshake queue on "
            f"{names(d.place for d in ahead)}, which {'was' if len(ahead) == 1 else 'were'} told dp {ahead[0].dp}{when}.",
            services(d.view for d in members),
            (facts.room,),
            _labels(members),
            beliefs(facts),
            age_s=_least([_ages(facts, members), *told]),
            cluster=facts.cluster,
            detail=f"{[d.place for d in waiting]}",
        )


def _told_s(facts: RoomFacts, decoding: Decoding) -> float | None:
    """Return how long ago this rank was told where the room is, None unknown."""
    found = facts.event(EventKind.DP_ANSWER, decoding.view)
    return None if found is None or found[1].a < 0 else found[0].age_s(found[1].mono_ns)


def _expiring(facts: RoomFacts) -> Iterator[Suspect]:
    """A registration that no decode rank has used yet is about to be dropped."""
    seen = facts.registration
    if facts.registered is None or seen is None or seen[0] is None or not facts.holders or facts.decode_dps:
        return
    limit = max(cleanup_s(view) for view, _ in facts.holders)
    if seen[0] < LAST_QUARTER * limit or (facts.decode and not any(_asks(d) for d in facts.decode)):
        return
    left = f"in {seconds(limit - seen[0])}" if seen[0] < limit else "any moment"
    views = [view for view, _ in facts.holders]
    yield Suspect(
        "PD126",
        f"Room {facts.room}: its registration is {seconds(seen[0])} old and is dropped {left} (after {limit:g} s), and no "
        f"decode rank has been told of it yet.",
        services(views),
        (facts.room,),
        tuple(view.identity.label for view in views),
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
    rest = f"; {names(d.place for d in waiting)} still {'waits' if len(waiting) == 1 else 'wait'}" if waiting else ""
    size = facts.size or 1
    implied = f" {facts.implied}" if size > 1 else ""
    ages = [ago, *(entry.age_s for d in waiting for entry in d.entries)]
    yield Suspect(
        "PD121",
        f"Room {facts.room}: the engine failed it{when}: dispatched to prefill dp {view.identity.dp}, implied dp{implied}"
        f" (its own words: {CONFLICT}){rest}.",
        services([view]),
        (facts.room,),
        (view.identity.label, *_labels(waiting)),
        beliefs(facts),
        age_s=_least(ages),
        cluster=facts.cluster,
    )


def _duplicates(facts: RoomFacts) -> Iterator[Suspect]:
    """Two requests of one side have the same room."""
    for role in ("prefill", "decode"):
        entries = facts.prefill if role == "prefill" else _flat(facts)
        rids: dict[str, list[RankView]] = {}
        for view, entry in entries:
            if entry.rid:
                rids.setdefault(entry.rid, []).append(view)
        if len(rids) < 2:
            continue
        where = [f"{rid} on {names(sorted({view.identity.label for view in views}))}" for rid, views in rids.items()]
        yield Suspect(
            "PD127",
            f"Room {facts.room} belongs to {len(rids)} requests on {role}: {'; '.join(where[:4])}.",
            f"{role} {services(view for view, _ in entries)}",
            (facts.room,),
            tuple(sorted({view.identity.label for view, _ in entries})),
            tuple(where),
            age_s=_least(entry.age_s for _, entry in entries),
            cluster=facts.cluster,
            detail=f"{role} {sorted(rids)}",
        )


def _flat(facts: RoomFacts) -> list[tuple[RankView, RoomEntry]]:
    return [(d.view, entry) for d in facts.decode for entry in d.entries]
