"""Reads recordings: live ones, closed ones, those of dead ranks, and damaged ones as far as they can be trusted.

A record counts only if its checksum holds and its sequence number fits its place. Requests of a round are rebuilt from the
last full list before it; where that or anything between is gone, the round is known but its requests are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from pdctl.protocol.model import QUEUES, EventKind, GroupInfo, Identity
from pdctl.recording import format as f
from pdctl.recording.header import BadRecording, Visits, parse_header
from pdctl.recording.rings import ROUND, Ring, among, distinct, events, possible_rounds, rounds, select_records
from pdctl.recording.source import FileSource, Source
from pdctl.recording.streams import Item, Run, Stream

_AGAIN_S = (0.002, 0.02, 0.1)
"""Pauses before a live file's torn records are looked at again."""
_KINDS = {int(kind): kind for kind in EventKind}


class Event(msgspec.Struct, frozen=True, gc=False):
    """Something that happened once; :class:`pdctl.protocol.model.EventKind` explains ``a``, ``b`` and ``text``."""

    seq: int
    mono_ns: int
    kind: EventKind
    queue: str
    slot: int
    room: int
    a: int
    b: int
    text: str


@dataclass(slots=True)
class Recording:
    """A recording as read at one moment. problems: what could not be trusted, in words.

    source, rings: its bytes, and (offset, capacity in records) of rounds, items and events in them. told: reads its events.
    excerpt: events and runs are left out of it (:mod:`pdctl.recording.excerpt`).
    """

    path: str
    identity: Identity
    pid: int
    proc_start: int
    start_wall_ns: int
    start_mono_ns: int
    state: str
    ticks: int
    tick_mono_ns: int
    streams: list[Stream]
    problems: list[str]
    visits: dict[str, Visits]
    source: Source
    rings: tuple[int, int, int, int, int, int]
    told: Callable[[Source, int, int], NDArray[Any]] = events
    excerpt: bool = False
    _table: NDArray[Any] | None = None
    _events: list[Event] | None = None

    def stream(self, queue: str, kind: str | None = None) -> Stream | None:
        """Return the stream of ``queue`` (over the group of ``kind``), None when it was never polled."""
        for stream in self.streams:
            if stream.queue == queue and (kind is None or stream.group.kind == kind):
                return stream
        return None

    @property
    def entered_last(self) -> Stream | None:
        """The stream of the round that the rank entered last, None if it entered none."""
        return max((stream for stream in self.streams if len(stream)), key=lambda s: s.newest.t_enter, default=None)

    def event_table(self) -> NDArray[Any]:
        """Return the events in the file as rings.EVENT, oldest first, as it was when this was first called.

        Use this to read all events: for a full ring of tens of thousands it is far cheaper than a list of :class:`Event`.
        """
        if self._table is None:
            self._table = _of_known_kinds(self.told(self.source, *self.rings[4:]))
        return self._table

    def events(self) -> list[Event]:
        """Return the events in the file, oldest first, as it was when they were first asked for."""
        if self._events is None:
            self._events = as_events(self.event_table())
        return self._events

    def events_told(self, kinds: Collection[EventKind], rooms: Collection[int] | None = None) -> list[Event]:
        """Return the events of these kinds about these rooms (None: about any), oldest first, of :meth:`event_table`."""
        table = self.event_table()
        meant = np.isin(table["kind"], list(map(int, kinds)))
        if rooms is not None:
            meant &= among(table["room"], rooms)
        return as_events(select_records(table, meant))

    def events_of(self, rooms: Collection[int], kinds: Collection[EventKind]) -> list[Event]:
        """Return the events of these kinds about these rooms, oldest first, as the file is now.

        Only these events are checked and decoded: a full ring costs a few milliseconds instead of a hundred.
        """
        return _events_of(self.source, self.rings[4:], rooms, kinds)


