"""What one recording says of one room, on that rank's own clock: its events, and its polls in rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pdctl.probes.queues.formatting import ACTIONS
from pdctl.probes.story.model import KINDS, Lost, Moment, QueueStay, RankStory
from pdctl.probes.story.polls import Polls, polls
from pdctl.protocol.model import OTHER, Action, EventKind, KVPoll, poll_name
from pdctl.protocol.notes import EVERY_REQUEST, WRONG_ELSEWHERE, WRONG_KV
from pdctl.recording.reader import Event, Recording


def rank_story(recording: Recording, room: int) -> RankStory:
    """Return all that ``recording`` has of ``room``; no moments where it never saw it."""
    events = recording.events()
    own = [event for event in events if _concerns(event, room)]
    seen = [polls(stream, room, recording) for stream in recording.streams]
    moments = [*_events(own, events), *(moment for p in seen for moment in p.moments)]
    if not moments:
        return RankStory(lost=_lost(recording, events))
    came = any(event.kind is EventKind.ENQUEUE for event in own) or any(p.spells for p in seen)
    if not came:
        moments = [_told_by(OTHER.get(recording.identity.role, "the other side"), m) for m in moments]
    decided = {(p.queue, spell.how) for p in seen for spell in p.spells if spell.left_ns is not None}
    moments = [m for m in moments if not (m.kind == "dequeue" and (m.queue, m.value) in decided)]
    watched = {m.slot for m in moments if m.kind == "landed" and m.round < 0 and not m.value}
    moments = [m for m in moments if not (m.kind == "landed" and m.round >= 0 and not m.value and m.slot in watched)]
    moments += _aborts(events, own, min(m.ns for m in moments), _end(moments))
    moments += _allocated(moments, events)
    moments = _settled(moments, own)
    stays = _stays(own, seen)
    ended = {stay.queue for stay in stays if stay.until_ns is not None}
    moments += [p.end for p in seen if p.end is not None and p.queue not in ended]
    moments.sort(key=order)
    lost = [*_lost(recording, events), *(lost for p in seen for lost in p.lost)]
    lost += [Lost(p.gone) for p in seen if p.gone and p.queue not in ended]
    return RankStory(moments, stays, lost, came)


def _told_by(side: str, m: Moment) -> Moment:
    """Return a state that a message of the other side made: no request with the room is here."""
    return replace(m, text=f"told by {side}: {m.text}") if m.kind in ("handshake", "state") else m


def order(moment: Moment) -> tuple[int, int]:
    """Return the sort key of moments of one rank: time, and at one time what leads to what."""
    return moment.ns, KINDS.index(moment.kind)


def rids_of(recording: Recording, room: int) -> list[str]:
    """Return the request ids that entered a queue under ``room``, in order, each once."""
    return list(dict.fromkeys(e.text for e in recording.events() if e.room == room and e.kind is EventKind.ENQUEUE))


def _settled(moments: Iterable[Moment], own: Sequence[Event]) -> list[Moment]:
    """Return the moments with decisions no later than what they led to.

    A round's time is that of its end, when the request that was decided on in it has given back its slot already.
    """
    ends = [e for e in own if e.kind in (EventKind.SLOT_FREE, EventKind.DEQUEUE)]
    settled = []
    for m in moments:
        if m.until_ns is None and m.round >= 0 and m.kind in ("decision", "landed"):
            led_to = [e.mono_ns for e in ends if m.since_ns <= e.mono_ns <= m.ns]
            m = replace(m, ns=min([m.ns, *led_to]))  # noqa: PLW2901
        settled.append(m)
    return settled


def _concerns(event: Event, room: int) -> bool:
    return event.room == room or (event.kind is EventKind.LANDED and event.b == room)


def _end(moments: Iterable[Moment]) -> int:
    return max(max(m.ns, m.until_ns or m.ns) for m in moments)


# ---- events ----------------------------------------------------------------------------------------------------------


def _events(own: Sequence[Event], every: Sequence[Event]) -> Iterable[Moment]:
    state, arrived, fired = "", set[str](), dict[int, str]()
    for e in own:
        if e.kind is EventKind.ENQUEUE:
            yield _enqueued(e, first=e.text not in arrived)
            arrived.add(e.text)
        elif e.kind is EventKind.STATE:
            now = poll_name(e.a)
            kind = "handshake" if e.a == KVPoll.WAITING_FOR_INPUT else "state"
            yield Moment(e.mono_ns, kind, f"state {state} → {now}" if state else f"state {now}", value=now)
            state = now
        else:
            moment = _event(e)
            if moment is not None:
                yield moment
        if e.kind is EventKind.FAULT_FIRED:
            fired[e.a] = e.text
    for e in every:
        if e.kind is EventKind.FAULT_ENDED and e.a in fired and e.room == 0:
            yield Moment(e.mono_ns, "fault", f"the fault {fired[e.a]} (number {e.a}) ended: {e.text}", value="ended")


def _enqueued(e: Event, *, first: bool) -> Moment:
    slot = f", slot {e.slot}" if e.slot >= 0 else ""
    if first:
        return Moment(e.mono_ns, "arrival", f"arrived in {e.queue}{slot}, rid {e.text}", e.queue, slot=e.slot)
    return Moment(e.mono_ns, "enqueue", f"entered {e.queue}{slot}", e.queue, slot=e.slot)


def _event(e: Event) -> Moment | None:
    """Return what a single event says, None for one that says nothing of a room by itself."""
    if e.kind is EventKind.DEQUEUE:
        how = ACTIONS.get(e.a, "left")
        return Moment(e.mono_ns, "dequeue", f"left {e.queue}: {how}", e.queue, slot=e.slot, value=how)
    if e.kind is EventKind.DP_REGISTER:
        return Moment(e.mono_ns, "registration", f"registered at the bootstrap server: dp {e.a}", value=f"dp {e.a}")
    if e.kind is EventKind.DP_QUERY:
        return Moment(e.mono_ns, "query", f"asked {e.text or 'the bootstrap server'} which dp rank has it")
    if e.kind is EventKind.DP_ANSWER:
        said = f"dp {e.a}" if e.a >= 0 else "not registered"
        return Moment(e.mono_ns, "answer", f"was answered: {said}", value=said)
    if e.kind is EventKind.ABORT:
        return Moment(e.mono_ns, "abort", f"an abort reached it: {e.text}", value=e.text)
    if e.kind is EventKind.SLOT_FREE:
        return Moment(e.mono_ns, "freed", f"gave back slot {e.slot}", slot=e.slot)
    if e.kind is EventKind.META_SENT:
        to = f"decode tp{e.a}, slot {e.slot}"
        if e.b == 0:
            return Moment(e.mono_ns, "sent", f"sent its metadata, after its KV, to {to}", slot=e.slot, peer=e.a)
        text = f"could not send its metadata to {to}: the transfer returned {e.b}"
        return Moment(e.mono_ns, "sent", text, slot=e.slot, peer=e.a, value="failed")
    if e.kind is EventKind.LANDED:
        after = f", {e.a / 1e6:,.1f} ms after Success"
        if e.b == e.room:
            return Moment(e.mono_ns, "landed", f"metadata landed in slot {e.slot}{after}", slot=e.slot)
        text = f"room {e.b} landed in slot {e.slot}{after}: the slot belongs to room {e.room}"
        return Moment(e.mono_ns, "landed", text, slot=e.slot, value="foreign")
    if e.kind is EventKind.FAULT_FIRED:
        aimed = f", aimed at decode tp{e.b}" if e.b >= 0 else ""
        return Moment(e.mono_ns, "fault", f"the fault {e.text} (number {e.a}{aimed}) acted on it", value=e.text)
    if e.kind is EventKind.FAILURE:
        if e.text.startswith(WRONG_ELSEWHERE):
            return Moment(e.mono_ns, "failure", "the engine dropped it: its KV was wrong on another rank of the group")
        if e.text.startswith(WRONG_KV):
            return Moment(
                e.mono_ns, "failure", "the engine dropped it: its KV was not what prefill sent, by its checksum"
            )
        return Moment(e.mono_ns, "failure", f"the engine's reason of its failure: {e.text}")
    if e.kind is EventKind.NOTE:
        return Moment(e.mono_ns, "note", e.text)
    return None


def _aborts(events: Sequence[Event], own: Sequence[Event], since: int, until: int) -> Iterable[Moment]:
    """Return aborts by request id, or of everything, that came while the room was there."""
    rids = {e.text for e in own if e.kind is EventKind.ENQUEUE}
    for e in events:
        if e.kind is not EventKind.ABORT or e.room:
            continue
        if e.text in rids:
            yield Moment(e.mono_ns, "abort", f"an abort reached the rank for rid {e.text}", value=e.text)
        elif e.text == EVERY_REQUEST and since <= e.mono_ns <= until:
            yield Moment(e.mono_ns, "abort", "an abort of all requests reached the rank", value=e.text)


def _allocated(moments: Sequence[Moment], events: Sequence[Event]) -> Iterable[Moment]:
    """Return when the room got each of its slots: the event, or where its slot is first named.

    A SLOT_ALLOC has no room: it is this room's if the slot was not given back until the room is seen with it. The slot of
    META_SENT is the decode rank's.
    """
    named: dict[int, int] = {}
    for m in moments:
        if m.slot >= 0 and m.kind not in ("sent", "freed"):
            named[m.slot] = min(m.ns, named.get(m.slot, m.ns))
    for slot, at in named.items():
        taken: Event | None = None
        for e in events:
            if e.slot != slot or e.mono_ns > at:
                continue
            if e.kind is EventKind.SLOT_ALLOC:
                taken = e
            elif e.kind is EventKind.SLOT_FREE:
                taken = None
        if taken is not None:
            yield Moment(taken.mono_ns, "allocation", f"got metadata slot {slot}", slot=slot)
        else:
            yield Moment(at, "allocation", f"has metadata slot {slot} by now", slot=slot)


# ---- stays in queues -------------------------------------------------------------------------------------------------


def _stays(own: Sequence[Event], seen: Sequence[Polls]) -> list[QueueStay]:
    entered = [e for e in own if e.kind is EventKind.ENQUEUE]
    stays: list[QueueStay] = []
    for p in seen:
        for spell in p.spells:
            before = [e for e in entered if e.queue == p.queue and e.mono_ns <= spell.since_ns]
            since = before[-1].mono_ns if before else spell.since_ns
            entered = [e for e in entered if e not in before]
            until, how = spell.left_ns, spell.how
            if until is None:
                until, how = _gone(p.queue, since, own)
            if any(stay.queue == p.queue and stay.since_ns == since for stay in stays):
                continue  # polled over two groups: one stay
            stays.append(QueueStay(p.queue, since, until, how, bool(before)))
    for e in entered:
        until, how = _gone(e.queue, e.mono_ns, own)
        stays.append(QueueStay(e.queue, e.mono_ns, until, how))
    return sorted(stays, key=lambda stay: stay.since_ns)


def _gone(queue: str, since: int, own: Sequence[Event]) -> tuple[int | None, str]:
    """Return when other events show that the room had left a queue that no poll saw it leave, and how; None unknown."""
    for e in own:
        if e.mono_ns < since:
            continue
        if e.kind is EventKind.DEQUEUE and e.queue == queue:
            return e.mono_ns, ACTIONS.get(e.a, "left")
        if queue == "decode.pending" and (
            (e.kind is EventKind.DP_ANSWER and e.a >= 0)
            or (e.kind is EventKind.STATE and e.a == KVPoll.WAITING_FOR_INPUT)
        ):
            return e.mono_ns, ACTIONS[Action.MOVED]
        if queue == "decode.prealloc" and e.kind is EventKind.ENQUEUE and e.queue == "decode.transfer":
            return e.mono_ns, ACTIONS[Action.MOVED]
    return None, ""


def _lost(recording: Recording, events: Sequence[Event]) -> list[Lost]:
    lost = [Lost(f"{problem}") for problem in recording.problems]
    if events and events[0].seq > 1:
        lost.append(Lost("older events are overwritten", events[0].mono_ns))
    missing = events[-1].seq - events[0].seq + 1 - len(events) if events and not recording.excerpt else 0
    if missing:
        lost.append(Lost(f"{missing} event record{'s'[: missing != 1]} torn and left out"))
    if not events and recording.problems:
        lost.append(Lost("no events can be read: arrival, states and messages are not known"))
    return lost
