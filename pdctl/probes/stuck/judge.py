"""Which requests wait, what the other side says of them, and what will end the wait. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pdctl.probes.queues.formatting import names
from pdctl.probes.queues.formatting import rooms as some_rooms
from pdctl.probes.stuck import STUCK_S, UNHEARD_S, advice, place
from pdctl.probes.stuck.advice import AFTER_RETRACTED, BEHIND, FIRST, NO_SLOT, NOT_TOLD, Advice, overdue_s
from pdctl.probes.stuck.handshake import addresses_lost, has_sent
from pdctl.probes.stuck.model import Place, RankLooks, SideSpace, StuckDocument, Waiting
from pdctl.probes.stuck.peer import ABSENT, ENDED, GONE, LATER, NEVER, UNREAD, Peers
from pdctl.probes.stuck.released import released
from pdctl.probes.stuck.shared import shared_findings
from pdctl.probes.stuck.sides import (
    COMPUTED,
    HEARD,
    QUEUE_ORDER,
    Side,
    sides_of,
    space_of,
)
from pdctl.probes.stuck.untaken import untaken
from pdctl.probes.stuck.waiting import waiting_of
from pdctl.probes.turns import Turn
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import OTHER, KVPoll, poll_name
from pdctl.report.findings import Finding, finding


def judge(
    looks: Sequence[RankLooks], *, pause_s: float, older_s: float = 0.0, stuck_s: float = STUCK_S, by: str = "age"
) -> StuckDocument:
    """Return what waits, sorted ``by`` one of ORDER, and what of that is wrong.

    older_s: younger requests are counted and not listed. stuck_s: from which age a wait that nothing ends is a finding.
    """
    sides = sides_of(looks)
    peers: dict[tuple[str, str], Peers] = defaultdict(Peers)
    for side in sides:
        peers[side.key].append(side)
    space = [(side, found) for side in sides for found in [space_of(side)] if found is not None]
    full = {id(side): found for side, found in space if found.full}
    waiting: list[tuple[Side, Waiting]] = []
    for side in sides:
        other = peers[(side.cluster, OTHER.get(side.role, ""))]
        waiting += [
            (side, request) for request in waiting_of(side, peers[side.key], other, pause_s, full.get(id(side)))
        ]
    requests = [request for _, request in waiting] + [request for side in sides for request in released(side)]
    shown = [request for request in requests if request.age_s >= older_s or (older_s and request.age_s < 0)]
    problems = [f"{look.identity.label}: {look.silence}" for look in looks if look.silence]
    problems += [f"{look.identity.label}: {problem}" for look in looks for problem in look.problems]
    return StuckDocument(
        requests=tuple(sorted(shown, key=_SORTS[by])),
        space=tuple(found for _, found in space),
        findings=(*shared_findings(sides, waiting), *_findings(waiting, space, peers, pause_s, stuck_s)),
        pause_s=pause_s,
        hidden=len(requests) - len(shown),
        partial=bool(problems),
        problems=tuple(problems),
    )


_SORTS = {
    "age": lambda r: (-r.age_s, r.side, r.room),
    "queue": lambda r: (QUEUE_ORDER.get(r.queue, len(QUEUE_ORDER)), -r.age_s, r.room),
    "rank": lambda r: (r.side, QUEUE_ORDER.get(r.queue, len(QUEUE_ORDER)), -r.age_s, r.room),
}


# ---- findings --------------------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """Requests of one finding have all of this in common. why: what kind of advice they get."""

    code: str
    side: Side
    queue: str
    state: str
    why: str


def _held_up(sides: Iterable[Side]) -> frozenset[int]:
    """Return the sides, by id, that can't turn because a rank of their server computes: all that they have waits for that."""
    those = list(sides)
    computing = {_server(side) for side in those if any(map(_computes, side.looks))}
    return frozenset(id(side) for side in those if _server(side) in computing and not any(map(_turns, side.looks)))


def _server(side: Side) -> tuple[str, str, str]:
    one = side.looks[0].identity
    return one.cluster, one.service, one.instance


