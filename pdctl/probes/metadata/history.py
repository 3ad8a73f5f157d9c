"""Reads out of a recording who owned which slot, what landed when, and where a slot held another room. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pdctl.probes.metadata.model import History, Mismatch, WrongKV
from pdctl.protocol.model import UNKNOWN, Action, EventKind, KVPoll
from pdctl.protocol.notes import WRONG_ELSEWHERE, WRONG_KV
from pdctl.recording.requests import untrusted
from pdctl.recording.streams import foreign

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pdctl.recording.reader import Recording
    from pdctl.recording.streams import Stream

MAX_RUNS = 4000
"""Runs of equal rounds read back per queue, and as many before them as their lists are built on."""
_WRONG, _ELSEWHERE = WRONG_KV.encode(), WRONG_ELSEWHERE.encode()
_SLOTTED = ("decode.transfer", "prefill.inflight")


def history(recording: Recording) -> History:
    """Return what ``recording`` tells of slots and rooms."""
    events = recording.event_table()
    found = History(whole=len(events) > 0 and int(events["seq"][0]) == 1, problems=untrusted(recording))
    to_wall = recording.start_wall_ns - recording.start_mono_ns
    _events(found, events, to_wall)
    for stream in recording.streams:
        found.whole &= _items(found, stream, to_wall)
    found.mismatches.sort(key=lambda m: m.when_s)
    return found


def _events(found: History, events: NDArray[Any], to_wall: int) -> None:
    when = (events["mono_ns"] + to_wall) / 1e9
    kind, room, slot, a = events["kind"], events["room"], events["slot"], events["a"]
    found.rooms.update(room.tolist())
    found.rooms.discard(0)
    entered = (kind == int(EventKind.ENQUEUE)) & (slot >= 0)
    _owned(found, slot[entered], room[entered])
    sent = (kind == int(EventKind.META_SENT)) & (events["b"] == 0)
    keys = zip(room[sent].tolist(), slot[sent].tolist(), a[sent].tolist(), strict=True)
    found.sent.update(zip(keys, when[sent].tolist(), strict=True))
    landed = kind == int(EventKind.LANDED)
    where = zip(slot[landed].tolist(), room[landed].tolist(), strict=True)
    late = zip(when[landed].tolist(), (a[landed] / 1e9).tolist(), strict=True)
    found.landed.update(zip(where, late, strict=True))
    ended = (kind == int(EventKind.STATE)) & (a == int(KVPoll.FAILED)) | (kind == int(EventKind.SLOT_FREE)) & (room > 0)
    found.ended.update(zip(room[ended].tolist(), when[ended].tolist(), strict=True))
    for event in events[kind == int(EventKind.FAULT_FIRED)]:
        found.faults[int(event["room"])] = bytes(event["text"]).decode("utf-8", "replace")
    failed = kind == int(EventKind.FAILURE)
    for of, when_s, reason in zip(
        room[failed].tolist(), when[failed].tolist(), events["text"][failed].tolist(), strict=True
    ):
        if reason.startswith(_WRONG):
            found.wrong_kv[of] = WrongKV(of, when_s, not reason.startswith(_ELSEWHERE))


def _owned(found: History, slots: NDArray[Any], rooms: NDArray[Any]) -> None:
    """Add owners, the oldest first; one that is said to own its slot again and again is taken once."""
    order = np.flatnonzero(rooms)
    order = order[np.argsort(slots[order], kind="stable")]
    slots, rooms = slots[order], rooms[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (slots[1:] != slots[:-1]) | (rooms[1:] != rooms[:-1])
    for slot, room in zip(slots[new].tolist(), rooms[new].tolist(), strict=True):
        owners = found.owners.setdefault(slot, [])
        if not owners or owners[-1] != room:
            owners.append(room)


def _items(found: History, stream: Stream, to_wall: int) -> bool:
    """Take the requests of the rounds of one queue; returns whether all of its rounds could be read."""
    changes = stream.changes(MAX_RUNS)
    items, row = changes.items, changes.row
    room, slot, action = items["room"], items["slot"], items["action"]
    found.rooms.update(room.tolist())
    if stream.queue in _SLOTTED:
        table = stream.table
        when = (np.where(table["t_done"] != 0, table["t_done"], table["t_enter"]) + to_wall) / 1e9
        owned = slot >= 0
        _owned(found, slot[owned], room[owned])
        ended = (action != int(Action.KEPT)) & (action != UNKNOWN)
        found.ended.update(zip(room[ended].tolist(), when[row[ended]].tolist(), strict=True))
        if stream.queue == "decode.transfer":
            wrong = foreign(items)
            columns = [items[name][wrong].tolist() for name in ("slot", "room", "found", "action")]
            columns.append(when[row[wrong]].tolist())
            found.mismatches += [Mismatch(*values) for values in zip(*columns, strict=True)]
    return changes.first == 0 and stream.first == 0 and bool(changes.known.all())
