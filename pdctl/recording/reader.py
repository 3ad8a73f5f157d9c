"""Reads recordings: live ones, closed ones, those of dead ranks, and damaged ones as far as they can be trusted.

A record counts only if its checksum holds and its sequence number fits its place. Requests of a round are rebuilt from the
last full list before it; where that or anything between is gone, the round is known but its requests are not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from pdctl.model import QUEUES, UNKNOWN, EventKind, GroupInfo, Identity, Phase
from pdctl.recording import format as f

_ITEM = np.dtype(f.ITEM_DTYPE)
_STATES = {f.STATE_WRITING: "writing", f.STATE_CLOSED: "closed", f.STATE_STOPPED: "stopped"}


class BadRecording(ValueError):
    """The file is not a recording this pdctl can read; the message says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """``repeat`` equal rounds of one stream, from round ``ordinal`` on. Times are ns of the rank's monotonic clock.

    visit: turn of the scheduler of the first round. n / hash: length and order-sensitive hash of the list polled.
    n_after / after_hash: the same of what was kept. phase: how far the *last* of the rounds got; t_enter: when it began;
    t_done: when the last one that was applied was applied (0: none).
    """

    queue: str
    group: int
    phase: Phase
    full: bool
    n: int
    n_after: int
    ordinal: int
    repeat: int
    visit: int
    t_first: int
    t_enter: int
    t_done: int
    hash: int
    after_hash: int
    items_start: int
    items_count: int
    items_crc: int

    @property
    def last(self) -> int:
        """Ordinal of the last round of the run."""
        return self.ordinal + self.repeat - 1


@dataclass(frozen=True, slots=True)
class Item:
    """One request in one round. found is None where the slot was not looked at; polls are KVPoll values or UNKNOWN."""

    room: int
    slot: int
    local: int
    gated: int
    reduced: int
    action: int
    found: int | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened once; :class:`pdctl.model.EventKind` explains ``a``, ``b`` and ``text``."""

    seq: int
    mono_ns: int
    kind: EventKind
    queue: str
    slot: int
    room: int
    a: int
    b: int
    text: str


@dataclass(frozen=True, slots=True)
class Visits:
    """Turns of the scheduler at one queue so far; whether the last found it empty; when that was (monotonic ns)."""

    count: int
    empty: bool
    mono_ns: int


@dataclass(slots=True)
class Stream:
    """All rounds of one queue over one group that the file still holds, oldest first."""

    queue: str
    group: GroupInfo
    runs: list[Run] = field(default_factory=list)
    _items: NDArray[Any] = field(default_factory=lambda: np.zeros(0, _ITEM))
    _cache: dict[int, NDArray[Any] | None] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """Ordinal of the oldest round known, 0 when there is none."""
        return self.runs[0].ordinal if self.runs else 0

    @property
    def last(self) -> int:
        """Ordinal of the newest round entered, -1 when there is none."""
        return self.runs[-1].last if self.runs else -1

    def at(self, ordinal: int) -> Run | None:
        """Return the run that contains round ``ordinal``, None where it is not (or no longer) in the file."""
        lo = bisect_left(self.runs, ordinal, key=lambda r: r.last)
        return self.runs[lo] if lo < len(self.runs) and self.runs[lo].ordinal <= ordinal else None

    def items(self, run: Run) -> list[Item] | None:
        """Return the requests of a run in queue order, None where they can't be rebuilt."""
        rows = self._rows(self._index(run))
        if rows is None:
            return None
        return [
            Item(
                room,
                slot,
                local,
                gated,
                reduced if run.phase > Phase.ENTERED or run.repeat > 1 else UNKNOWN,
                action if run.phase is Phase.APPLIED or run.repeat > 1 else UNKNOWN,
                found if flags & f.ITEM_FOUND_KNOWN and (run.phase > Phase.ENTERED or run.repeat > 1) else None,
            )
            for room, found, slot, _, local, gated, reduced, action, flags, _ in rows.tolist()
        ]

    def rows(self, run: Run) -> NDArray[Any] | None:
        """Return the requests of a run as a structured array (format.ITEM_DTYPE), None where they can't be rebuilt.

        Fields the run's phase has not reached yet are not meaningful in it; :meth:`items` hides them.
        """
        return self._rows(self._index(run))

    def _index(self, run: Run) -> int:
        lo = bisect_left(self.runs, run.ordinal, key=lambda r: r.ordinal)
        if lo == len(self.runs) or self.runs[lo] is not run:
            raise ValueError("the run is not of this stream")
        return lo

    def _batch(self, run: Run) -> NDArray[Any] | None:
        cap = len(self._items)
        if not cap or run.items_count > cap:
            return None
        at = run.items_start % cap
        rows = self._items[at : at + run.items_count]
        if len(rows) < run.items_count:
            rows = np.concatenate([rows, self._items[: run.items_count - len(rows)]])
        return rows if crc32(rows.tobytes()) == run.items_crc else None

    def _rows(self, index: int) -> NDArray[Any] | None:
        if index in self._cache:
            return self._cache[index]
        start = index
        while start > 0 and not self.runs[start].full and start not in self._cache:
            if self.runs[start].ordinal != self.runs[start - 1].last + 1:
                break
            start -= 1
        for at in range(start, index + 1):
            if at not in self._cache:
                self._cache[at] = self._step(at)
        return self._cache[index]

    def _step(self, index: int) -> NDArray[Any] | None:
        run = self.runs[index]
        batch = self._batch(run)
        if batch is None:
            return None
        if run.full:
            return batch if len(batch) == run.n else None
        before = self._cache.get(index - 1)
        if before is None or self.runs[index - 1].last + 1 != run.ordinal:
            return None
        rows = before[before["action"] == 0]
        rows["index"] = np.arange(len(rows), dtype=np.uint32)
        rows = np.concatenate([rows, np.zeros(max(0, run.n - len(rows)), _ITEM)])
        if len(rows) != run.n or (len(batch) and batch["index"].max() >= run.n):
            return None
        rows[batch["index"]] = batch
        return rows