def _computes(look: RankLooks) -> bool:
    return look.turn is not None and look.turn.computing and (look.turn.turned is False or _uncounted(look.turn))


def _turns(look: RankLooks) -> bool:
    return look.turn is None or (look.turn.turned is not False and not _uncounted(look.turn))


def _uncounted(turn: Turn) -> bool:
    """Return whether nothing tells that a loop turns: it is read from outside, and not idle."""
    return turn.outside and turn.turned is None and not turn.idle


def _findings(
    requests: Sequence[tuple[Side, Waiting]],
    space: Sequence[tuple[Side, SideSpace]],
    peers: Mapping[tuple[str, str], Peers],
    pause_s: float,
    stuck_s: float,
) -> Iterator[Finding]:
    groups: dict[_Group, dict[tuple[int, str], Waiting]] = defaultdict(dict)
    sides: dict[_Group, dict[int, Side]] = defaultdict(dict)
    first: dict[tuple[object, ...], _Group] = {}
    given_up: dict[int, dict[int, Waiting]] = defaultdict(dict)
    held = _held_up(side for those in peers.values() for side in those)
    gets_on = {(id(side), one.room) for side, one in requests if one.room and one.progress == "moving"}
    stuck: dict[int, dict[str, list[Waiting]]] = defaultdict(lambda: defaultdict(list))
    unmoved: dict[int, list[Waiting]] = defaultdict(list)
    for side, request in requests:
        if request.queue == "waiting" and request.progress == "still" and request.age_s >= stuck_s:
            unmoved[id(side)].append(request)
        code = "" if held and id(side) in held else _code(request, side, pause_s, stuck_s, peers)
        if code == "PD141" and any((id(of), request.room) in gets_on for of in _other(request, side, peers)):
            code = ""  # the other side has got on with it between the looks
        if code:
            why = _advice(code, request, side, peers)
            group = _Group(code, side, request.queue, request.state, why.kind)
            key = (request.room, request.rid)
            group = first.setdefault(
                (code, side.cluster, side.unit, *key), group
            )  # the stages of a server have one request
            groups[group].setdefault(key, request)
            sides[group].setdefault(id(side), side)
            if why.kind == advice.GIVEN_UP:
                given_up[id(side)][request.room] = request
            elif request.note not in (FIRST, BEHIND, AFTER_RETRACTED):
                stuck[id(side)][code].append(request)
    for side, one in space:
        if one.full:
            here = [request for of, request in requests if of is side]
            failed = {(request.room, request.rid) for request in here if _failed_there(request, side, peers)}
            yield place.full(one, side, here, given_up[id(side)], failed, stuck[id(side)])
        if side.role == "decode" and (batch := place.batch(side)) is not None:
            yield batch
        if id(side) in unmoved and not one.full:
            yield from untaken(side, _stages(side, peers), unmoved[id(side)])
    for group, ones in groups.items():
        of = next((one for side, one in space if side is group.side), None)
        yield _finding(group, list(ones.values()), list(sides[group].values()), of, peers)


def _advice(code: str, request: Waiting, side: Side, peers: Mapping[tuple[str, str], Peers]) -> Advice:
    if side.looks[0].identity.pp > 0:
        kept = advice.orphan(request, side, _first_stage(side, peers))
        if kept.kind:
            return kept
    if code == "PD142":
        other = _other(request, side, peers)
        return advice.lost(request, advice.ended_as(request, other), other)
    if code == "PD141" and any(place.state == FAILED for place in _polled(request)):
        return advice.failed(request)
    if code == "PD141" and _complete(request):
        return advice.complete(request, side)
    if code == "PD143" and request.peer_is == NEVER:
        return Advice(next_step=_ROUTER)
    if request.peer_is == LATER:
        return advice.too_late(request)
    if code == "PD155" or (code == "PD141" and request.role == "decode"):
        return advice.unheard(request, _other(request, side, peers))
    return Advice()


_ROUTER = (
    "Look at the router: did it send the request to both servers, and is the other server the same process as before?"
)


