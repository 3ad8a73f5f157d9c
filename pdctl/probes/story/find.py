"""Which rooms are meant by a room's number or a request id, and what was perhaps meant where none is. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pdctl.protocol.model import EventKind
from pdctl.recording.format import kept_text
from pdctl.recording.reader import Recording

MOST_COMPARED = 5000
"""Rooms and rids, the most recent ones, that a wrong one is compared with."""


@dataclass(frozen=True)
class Known:
    """A room that recordings know. wall_ns: when it was last heard of, by the wall clock of that rank."""

    room: int
    rids: tuple[str, ...]
    wall_ns: int


def known_rooms(recordings: Iterable[Recording]) -> list[Known]:
    """Return the rooms that events or the newest rounds name, the most recent ones first."""
    rids: dict[int, dict[str, None]] = {}
    last: dict[int, int] = {}
    for recording in recordings:
        to_wall = recording.start_wall_ns - recording.start_mono_ns
        for event in recording.events():
            if event.room:
                last[event.room] = max(last.get(event.room, 0), event.mono_ns + to_wall)
                if event.kind is EventKind.ENQUEUE and event.text:
                    rids.setdefault(event.room, {})[event.text] = None
        for stream in recording.streams:
            rows = stream.rows(len(stream) - 1)
            for room in rows["room"].tolist() if rows is not None else ():
                last[room] = max(last.get(room, 0), stream.newest.t_enter + to_wall)
    found = [Known(room, tuple(rids.get(room, ())), at) for room, at in last.items() if room]
    return sorted(found, key=lambda known: -known.wall_ns)


def room_of(asked: str) -> int:
    """Return the number that a room of this name has, 0 for what is no number."""
    return int(asked) if asked.isascii() and asked.isdecimal() and len(asked) <= 20 else 0


def meant(
    asked: str, known: Sequence[Known], recordings: Iterable[Recording], *, hashed: Sequence[str] = ()
) -> list[int]:
    """Return the rooms that ``asked`` means: the room of that number, and those of the request of that id.

    hashed: what the request may be called where names were taken out of the recordings.
    """
    rooms: dict[int, None] = {}
    number = room_of(asked)
    if 0 < number < 1 << 64 and (
        any(k.room == number for k in known) or any(s.sightings([number]) for r in recordings for s in r.streams)
    ):
        rooms[number] = None
    names = {kept_text(asked), *hashed}
    rooms.update(dict.fromkeys(k.room for k in reversed(known) if not names.isdisjoint(k.rids)))
    return list(rooms)


def hashed(rid: str, salts: Sequence[str]) -> list[str]:
    """Return what a request id is called in traces whose names are hashed with these salts."""
    if not salts:
        return []
    from pdctl.trace.redact import Names

    return [Names(salt).rid(rid) for salt in salts]


def called_by(
    asked: Iterable[str], known: Sequence[Known], recordings: Sequence[Recording], salts: Sequence[str]
) -> tuple[list[int], list[str]]:
    """Return the rooms that any of these names means, and the names that are no such room, with all ids of the rooms."""
    rooms: dict[int, None] = {}
    ids: dict[str, None] = {}
    for name in asked:
        found = meant(name, known, recordings, hashed=hashed(name, salts))
        rooms.update(dict.fromkeys(found))
        if room_of(name) not in found:
            ids[name] = None
    ids.update(dict.fromkeys(rid for one in known if one.room in rooms for rid in one.rids))
    return list(rooms), list(ids)


_NEAREST = 5


def nearest(asked: str, known: Sequence[Known]) -> list[str]:
    """Return what was perhaps meant, best first, with its request id; the most recent rooms where nothing is like it."""
    names: dict[str, Known] = {}
    for room in known[:MOST_COMPARED]:
        for name in (str(room.room), *room.rids):
            names.setdefault(name, room)
    close = difflib.get_close_matches(asked, names, _NEAREST, 0.7)
    close += [name for name in names if len(asked) >= 4 and asked in name and name not in close]
    chosen: dict[int, str] = {}
    for name in close or [str(room.room) for room in known]:
        k = names.get(name)
        if k is not None and k.room not in chosen:
            rid = f" (rid {k.rids[0]})" if k.rids else ""
            chosen[k.room] = f"{k.room}{rid}"
        if len(chosen) == _NEAREST:
            break
    return list(chosen.values())