@dataclass(slots=True)
class Recording:
    """A recording as read at one moment. problems: what could not be trusted, in words."""

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
    _data: bytes
    _events: tuple[int, int]

    def stream(self, queue: str, kind: str | None = None) -> Stream | None:
        """Return the stream of ``queue`` (over the group of ``kind``), None when it was never polled."""
        for stream in self.streams:
            if stream.queue == queue and (kind is None or stream.group.kind == kind):
                return stream
        return None

    def events(self) -> list[Event]:
        """Return the events still in the file, oldest first."""
        return sorted(self._read_events(), key=lambda event: event.seq)

    def _read_events(self) -> Iterator[Event]:
        offset, cap = self._events
        data = self._data
        for place in _used(data, offset, cap, f.EVENT_SIZE):
            at = offset + place * f.EVENT_SIZE
            body = data[at : at + f.EVENT.size]
            if crc32(body) != _u32(data, at + f.EVENT_CRC_OFFSET):
                continue
            seq, mono, kind, queue, _, slot, room, a, b, text = f.EVENT.unpack(body)
            if (seq - 1) % cap != place or kind not in _KINDS:
                continue
            name = QUEUES[queue] if queue < len(QUEUES) else ""
            yield Event(
                seq, mono, EventKind(kind), name, slot, room, a, b, text.rstrip(b"\0").decode("utf-8", "replace")
            )


_ZERO8 = b"\0" * 8
_KINDS = {int(kind) for kind in EventKind}


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def read(path: Path) -> Recording:
    """Read the recording at ``path``.

    Raises OSError when the file can't be read and BadRecording when it is no recording, is of a newer format, or is too
    short or damaged to say whose it is.
    """
    return parse(path.read_bytes(), str(path))


