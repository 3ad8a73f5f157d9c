"""Gets what ``stuck`` judges: two looks at every live rank, and what recordings say of rooms the other side lacks."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from pdctl.probes.processes import now_ns
from pdctl.probes.routing.addresses import is_none_of
from pdctl.probes.stuck import UNHEARD_S
from pdctl.probes.stuck.model import Earlier, Last, RankLooks
from pdctl.probes.turns import TAKES_IN, Looked, judge
from pdctl.protocol.metadata import NOT_READ
from pdctl.protocol.model import (
    ATTACHED,
    OTHER,
    UNKNOWN,
    WAITS_FOR_OTHER,
    Action,
    EventKind,
    KVPoll,
    Status,
    poll_name,
)
from pdctl.protocol.rank import Answer, FoundRank
from pdctl.protocol.requests import Rooms, RoomTable
from pdctl.recording.excerpt import MAX_ROOMS, Wanted
from pdctl.recording.format import kept_text
from pdctl.recording.requests import alive_ns, changed_since, doubts, moments, rooms_of, seen_until_ns
from pdctl.recording.witness import INPUT_QUEUE, SAME_S, witness

if TYPE_CHECKING:
    from pdctl.probes.view import View
    from pdctl.recording.reader import Event, Recording


def collect(view: View, *, pause_s: float) -> list[RankLooks]:
    """Return two looks at every rank, ``pause_s`` seconds apart, in the view's order.

    What has passed since the view asked for the first one is part of the pause.
    """
    first = view.rooms()
    lacks = _missing(view.ranks, [answer.body for answer in first])
    lacking = [rank for rank in view.ranks if rank.state == "outside" and lacks.get(rank.identity.role)]
    earlier = view.again().status(lacking)
    view.pause(pause_s if lacking else max(0.0, pause_s - view.since("rooms")))
    taking_in = _taking_in(view, earlier)
    now = view.again()
    second = now.rooms()
    missing = _missing(view.ranks, [answer.body for answer in second])
    recordings = _recordings(now, missing)
    looks = []
    for rank, before, after in zip(view.ranks, first, second, strict=True):
        look = RankLooks(
            identity=rank.identity,
            state=rank.state,
            silence="" if after.body is not None else after.reason or rank.state,
            first=before.body,
            second=after.body,
            recorded=rank.recording is not None,
            whole_why=rank.recording_off or "it has no recording",
            up_s=rank.up_s(after.body.mono_ns) if after.body is not None else None,
        )
        rooms = missing.get(rank.identity.role, frozenset())
        if rooms and now.has_recording(rank):
            answer = recordings(rank)
            if answer.body is None:
                look = replace(look, recorded=False, whole_why=f"its recording can't be read: {answer.reason}")
            else:
                look = _told(look, answer.body, rooms, after.body.mono_ns if after.body else _now_ns(rank, answer.body))
        if look.took_in_s is None and id(rank) in taking_in and after.body is not None:
            look = replace(look, took_in_s=max(0.0, (after.body.mono_ns - taking_in[id(rank)]) / 1e9))
        looks.append(look)
    if _open(looks, missing) or any(map(_unturned, looks)):
        looks = [replace(look, turn=turn) for look, turn in zip(looks, now.turns(), strict=True)]
    else:
        looks = _with_steps(now, looks)
    looks = _with_since(looks, missing, lambda n: recordings(now.ranks[n]).body)
    return _with_earlier(looks, lambda n, rooms: now.events(now.ranks[n], rooms, _COMINGS)[0])


def _recordings(view: View, missing: dict[str, frozenset[int]]) -> Callable[[FoundRank], Answer[Recording]]:
    """Return what gives the recording of a rank; of those on other hosts it has what they tell of missing rooms."""
    rooms = sorted(frozenset().union(*missing.values()))
    far = [rank for rank in view.ranks if view.is_far(rank)] if rooms else []
    found: dict[int, Answer[Recording]] = {}
    if far and len(rooms) <= MAX_ROOMS:
        wanted = Wanted(newest=1, rooms=rooms, seen=True, oldest=True)
        for answer in view.excerpts([(rank, wanted) for rank in far]):
            if answer.body is not None:
                found[id(answer.rank)] = Answer(answer.rank, answer.body.recording)
    return lambda rank: found.get(id(rank)) or view.recording(rank)


def _taking_in(view: View, earlier: Sequence[Answer[Status]]) -> dict[int, int]:
    """Return until when ranks that are read from outside have taken in requests, ns of their clock, by the id of the rank.

    Their turns are not counted. But a main thread that has run since an earlier look, and is where new requests are taken in,
    or idle until one comes, has left nothing unread that had come by then.
    """
    then = {id(answer.rank): answer.body for answer in earlier if answer.body is not None}
    asked = [answer.rank for answer in earlier]
    found: dict[int, int] = {}
    for _ in range(_MOST_LOOKS if then else 0):
        for answer in view.again().status([rank for rank in asked if id(rank) in then and id(rank) not in found]):
            before, body = then[id(answer.rank)], answer.body
            if body is not None and body.ticks > before.ticks and not body.call.op and body.call.inside in TAKES_IN:
                found[id(answer.rank)] = before.mono_ns
    return found


_MOST_LOOKS = 6
"""At the main thread of a rank: a loop that turns all the time is taking in requests in most of them."""


def _with_steps(view: View, looks: Sequence[RankLooks]) -> list[RankLooks]:
    """Return the looks with what ranks do now that have requests and are read from outside: nobody counts their turns."""
    asked = [
        rank for rank, look in zip(view.ranks, looks, strict=True) if rank.state == "outside" and has_requests(look)
    ]
    doing = {
        id(answer.rank): judge(Looked((answer.body,), outside=True))
        for answer in view.status(asked)
        if answer.body is not None
    }
    return [replace(look, turn=doing.get(id(rank))) for rank, look in zip(view.ranks, looks, strict=True)]


def has_requests(look: RankLooks) -> bool:
    """Return whether a rank has any request at the second look."""
    return look.second is not None and bool(look.second.rooms)


def _unturned(look: RankLooks) -> bool:
    """Return whether a rank has requests, and its loop did not turn between the looks."""
    return look.unturned_s is not None and has_requests(look)


_COMINGS = (EventKind.ENQUEUE, EventKind.STATE)


def _open(looks: Sequence[RankLooks], missing: dict[str, frozenset[int]]) -> bool:
    """Return whether a request waits for the other side, which lacks it and is not known to have ended it."""
    ended = {(look.identity.role, room) for look in looks for room, last in look.last.items() if last.ended}
    for look in looks:
        role = OTHER.get(look.identity.role, "")
        lacked = missing.get(role, frozenset())
        for queue, room in look.second.rooms.rows("queue", "room") if lacked and look.second is not None else ():
            if room in lacked and queue in WAITS_FOR_OTHER and (role, room) not in ended:
                return True
    return False


def _now_ns(rank: FoundRank, recording: Recording) -> int:
    """Return this moment on the clock of a rank that does not answer, by the wall clocks where nothing else tells it."""
    wall_ns, mono_ns = recording.start_wall_ns, recording.start_mono_ns
    now = now_ns(rank, wall_ns, mono_ns)
    return time.time_ns() - wall_ns + mono_ns if now is None else now


def with_landed(view: View, looks: Sequence[RankLooks], rooms: Sequence[int]) -> list[RankLooks]:
    """Return the looks with whether the metadata of these rooms, at most MOST_LANDED of them, is in their slots now."""
    wanted = tuple(rooms[:MOST_LANDED])
    holders = [rank for rank in view.ranks if rank.identity.role == "decode"]
    answers = {id(answer.rank): answer.body for answer in view.metadata(holders, rooms=wanted, sums=False)}
    found = []
    for rank, look in zip(view.ranks, looks, strict=True):
        body = answers.get(id(rank))
        rows = {} if body is None else {row.slot: row.found for row in body.rows if row.found != NOT_READ}
        slots = {} if body is None else {one.room: one.slot for one in body.holders if one.room in wanted}
        found.append(replace(look, landed={room: rows[s] == room for room, s in slots.items() if s in rows}))
    return found


MOST_LANDED = 20
"""Rooms that ranks are asked about: those of one hang have one cause."""


def collect_recorded(view: View, *, pause_s: float) -> list[RankLooks]:
    """Return what recordings tell of every rank at the moment when each was last seen, in the view's order.

    What changed within ``pause_s`` seconds before that is as a second look would have it.
    """
    answers = [view.recording(rank) for rank in view.ranks]
    ends = moments([answer.body for answer in answers if answer.body is not None])
    until = [0 if a.body is None else seen_until_ns(a.body, ends[id(a.body)], alive_ns(a.rank)) for a in answers]
    rooms = [None if a.body is None else rooms_of(a.body, ns) for a, ns in zip(answers, until, strict=True)]
    missing = _missing(view.ranks, rooms)
    looks = []
    for answer, seen_ns, second in zip(answers, until, rooms, strict=True):
        rank, recording = answer.rank, answer.body
        if recording is None or second is None:
            looks.append(RankLooks(rank.identity, rank.state, silence=answer.reason or rank.state))
            continue
        moved = changed_since(recording, seen_ns - int(pause_s * 1e9))
        before = [e if e.room not in moved else msgspec.structs.replace(e, state=UNKNOWN) for e in second.rooms]
        end_ns = ends[id(recording)]
        look = RankLooks(
            identity=rank.identity,
            state=rank.state,
            first=msgspec.structs.replace(second, rooms=RoomTable.of(before)),
            second=second,
            recorded=True,
            unseen_s=(end_ns - seen_ns) / 1e9,
            stood_s=max(0.0, (seen_ns - recording.tick_mono_ns) / 1e9) if recording.tick_mono_ns else 0.0,
            problems=doubts(recording, (end_ns - seen_ns) / 1e9),
            up_s=(end_ns - recording.start_mono_ns) / 1e9 if rank.identity.loaded_by != ATTACHED else None,
        )
        looks.append(_told(look, recording, missing.get(rank.identity.role, frozenset()), end_ns))
    looks = _with_since(looks, missing, lambda n: answers[n].body)
    return _with_earlier(looks, lambda n, rooms: view.events(view.ranks[n], rooms, _COMINGS)[0])


def _told(look: RankLooks, recording: Recording, rooms: frozenset[int], now_ns: int) -> RankLooks:
    """Return the look with what the rank's recording says of these rooms, and with what it is a witness of."""
    seen = witness(recording)
    return replace(
        look,
        last=last_words(recording, rooms, now_ns),
        recorded=True,
        whole_s=None if seen.since_ns is None else (now_ns - seen.since_ns) / 1e9,
        whole_why=seen.why,
        took_in_s=max(0.0, (now_ns - seen.took_in_ns) / 1e9) if seen.took_in_ns else None,
    )