def _failed_there(request: Waiting, side: Side, peers: Mapping[tuple[str, str], Peers]) -> bool:
    last = advice.ended_as(request, _other(request, side, peers)) if request.peer_is == ENDED else None
    return last is not None and last.what != SUCCESS


def _stages(side: Side, peers: Mapping[tuple[str, str], Peers]) -> list[Side]:
    """Return the groups of a side's server that have the same requests."""
    return [one for one in peers[side.key] if one.unit == side.unit]


def _first_stage(side: Side, peers: Mapping[tuple[str, str], Peers]) -> list[Side]:
    return [one for one in _stages(side, peers) if one.looks[0].identity.pp == 0]


def _other(request: Waiting, side: Side, peers: Mapping[tuple[str, str], Peers]) -> Sequence[Side]:
    """Return the groups that a request of ``side`` can be on."""
    there = side.requests.get((request.room, request.rid), ())
    other = peers[(request.cluster, OTHER.get(request.role, ""))]
    if not there:
        return other
    strangers = other.strangers(there[0].entry, side, peers[side.key])
    those = other.behind(there[0].entry)
    return [one for one in those if one not in strangers] if strangers else those


def _finding(
    group: _Group,
    ones: Sequence[Waiting],
    sides: Sequence[Side],
    space: SideSpace | None,
    peers: Mapping[tuple[str, str], Peers],
) -> Finding:
    """Return what is found of these requests. sides: that have them, the stages of one server."""
    side, oldest = group.side, max(ones, key=lambda one: one.age_s)
    why = _advice(group.code, oldest, side, peers)
    many = f"{len(ones)} requests, the oldest room {oldest.room}," if len(ones) > 1 else f"Room {oldest.room}"
    wait = "wait" if len(ones) > 1 else "waits"
    where = names([one.title for one in sides])
    words = [
        f"{many} {wait} in {group.queue} of {where}, {group.state} for {seconds(oldest.age_s)}: {oldest.peer}.",
        why.why,
        _MAY_BE_ANOTHER if group.code == "PD142" and side.recorded and _pairs(side, peers) > 1 else "",
        "" if group.code == "PD141" and (_complete(oldest) or why.kind == advice.FAILED) else _end(oldest),
        _slots_held(ones, space),
    ]
    stands = next(filter(None, map(advice.standing, sides)), "") if group.code in ("PD141", "PD142") else ""
    return finding(
        group.code,
        " ".join(filter(None, words)),
        group=side.title,
        rooms=tuple(dict.fromkeys((oldest.room, *(one.room for one in ones)))),
        ranks=tuple(dict.fromkeys(rank for one in ones for place in one.ranks for rank in place.ranks)),
        evidence=_evidence(ones, space),
        next_step=stands or why.next_step,
        units=(side.unit, *_waits_for(ones, _other(oldest, side, peers))),
    )


_MAY_BE_ANOTHER = (
    "Recordings do not tell which servers talk to each other: what ended may be another pair's request with this room."
)


def _pairs(side: Side, peers: Mapping[tuple[str, str], Peers]) -> int:
    """Return how many pairs of a prefill and a decode server there may be in a side's cluster."""
    return math.prod(
        len({_server(one) for one in peers[key]}) for key in (side.key, (side.cluster, OTHER.get(side.role, "")))
    )


def _waits_for(ones: Sequence[Waiting], other: Sequence[Side]) -> Iterable[str]:
    """Yield the units of the other side that have these rooms; all of it where none has."""
    rooms = {one.room for one in ones}
    for side in [side for side in other if not rooms.isdisjoint(side.rooms)] or other:
        yield side.unit