def parse(data: bytes, name: str = "") -> Recording:
    """Read a recording from bytes; :func:`read` says what is raised."""
    if len(data) < f.FIXED.size or data[:8] != f.MAGIC:
        raise BadRecording("not a pdctl recording" if len(data) >= 8 else "file is empty or cut off in its first bytes")
    (_, version, header, size, wall, mono, pid, state, start, *rings) = f.FIXED.unpack_from(data)
    if version != f.VERSION:
        raise BadRecording(f"recording format {version}; this pdctl reads format {f.VERSION}")
    if header != f.HEADER_SIZE or tuple(rings) != f.layout(size):
        raise BadRecording("header is damaged")
    identity = _identity(data)
    problems = []
    if len(data) < size:
        problems.append(f"cut off: {len(data)} of {size} bytes")
    ticks, tick_ns = f.PULSE.unpack_from(data, f.PULSE_OFFSET)
    rounds_off, rounds_cap, items_off, items_cap, events_off, events_cap = rings
    items = (
        np.frombuffer(data, _ITEM, max(0, min(items_cap, (len(data) - items_off) // f.ITEM_SIZE)), items_off)
        if (len(data) > items_off)
        else np.zeros(0, _ITEM)
    )
    if len(items) < items_cap:
        items = np.concatenate([items, np.zeros(items_cap - len(items), _ITEM)])
    streams, torn = _streams(data, rounds_off, rounds_cap, identity, items)
    if torn:
        problems.append(f"{torn} round record(s) torn and left out")
    visits = _visits(data)
    if not ticks and visits:  # an engine whose loop has no seam of its own
        last = max(visits.values(), key=lambda v: v.mono_ns)
        ticks, tick_ns = last.count, last.mono_ns
    return Recording(
        path=name,
        identity=identity,
        pid=pid,
        proc_start=start,
        start_wall_ns=wall,
        start_mono_ns=mono,
        state=_STATES.get(state, "unknown"),
        ticks=ticks,
        tick_mono_ns=tick_ns,
        streams=streams,
        problems=problems,
        visits=visits,
        _data=data,
        _events=(events_off, events_cap),
    )


def _visits(data: bytes) -> dict[str, Visits]:
    visits = {}
    for code, queue in enumerate(QUEUES):
        word, mono_ns = f.VISITS.unpack_from(data, f.VISITS_OFFSET + 16 * code)
        if word:
            visits[queue] = Visits(word & ~f.EMPTY_BIT, bool(word & f.EMPTY_BIT), mono_ns)
    return visits


def _identity(data: bytes) -> Identity:
    if len(data) < f.IDENTITY_OFFSET:
        raise BadRecording("cut off inside its header")
    length, crc = f.IDENTITY_FIELDS.unpack_from(data, f.IDENTITY_OFFSET_FIELDS)
    raw = data[f.IDENTITY_OFFSET : f.IDENTITY_OFFSET + length]
    if length > f.IDENTITY_MAX or len(raw) != length or crc32(raw) != crc:
        raise BadRecording("its identity is damaged: the rank it belongs to can't be told")
    try:
        return msgspec.json.decode(raw, type=Identity)
    except msgspec.MsgspecError as error:
        raise BadRecording(f"its identity can't be read: {error}") from None


_Record = tuple[int, int, int, int, int, int, int, int, tuple[Any, ...]]
"""A round as stored: seq, stream, queue code, group index, phase and flags, repeat, t_enter, t_done; then the tail."""


def _round_at(data: bytes, at: int) -> _Record | None:
    body = data[at : at + f.ROUND_BODY_SIZE]
    if len(body) < f.ROUND_BODY_SIZE or crc32(body) != _u32(data, at + f.ROUND_CRC_OFFSET):
        return None
    return (*f.ROUND_HEAD.unpack_from(body), f.ROUND_TAIL.unpack_from(body, f.ROUND_HEAD.size))


def _streams(data: bytes, offset: int, cap: int, identity: Identity, items: NDArray[Any]) -> tuple[list[Stream], int]:
    torn = 0
    found: dict[int, _Record] = {}
    for place in _used(data, offset, cap, f.ROUND_SIZE):
        record = _round_at(data, offset + place * f.ROUND_SIZE)
        if record is None or (record[0] - 1) % cap != place:
            torn += 1
            continue
        found[record[0]] = record
    by_stream: dict[int, list[Run]] = {}
    for seq in sorted(found):
        by_stream.setdefault(found[seq][1], []).append(_run(found[seq]))
    for stream_id in range(f.MAX_STREAMS):
        live = _live_cell(data, stream_id)
        if live is not None:
            rounds = by_stream.setdefault(stream_id, [])
            if not rounds or live.ordinal > rounds[-1].ordinal:
                rounds.append(live)
    streams = []
    for runs in by_stream.values():
        group = _group(identity, runs[-1].group)
        streams.append(Stream(runs[-1].queue, group, runs, items))
    streams.sort(key=lambda s: QUEUES.index(s.queue))
    return streams, torn


def _used(data: bytes, offset: int, cap: int, size: int) -> list[int]:
    """Return the places of a ring that something was written to; records begin with their sequence number, from 1 on."""
    whole = max(0, min(cap, (len(data) - offset) // size))
    if not whole:
        return []
    first = np.frombuffer(data, "<u8", whole * size // 8, offset)[:: size // 8]
    return [int(place) for place in np.flatnonzero(first)]


def _live_cell(data: bytes, stream_id: int) -> Run | None:
    cells = []
    for half in (0, 1):
        at = f.LIVE_OFFSET + (2 * stream_id + half) * f.ROUND_SIZE
        if data[at : at + 8] not in (_ZERO8, b""):
            record = _round_at(data, at)
            if record is not None:
                cells.append(record)
    if not cells:
        return None
    newest = max(cells)
    (applied,) = f.DONE.unpack_from(data, f.DONE_OFFSET + 8 * stream_id)
    return _run(newest, applied=applied == newest[0])


def _run(record: _Record, *, applied: bool = False) -> Run:
    _, _, queue, group, flags, repeat, t_enter, t_done, tail = record
    n, n_after, ordinal, visit, t_first, list_hash, after_hash, start, count, crc = tail
    return Run(
        queue=QUEUES[queue],
        group=group,
        phase=Phase.APPLIED if applied else Phase(flags & 15),
        full=bool((flags >> 4) & f.FLAG_FULL),
        n=n,
        n_after=n_after,
        ordinal=ordinal,
        repeat=repeat,
        visit=visit,
        t_first=t_first,
        t_enter=t_enter,
        t_done=t_done,
        hash=list_hash,
        after_hash=after_hash,
        items_start=start,
        items_count=count,
        items_crc=crc,
    )


def _group(identity: Identity, index: int) -> GroupInfo:
    if index < len(identity.groups):
        return identity.groups[index]
    return GroupInfo(kind=f"group {index}", ranks=(identity.world_rank,), world=identity.world)


__all__ = ["BadRecording", "Event", "Item", "Recording", "Run", "Stream", "parse", "read"]