def _missing(ranks: Sequence[FoundRank], answers: Sequence[Rooms | None]) -> dict[str, frozenset[int]]:
    """Return the rooms of requests that the other side has and this one lacks, by role; it may have the room for another."""
    tables: dict[tuple[str, str], list[RoomTable]] = defaultdict(list)
    for rank, rooms in zip(ranks, answers, strict=True):
        if rooms is not None:
            tables[rank.identity.cluster, rank.identity.role].append(rooms.rooms)
    lacked: dict[str, set[int]] = {role: set() for role in OTHER}
    for cluster in {cluster for cluster, _ in tables}:
        sides = {role: tables[cluster, role] for role in OTHER}
        here = {role: {room for one in those for room in one.column("room")} - {0} for role, those in sides.items()}
        addresses = {address for those in sides.values() for one in those for address in one.distinct("bootstrap")}
        both = here["prefill"] & here["decode"] if len(addresses - {""}) > 1 else set()
        requests = {role: _requests(those, both) for role, those in sides.items()}
        for role, other in OTHER.items():
            lacked[role] |= here[other] - here[role]
            lacked[role].update(room for room in both if is_none_of(requests[role][room], requests[other][room]))
    return {role: frozenset(rooms) for role, rooms in lacked.items()}


def _requests(tables: Sequence[RoomTable], rooms: Collection[int]) -> dict[int, set[tuple[str, str]]]:
    """Return the ids of the requests that have these rooms, and the bootstrap servers that they name."""
    found: dict[int, set[tuple[str, str]]] = {room: set() for room in rooms}
    for table in {one.key("room", "rid", "bootstrap"): one for one in tables if rooms}.values():
        for room, rid, address in table.rows("room", "rid", "bootstrap"):
            if room in found:
                found[room].add((rid, address))
    return found


