"""Reads out of a recording who owned which slot, what landed when, and where a slot held another room. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pdctl.model import Action, EventKind, KVPoll
from pdctl.probes.metadata.model import History, Mismatch
from pdctl.probes.recorded import untrusted
from pdctl.recording import format as f

if TYPE_CHECKING:
    from pdctl.recording.reader import Event, Recording
    from pdctl.recording.streams import Stream

MAX_RUNS = 4000
"""Runs of equal rounds read back per queue."""
_SLOTTED = ("decode.transfer", "prefill.inflight")


def history(recording: Recording) -> History:
    """Return what ``recording`` tells of slots and rooms."""
    events = recording.events()
    found = History(whole=bool(events) and events[0].seq == 1, problems=untrusted(recording))

    def wall(mono_ns: int) -> float:
        return (recording.start_wall_ns + mono_ns - recording.start_mono_ns) / 1e9

    for event in events:
        _take(found, event, wall(event.mono_ns))
    for stream in recording.streams:
        found.whole &= _items(found, stream, wall)
    found.mismatches.sort(key=lambda m: m.when_s)
    return found


def _take(found: History, event: Event, when: float) -> None:
    if event.room:
        found.rooms.add(event.room)
    if event.kind is EventKind.ENQUEUE and event.slot >= 0:
        _owned(found, event.slot, event.room)
    elif event.kind is EventKind.META_SENT and event.b == 0:
        found.sent[event.room, event.slot, event.a] = when
    elif event.kind is EventKind.LANDED:
        found.landed[event.slot, event.room] = (when, event.a / 1e9)
    elif (event.kind is EventKind.STATE and event.a == KVPoll.FAILED) or (
        event.kind is EventKind.SLOT_FREE and event.room
    ):
        found.ended[event.room] = when
    elif event.kind is EventKind.FAULT_FIRED:
        found.faults[event.room] = event.text


def _owned(found: History, slot: int, room: int) -> None:
    owners = found.owners.setdefault(slot, [])
    if room and (not owners or owners[-1] != room):
        owners.append(room)


def _items(found: History, stream: Stream, wall: object) -> bool:
    """Take the requests of the rounds of one queue; returns whether all of its rounds could be read."""
    assert callable(wall)
    first = max(0, len(stream.table) - MAX_RUNS)
    whole = first == 0 and int(stream.table["ordinal"][0]) == 0
    for index in range(first, len(stream.table)):
        rows = stream.rows(index)
        if rows is None:
            whole = False
            continue
        if stream.queue not in _SLOTTED:
            found.rooms.update(rows["room"].tolist())
            continue
        run = stream.run(index)
        when = wall(run.t_done or run.t_enter)
        for room, slot, action in zip(
            rows["room"].tolist(), rows["slot"].tolist(), rows["action"].tolist(), strict=True
        ):
            found.rooms.add(room)
            if slot >= 0:
                _owned(found, slot, room)
            if action not in (Action.KEPT, 255):
                found.ended[room] = when
        if stream.queue == "decode.transfer":
            wrong = rows[
                (rows["flags"] & f.ITEM_FOUND_KNOWN != 0)
                & (rows["found"] != 0)
                & (rows["found"] != rows["room"])
                & np.isin(rows["action"], (Action.COMMITTED, Action.ABORTED))
            ]
            found.mismatches += [
                Mismatch(int(row["slot"]), int(row["room"]), int(row["found"]), int(row["action"]), when)
                for row in wrong
            ]
    return whole