def read_events(path: Path, rooms: Collection[int] | None, kinds: Collection[EventKind]) -> list[Event]:
    """Return the events of these kinds about these rooms (None: about any) in the recording at ``path``, oldest first.

    The rounds are not read, so this is cheap for many ranks. Raises as :func:`read`.
    """
    source = FileSource(path)
    header = parse_header(source.read(0, f.HEADER_SIZE))
    return _events_of(source, header.rings[4:], rooms, kinds)


def _events_of(
    source: Source, place: tuple[int, int], rooms: Collection[int] | None, kinds: Collection[EventKind]
) -> list[Event]:
    codes = np.fromiter(map(int, kinds), np.uint8, len(kinds))

    def wanted(table: NDArray[Any]) -> NDArray[np.bool_]:
        meant = np.isin(table["kind"], codes)
        return meant if rooms is None else among(table["room"], rooms) & meant

    return as_events(_of_known_kinds(events(source, *place, wanted)))


def _of_known_kinds(table: NDArray[Any]) -> NDArray[Any]:
    known = np.isin(table["kind"], list(_KINDS))
    return table if known.all() else select_records(table, known)


def as_events(table: NDArray[Any]) -> list[Event]:
    """Return the events of a table of rings.EVENT, whose kinds are known, in its order."""
    queues = [QUEUES[code] if code < len(QUEUES) else "" for code in range(256)]
    columns = (table[name].tolist() for name in ("seq", "mono_ns", "kind", "queue", "slot", "room", "a", "b", "text"))
    return [
        Event(seq, mono, _KINDS[kind], queues[queue], slot, room, a, b, text.decode("utf-8", "replace"))
        for seq, mono, kind, queue, slot, room, a, b, text in zip(*columns, strict=True)
    ]


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def read(path: Path) -> Recording:
    """Read the recording at ``path``. The rounds are read now; requests and events are read at the first use.

    Raises OSError if the file can't be read. Raises BadRecording if it is no recording, if its format is newer, or if it is
    too short or damaged to identify its rank.
    """
    return read_from(FileSource(path), str(path))


def parse(data: bytes, name: str = "") -> Recording:
    """Read a recording from bytes; :func:`read` says what is raised."""
    return read_from(Source(data), name)


def read_from(
    source: Source,
    name: str = "",
    ended: Callable[[Source, int, int], Ring] = rounds,
    told: Callable[[Source, int, int], NDArray[Any]] = events,
) -> Recording:
    """Read the recording in ``source``; :func:`read` says what is raised.

    ended: reads its runs that ended. told: reads its events, once they are asked for.
    """
    head = source.read(0, f.HEADER_SIZE)
    header = parse_header(head)
    if len(head) < f.HEADER_SIZE:
        raise BadRecording("cut off inside its header")
    problems = []
    if source.size < header.size:
        problems.append(f"cut off: {source.size} of {header.size} bytes")
    if not header.pulse_fits:
        problems.append("its pulse can't be true and was left out")
    rounds_off, rounds_cap, items_off, items_cap, _, _ = header.rings
    # Read in the order in which the rank writes: its turns, the runs it is in, the runs that ended.
    live = live_runs(head, source.read(f.LIVE_OFFSET, f.RINGS_OFFSET - f.LIVE_OFFSET))
    closed = ended(source, rounds_off, rounds_cap)
    for pause_s in _AGAIN_S if header.state == f.STATE_WRITING and isinstance(source, FileSource) else ():
        if not closed.torn:
            break
        time.sleep(pause_s)  # one is being written, and its writer may have lost the processor in the middle
        closed = ended(source, rounds_off, rounds_cap)
    if closed.torn:
        problems.append(f"{closed.torn} round record(s) torn and left out")
    streams, untrue = _streams(closed.table, live, header.identity, source, (items_off, items_cap))
    if closed.untrue + untrue:
        problems.append(f"{closed.untrue + untrue} round record(s) that can't be true left out")
    return Recording(
        path=name,
        identity=header.identity,
        pid=header.pid,
        proc_start=header.proc_start,
        start_wall_ns=header.wall_ns,
        start_mono_ns=header.mono_ns,
        state=f.STATE_NAMES.get(header.state, "unknown"),
        ticks=header.ticks,
        tick_mono_ns=header.tick_mono_ns,
        streams=streams,
        problems=problems,
        visits=header.visits,
        source=source,
        rings=header.rings,
        told=told,
    )