def _code(request: Waiting, side: Side, pause_s: float, stuck_s: float, peers: Mapping[tuple[str, str], Peers]) -> str:
    if request.progress in ("new", "moving", "unknown") or request.queue in HEARD:
        return ""
    ended_s = request.peer_ended_s
    if ended_s is not None and ended_s >= max(UNHEARD_S, pause_s) and not _heard(request):
        return "PD142"
    if request.age_s < stuck_s:
        return ""
    other = _other(request, side, peers)
    endless = request.cover == "nothing" or overdue_s(request) >= stuck_s
    if not endless and has_sent(request) and addresses_lost(request.room, _stages(side, peers), other, stuck_s):
        return "PD155"
    if request.progress != "still":
        return ""
    if request.note in (FIRST, BEHIND):
        return ""  # full is not stuck
    if request.peer_is in (NEVER, LATER, ABSENT):
        return "PD143" if request.peer_without_s >= stuck_s else ""
    if request.peer_is == GONE:
        return "PD143" if request.peer_without_s >= max(UNHEARD_S, pause_s) else ""
    if request.peer_is == UNREAD or request.note in (AFTER_RETRACTED, NO_SLOT):
        return ""
    return "PD141" if endless and not _being_computed(request, other) else ""


def _heard(request: Waiting) -> bool:
    return all(place.state in _OVER for place in _polled(request))


def _polled(request: Waiting) -> list[Place]:
    """Return where the request still waits for the other side."""
    return [place for place in request.ranks if place.queue in QUEUE_ORDER and place.queue not in HEARD]


SUCCESS = poll_name(KVPoll.SUCCESS)
FAILED = poll_name(KVPoll.FAILED)
_OVER = (SUCCESS, FAILED)


def _being_computed(request: Waiting, other: Sequence[Side]) -> bool:
    return any(queue in COMPUTED for side in other for _, queue, _ in side.places(request.room))


def _complete(request: Waiting) -> bool:
    """Return whether its transfer is complete on every rank that has it."""
    return all(place.state == SUCCESS for place in _polled(request))


def unfinished(document: StuckDocument) -> tuple[int, ...]:
    """Return the rooms of findings whose transfer is complete, and which nevertheless wait on decode."""
    found = {room for one in document.findings if one.code == "PD141" for room in one.rooms}
    return tuple(r.room for r in document.requests if r.room in found and r.role == "decode" and _complete(r))


def _end(request: Waiting) -> str:
    if request.note == AFTER_RETRACTED:
        return "No time-out is looked at while retracted requests wait for space."
    if overdue_s(request) >= UNHEARD_S:
        return f"{request.cover} should have ended it {seconds(overdue_s(request))} ago."
    if request.left_s is not None:
        return f"{request.cover} ends it in {seconds(max(0.0, request.left_s))}."
    if request.cover == "unknown":
        backend = "Which time-out covers this on this backend is not known."
        return f"{NOT_TOLD.capitalize()}." if request.note == NOT_TOLD else backend
    if request.note in (FIRST, BEHIND):
        return "No time-out runs while it waits for space."
    note = f" ({request.note})" if request.note else ""
    return f"No time-out covers this state on this backend and version{note}."


def _slots_held(ones: Sequence[Waiting], space: SideSpace | None) -> str:
    held = sum(any(place.slot >= 0 for place in one.ranks) for one in ones)
    return f"{held} of {space.slots} metadata slots are held this way." if held and space and space.slots > 0 else ""


def _evidence(ones: Sequence[Waiting], space: SideSpace | None) -> tuple[str, ...]:
    lines = [f"room {one.room}: {one.peer}" for one in ones[:5]]
    lines += [_apart(one) for one in ones[:5] if len({place.state for place in _polled(one)}) > 1]
    held = [one.room for one in ones if any(place.slot >= 0 for place in one.ranks)]
    if held and space is not None and space.slots > 0:
        lines.append(f"{len(held)} of {space.slots} metadata slots are held this way ({some_rooms(held)})")
    kv = sum(max((place.kv for place in one.ranks), default=0) for one in ones)
    if kv > 0:
        lines.append(f"they hold {kv} KV tokens on each rank")
    return tuple(lines)


def _apart(request: Waiting) -> str:
    """Return what each rank has heard of a request, where that is not the same."""
    heard = "; ".join(f"{place.state} on {names(place.ranks)}" for place in _polled(request))
    return f"room {request.room}: {heard}"