def _with_since(
    looks: Sequence[RankLooks], missing: dict[str, frozenset[int]], recording_of: Callable[[int], Recording | None]
) -> list[RankLooks]:
    """Return the same looks, with when those requests came that the other side lacks, or ended before they came here."""
    ended: dict[str, dict[int, float]] = {"prefill": {}, "decode": {}}
    for look in looks:
        for room, last in look.last.items():
            if last.ended and last.came and look.identity.role in ended:
                there = ended[look.identity.role]
                there[room] = min(last.age_s, there.get(room, last.age_s))
    found = []
    for n, look in enumerate(looks):
        role = OTHER.get(look.identity.role, "")
        other, lacked = ended.get(role, {}), missing.get(role, frozenset())
        entries = look.second.rooms if lacked and look.second is not None else ()
        wanted = {
            (e.room, e.rid)
            for e in entries
            if e.room in lacked
            and (0 <= e.age_s + SAME_S < other[e.room] if e.room in other else e.queue in WAITS_FOR_OTHER)
        }
        recording = recording_of(n) if wanted else None
        if recording is None or look.second is None:
            found.append(look)
            continue
        entered: dict[tuple[int, str], list[Event]] = {key: [] for key in wanted}
        for event in recording.events_of({room for room, _ in wanted}, (EventKind.ENQUEUE,)):
            entered.get((event.room, event.text), []).append(event)
        came = {key: ns for key, events in entered.items() if (ns := _came_ns(events))}
        found.append(replace(look, since={key: (look.second.mono_ns - ns) / 1e9 for key, ns in came.items()}))
    return found