def _whole(data: bytes, at: int) -> bool:
    return crc32(data[at : at + f.ROUND_BODY_SIZE]) == _u32(data, at + f.ROUND_CRC_OFFSET)


def live_runs(head: bytes, data: bytes) -> list[NDArray[Any]]:
    """Return the current run of each stream, one row each. If the newest cell is torn, the other cell counts."""
    rows = []
    for stream in range(f.MAX_STREAMS):
        cells = [(2 * stream + half) * f.ROUND_SIZE for half in (0, 1)]
        sound = [
            at for at in cells if at + f.ROUND_SIZE <= len(data) and data[at : at + 8] != b"\0" * 8 and _whole(data, at)
        ]
        if not sound:
            continue
        newest = max(sound, key=lambda at: int.from_bytes(data[at : at + 8], "little"))
        row = np.frombuffer(data, ROUND, 1, newest).copy()
        if not possible_rounds(row)[0]:
            continue
        entered, t_enter, applied = f.REPEATS.unpack_from(head, f.REPEATS_OFFSET + f.REPEATS.size * stream)
        repeat = entered & (1 << f.REPEAT_BITS) - 1
        if (
            repeat
            and 0 <= t_enter < f.MAX_MONO_NS
            and entered - repeat == int(row["seq"][0]) << f.REPEAT_BITS & (1 << 64) - 1
        ):
            phase = _APPLIED if applied == entered else _ENTERED
            row["flags"] = int(row["flags"][0]) & 0xF0 | phase
            row["repeat"], row["t_enter"] = repeat, t_enter
        rows.append(row)
    return rows


_ENTERED, _APPLIED = 1, 3


def _streams(
    closed: NDArray[Any], live: list[NDArray[Any]], identity: Identity, source: Source, items: tuple[int, int]
) -> tuple[list[Stream], int]:
    """Return the streams, and the number of runs left out because they contradict the others."""
    newest = {int(row["stream"][0]): row for row in live}
    streams, untrue = [], 0
    for number in sorted(set(distinct(closed["stream"]).tolist()) | set(newest)):
        rows = np.flatnonzero(closed["stream"] == number)
        row = newest.get(number)
        if row is not None and len(rows) and row["ordinal"][0] <= closed["ordinal"][rows[-1]]:
            row = None
        table = np.empty(len(rows) + (row is not None), ROUND)
        np.take(closed, rows, out=table[: len(rows)], mode="clip")
        if row is not None:
            table[-1:] = row
        fits = _in_order(table)
        untrue += len(table) - int(np.count_nonzero(fits))
        table = table if fits.all() else select_records(table, fits)
        streams.append(Stream(_group(identity, int(table["group"][-1])), table, source, items))
    return sorted(streams, key=lambda stream: QUEUES.index(stream.queue)), untrue


def _in_order(table: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which runs of a stream are in order: same queue, and both rounds and items after those of all earlier runs.

    So no two runs share items, and all lists together are no longer than their ring.
    """
    fits = table["queue"] == table["queue"][0]
    for first, count in (("ordinal", "repeat"), ("items_start", "items_count")):
        start, length = table[first].astype(np.int64), table[count].astype(np.int64)
        ends = np.where(fits & (length > 0), start + length, 0)
        reach = np.maximum.accumulate(ends)
        fits[1:] &= (start[1:] >= reach[:-1]) | (length[1:] == 0)
    found: NDArray[np.bool_] = fits
    return found


def _group(identity: Identity, index: int) -> GroupInfo:
    if index < len(identity.groups):
        return identity.groups[index]
    return GroupInfo(kind=f"group {index}", ranks=(identity.world_rank,), world=identity.world)


__all__ = ["BadRecording", "Event", "Item", "Recording", "Run", "Stream", "Visits", "parse", "read", "read_from"]
