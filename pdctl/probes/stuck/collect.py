"""Gets what ``stuck`` judges: two looks at every live rank, and what recordings say of rooms the other side lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from pdctl.probes.stuck.model import Last, RankLooks
from pdctl.probes.stuck.sides import OTHER, SAME_S
from pdctl.protocol.model import UNKNOWN, Action, EventKind, KVPoll, poll_name
from pdctl.protocol.rank import Answer, FoundRank
from pdctl.protocol.requests import Rooms, RoomTable
from pdctl.recording.requests import alive_ns, changed_since, doubts, moments, rooms_of, seen_until_ns

if TYPE_CHECKING:
    from pdctl.probes.view import View
    from pdctl.recording.reader import Event, Recording


def collect(view: View, *, pause_s: float) -> list[RankLooks]:
    """Return two looks at every rank, ``pause_s`` seconds apart, in the view's order."""
    first = view.rooms()
    view.pause(pause_s)
    now = view.again()
    second = now.rooms()
    missing = _missing(view.ranks, [answer.body for answer in second])
    looks = []
    for rank, before, after in zip(view.ranks, first, second, strict=True):
        last, recorded = _history(rank, now, missing.get(rank.identity.role, frozenset()), after)
        looks.append(
            RankLooks(
                identity=rank.identity,
                state=rank.state,
                silence="" if after.body is not None else after.reason or rank.state,
                first=before.body,
                second=after.body,
                last=last,
                recorded=recorded,
            )
        )
    return _with_since(looks, lambda n: now.recording(now.ranks[n]).body)


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
        wanted = missing.get(rank.identity.role, frozenset())
        end_ns = ends[id(recording)]
        looks.append(
            RankLooks(
                identity=rank.identity,
                state=rank.state,
                first=msgspec.structs.replace(second, rooms=RoomTable.of(before)),
                second=second,
                last=last_words(recording, wanted, end_ns),
                recorded=True,
                unseen_s=(end_ns - seen_ns) / 1e9,
                problems=doubts(recording, (end_ns - seen_ns) / 1e9),
            )
        )
    return _with_since(looks, lambda n: answers[n].body)


def _missing(ranks: Sequence[FoundRank], answers: Sequence[Rooms | None]) -> dict[str, frozenset[int]]:
    """Return the rooms that the other side has and this one lacks, by role."""
    here: dict[str, set[int]] = {"prefill": set(), "decode": set()}
    for rank, rooms in zip(ranks, answers, strict=True):
        if rooms is not None and rank.identity.role in here:
            here[rank.identity.role] |= set(rooms.rooms.column("room")) - {0}
    return {
        "prefill": frozenset(here["decode"] - here["prefill"]),
        "decode": frozenset(here["prefill"] - here["decode"]),
    }


def _history(rank: FoundRank, view: View, rooms: frozenset[int], answer: Answer[Rooms]) -> tuple[dict[int, Last], bool]:
    if not rooms or not view.has_recording(rank):
        return {}, rank.recording is not None
    recording = view.recording(rank).body
    if recording is None:
        return {}, False
    now = answer.body.mono_ns if answer.body is not None else recording.tick_mono_ns
    return last_words(recording, rooms, now), True


def _with_since(looks: Sequence[RankLooks], recording_of: Callable[[int], Recording | None]) -> list[RankLooks]:
    """Return the same looks, with when those requests came that the other side ended before they entered their queue."""
    ended: dict[str, dict[int, float]] = {"prefill": {}, "decode": {}}
    for look in looks:
        for room, last in look.last.items():
            if last.ended and look.identity.role in ended:
                there = ended[look.identity.role]
                there[room] = min(last.age_s, there.get(room, last.age_s))
    found = []
    for n, look in enumerate(looks):
        other = ended.get(OTHER.get(look.identity.role, ""), {})
        entries = look.second.rooms if other and look.second is not None else ()
        wanted = {(e.room, e.rid) for e in entries if 0 <= e.age_s + SAME_S < other.get(e.room, -1.0)}
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
    """Return the last that ``recording`` says of each of ``rooms``; rooms it never saw are left out."""
    wanted = set(rooms)
    when: dict[int, tuple[int, str, bool]] = {}
    reasons: dict[int, str] = {}

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
            note(event.room, event.mono_ns, f"entered {event.queue}", ended=False)
    for stream in recording.streams:
        for row, item in stream.sightings(wanted):
            if item.action in _FAILS or (item.action, stream.queue) in _DONE:
                note(item.room, int(stream.table["t_done"][row]), _ENDS[item.action], ended=True)
    return {
        room: Last(what, max(0.0, (now_ns - mono_ns) / 1e9), ended, reasons.get(room, ""))
        for room, (mono_ns, what, ended) in when.items()
    }


_FAILS = (int(Action.FAILED), int(Action.ABORTED))
_DONE = ((int(Action.COMMITTED), "prefill.inflight"), (int(Action.COMMITTED), "decode.transfer"))
_ENDS = {int(Action.COMMITTED): "Success", int(Action.FAILED): "Failed", int(Action.ABORTED): "aborted"}