def _with_earlier(looks: Sequence[RankLooks], events_of: Callable[[int, set[int]], Sequence[Event]]) -> list[RankLooks]:
    """Return the same looks, with the rooms of waiting requests that another request of the rank had before.

    One rank of each group tells it: those of a group have the same requests.
    """
    found, told = [], set()
    for n, look in enumerate(looks):
        i = look.identity
        queue, group = INPUT_QUEUE.get(i.role), (i.instance, i.dp, i.pp, i.cp)
        if look.second is None or queue is None or group in told:
            found.append(look)
            continue
        rows = look.second.rooms.rows("queue", "room", "rid", "age_s")
        waiting = {room: rid for q, room, rid, age in rows if room and q in WAITS_FOR_OTHER and age >= UNHEARD_S}
        events = events_of(n, set(waiting)) if waiting else ()
        if events:
            told.add(group)
        earlier = _earlier(events, queue, waiting, look.second.mono_ns)
        found.append(replace(look, earlier=earlier) if earlier else look)
    return found


def _earlier(events: Sequence[Event], queue: str, waiting: dict[int, str], now_ns: int) -> dict[int, Earlier]:
    found: dict[int, Earlier] = {}
    others: dict[int, Earlier] = {}
    for event in events:
        room = event.room
        if event.kind is EventKind.STATE:
            if room in others and event.a in (KVPoll.FAILED, KVPoll.SUCCESS):
                others[room] = replace(others[room], ended=poll_name(event.a))
        elif event.queue == queue and event.text != kept_text(waiting[room]):
            others[room] = Earlier(event.text, (now_ns - event.mono_ns) / 1e9)
        elif event.queue == queue and room in others:
            found[room] = others.pop(room)
    return found


def _came_ns(entered: Sequence[Event]) -> int:
    """Return when the newest of the requests that entered these queues in turn came, 0 where it is not told.

    On decode it comes into prealloc and pending at once or, up to SGLang 0.5.9, into pending and from there into prealloc.
    """
    queues = [event.queue for event in entered]
    first = max((n for n, queue in enumerate(queues) if queue in _FIRST), default=-1)
    if first < 0:
        return 0
    if queues[max(0, first - 1)] == "decode.pending" and queues[max(0, first - 2)] != "decode.prealloc":
        first -= 1
    return entered[first].mono_ns


_FIRST = ("decode.prealloc", "prefill.bootstrap")


def last_words(recording: Recording, rooms: Iterable[int], now_ns: int) -> dict[int, Last]:
    """Return the last that ``recording`` says of each of ``rooms``; rooms it never saw are left out.

    A state alone is no request: decode's addresses give a room a state on prefill that no request of it has reached.
    """
    wanted = set(rooms)
    when: dict[int, tuple[int, str, bool]] = {}
    reasons: dict[int, str] = {}
    came: set[int] = set()

    def note(room: int, mono_ns: int, what: str, *, ended: bool) -> None:
        old = when.get(room)
        if old is None or (ended, mono_ns) >= (old[2], old[0]):
            when[room] = (mono_ns, what, ended)

    for event in recording.events_of(wanted, (EventKind.FAILURE, EventKind.STATE, EventKind.ENQUEUE)):
        if event.kind is EventKind.FAILURE:
            reasons[event.room] = event.text
        elif event.kind is EventKind.STATE:
            note(event.room, event.mono_ns, poll_name(event.a), ended=event.a in (KVPoll.FAILED, KVPoll.SUCCESS))
        else:
            came.add(event.room)
            note(event.room, event.mono_ns, f"entered {event.queue}", ended=False)
    for stream in recording.streams:
        for row, item in stream.sightings(wanted):
            came.add(item.room)
            if item.action in _FAILS or (item.action, stream.queue) in _DONE:
                note(item.room, int(stream.table["t_done"][row]), _ENDS[item.action], ended=True)
    return {
        room: Last(what, max(0.0, (now_ns - mono_ns) / 1e9), ended, reasons.get(room, ""), room in came)
        for room, (mono_ns, what, ended) in when.items()
    }


_FAILS = (int(Action.FAILED), int(Action.ABORTED))
_DONE = ((int(Action.COMMITTED), "prefill.inflight"), (int(Action.COMMITTED), "decode.transfer"))
_ENDS = {int(Action.COMMITTED): "Success", int(Action.FAILED): "Failed", int(Action.ABORTED): "aborted"}
