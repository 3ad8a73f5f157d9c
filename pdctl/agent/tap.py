"""Turns an engine's polls into recorded rounds. One QueueTap per polled queue; runs on the scheduler's main thread.

The engine adapter calls, in this order and once per turn of the scheduler:

    tap.visit(queue)                  the queue is about to be polled (or skipped, when it is empty)
    tap.polled(pollers)               the poll function was called with these pollers
    tap.raw(polls)                    the polls before the metadata gate, where the engine has a gate
    tap.entering(group, data, width)  a collective is about to start with these bytes, ``width`` bytes a poll
    tap.left(group, data, width)      it returned these
    tap.decided(entry, action, found) the engine committed, failed or kept an entry, as seen at its own seam
    tap.leave(queue)                  the turn is over; this is the queue now

A turn that is equal to the one before costs a few list comparisons in C and a store into a mapped file before and after
the collective; everything else is done only when something changed, and then for what changed.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from operator import is_
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from pdctl.model import QUEUES, UNKNOWN, Action, KVPoll, Phase
from pdctl.recording import format as f

_now = time.monotonic_ns
_ENTERED, _REDUCED, _APPLIED = int(Phase.ENTERED), int(Phase.REDUCED), int(Phase.APPLIED)
_SUCCESS = int(KVPoll.SUCCESS)
_pack_tail = f.ROUND_TAIL.pack
_pack_item = f.ITEM.pack
_FULL = f.FLAG_FULL << 4
_FULL_SHARE = 16
"""A full list is written at least once every 1/16 of a ring, so that what the rings hold can be rebuilt."""
_MANY = 48
"""From this many items on, numpy builds them faster than struct."""


class Live(Protocol):
    """Where the run that a stream is in is kept; :class:`pdctl.recording.writer.LiveRun` is one."""

    def store(self, head: tuple[int, ...], tail: bytes) -> None:
        """Store a run, or a new phase of it."""

    def again(self, repeat: int, t_enter: int) -> None:
        """Store that the run was entered once more."""

    def done(self) -> None:
        """Store that the run's last round has been applied."""


class Sink(Protocol):
    """What a tap writes to; :class:`pdctl.recording.writer.RecordingWriter` is one. Capacities count records."""

    items_capacity: int
    rounds_capacity: int

    def visits(self, queue: int) -> memoryview[int]:
        """Return the two words of a queue: turns so far (or-ed with EMPTY_BIT), monotonic ns of the last."""

    def live(self, stream: int) -> Live:
        """Return where the run of a stream is kept."""

    def close_run(self, head: tuple[int, ...], tail: bytes) -> None:
        """Append a run that has ended."""

    def items(self, data: bytes) -> int:
        """Append item records and return the number of the first."""
        ...


class Recorder(Sink, Protocol):
    """What an adapter gets from the agent to write to: a recording, or the null recorder when recording is off."""

    def pulse(self, ticks: int, mono_ns: int) -> None:
        """Store that the scheduler took a turn."""

    def event(
        self,
        kind: int,
        *,
        mono_ns: int | None = None,
        queue: int = f.NO_QUEUE,
        room: int = 0,
        slot: int = -1,
        a: int = 0,
        b: int = 0,
        text: str = "",
    ) -> None:
        """Append an event."""


class QueueView(Protocol):
    """How a tap reads one engine queue; an adapter implements it."""

    def describe(self, entry: Any) -> tuple[int, int]:
        """Return (room, slot) of a queue entry; 0 and -1 where it has none."""

    def found(self, slots: Sequence[int]) -> Sequence[int] | None:
        """Return the rooms these metadata slots hold now, None where they can't be read."""


def list_hash(rooms: array[int]) -> int:
    """Return a 64-bit hash of a queue's rooms in order; equal lists have equal hashes, the empty list has 0."""
    return int.from_bytes(blake2b(rooms, digest_size=8).digest(), "little") if rooms else 0


def outcome_hash(kept: array[int], actions: dict[int, int]) -> int:
    """Return a 64-bit hash of what a round led to: the rooms kept, in order, and the action on each index that left."""
    if not actions:
        return list_hash(kept)
    left = b"".join(index.to_bytes(4, "little") + bytes([action]) for index, action in sorted(actions.items()))
    return int.from_bytes(blake2b(kept.tobytes() + left, digest_size=8).digest(), "little")


class _Seen:
    """What is known of the requests of a round, one byte (or sparse entry) a request in queue order."""

    __slots__ = ("actions", "found", "gated", "local", "reduced")

    def __init__(self, gated: bytes, local: bytes) -> None:
        self.gated = gated
        self.local = local
        self.reduced = b""
        self.actions: dict[int, int] = {}
        self.found: dict[int, int] = {}

    def without(self, gone: list[int]) -> _Seen:
        """Return the same for the requests that stay."""
        kept = _Seen(_cut(self.gated, gone), _cut(self.local, gone))
        kept.reduced = _cut(self.reduced, gone)
        if self.found:
            left = set(gone)
            kept.found = {
                index - sum(g < index for g in gone): room for index, room in self.found.items() if index not in left
            }
        return kept

    def changed_since(self, known: _Seen, phase: int) -> list[int]:
        """Return the indices at which a reader who knows ``known`` would be wrong or has nothing."""
        changed = set(range(len(known.gated), len(self.gated)))
        changed.update(_differ(known.gated, self.gated))
        if self.local is not self.gated or known.local is not known.gated:
            changed.update(_differ(known.local, self.local))
        if phase > _ENTERED:
            changed.update(_differ(known.reduced, self.reduced))
            changed.update(self.actions)
            if self.found != known.found:
                changed.update(i for i, room in self.found.items() if known.found.get(i) != room)
                changed.update(i for i in known.found if i not in self.found)
        return sorted(changed)


class _Stream:
    """The rounds of one queue over one group: the run it is in and what a reader knows before that run."""

    __slots__ = (
        "after_hash",
        "data",
        "due",
        "full",
        "gone",
        "group",
        "hash",
        "id",
        "items_count",
        "items_crc",
        "items_start",
        "known",
        "live",
        "members",
        "mergeable",
        "merging",
        "n",
        "n_after",
        "ordinal",
        "phase",
        "prev_enter",
        "raw",
        "reduced_data",
        "repeat",
        "runs_since_full",
        "seen",
        "since_full",
        "t_done",
        "t_enter",
        "t_first",
        "visit",
    )

    def __init__(self, stream_id: int, group: int, live: Live) -> None:
        self.id = stream_id
        self.group = group
        self.live = live
        self.seen = _Seen(b"", b"")
        self.known: _Seen | None = None
        self.gone: list[int] = []
        self.members = -1
        self.data = b""
        self.reduced_data = b""
        self.raw: list[int] | None = None
        self.ordinal = 0
        self.repeat = 0
        self.visit = 0
        self.due = 0  # the turn in which the next round of this run would be
        self.phase = 0
        self.full = True
        self.mergeable = False
        self.merging = False
        self.t_first = self.t_enter = self.t_done = 0
        self.prev_enter = 0
        self.n = 0
        self.hash = self.after_hash = 0
        self.n_after = 0
        self.items_start = self.items_count = self.items_crc = 0
        self.since_full = 0
        self.runs_since_full = 0


class QueueTap:
    """Records the rounds of one polled queue.

    queue: its name, one of :data:`pdctl.model.POLLED_QUEUES`. view: how entries and slots are read. sink: where it
    goes. next_stream: gives stream numbers unique in the recording. decides: reduced polls after which the engine
    decides on an entry (its metadata slot is looked at then).
    """

    __slots__ = (
        "_code",
        "_current",
        "_decided",
        "_decides",
        "_hash",
        "_members",
        "_next_stream",
        "_polled",
        "_pollers",
        "_queue",
        "_raw",
        "_raw_kept",
        "_raw_polls",
        "_rooms",
        "_same",
        "_sink",
        "_slots",
        "_streams",
        "_view",
        "_visits",
        "queue",
        "visits",
    )

    def __init__(
        self, queue: str, view: QueueView, sink: Sink, next_stream: Callable[[], int], decides: Iterable[int] = (0, 4)
    ) -> None:
        self.queue = queue
        self.visits = 0
        self._code = QUEUES.index(queue)
        self._view = view
        self._sink = sink
        self._visits = sink.visits(self._code)
        self._next_stream = next_stream
        self._decides = [bytes([poll]) for poll in decides]
        self._streams: dict[int, _Stream] = {}
        self._current: list[_Stream] = []
        self._queue: Sequence[Any] = ()
        self._pollers: list[Any] = []
        self._rooms = array("Q")
        self._slots = array("i")
        self._hash = 0
        self._members = 0
        self._same = self._polled = False
        self._raw: list[int] | None = None
        self._raw_polls: list[int] = []
        self._raw_kept: list[int] | None = None
        self._decided: dict[int, tuple[int, int | None]] = {}

    # ---- one turn -------------------------------------------------------------------------------------------------

    def visit(self, queue: Sequence[Any]) -> None:
        """Begin a turn. ``queue`` is the engine's list; an empty one means the engine will skip the collective."""
        visits = self.visits = self.visits + 1
        self._queue = queue
        self._raw = None
        self._polled = False
        if self._current:  # the engine raised in the turn before: that round stays as it was
            for stream in self._current:
                stream.due = -1
            self._current.clear()
            self._decided.clear()
        if not queue and self._pollers:
            self._pollers = []
            del self._rooms[:], self._slots[:]
            self._members += 1
        words = self._visits
        words[0] = visits if queue else visits | f.EMPTY_BIT
        words[1] = _now()

    def polled(self, pollers: list[Any]) -> None:
        """Take the pollers of this turn, one per entry; the same objects in the same order mean the same requests."""
        if self._polled:
            return  # one poll function of the engine calls another
        self._polled = True
        before = self._pollers
        if pollers == before:
            self._same = True
            return
        self._same = False
        known = len(before)
        if known > len(pollers) or pollers[:known] != before:
            known = 0
            self._members += 1
            del self._rooms[:], self._slots[:]
        for entry in self._queue[known:]:
            room, slot = self._view.describe(entry)
            self._rooms.append(room)
            self._slots.append(slot)
        self._hash = list_hash(self._rooms)
        self._pollers = pollers

    def raw(self, polls: list[int]) -> None:
        """Take this rank's own polls before the engine's metadata gate, which changes nothing but Success."""
        if polls != self._raw_polls:  # to compare lists of the same small ints is far cheaper than to search one
            self._raw_polls = polls.copy()
            self._raw_kept = self._raw_polls if _SUCCESS in polls else None
        self._raw = self._raw_kept

    def entering(self, group: int, data: bytes, width: int) -> None:
        """Record that the collective over group number ``group`` starts with ``data``, ``width`` bytes a poll."""
        stream = self._streams.get(group)
        if stream is None:
            number = self._next_stream()
            stream = self._streams[group] = _Stream(number, group, self._sink.live(number))
        self._current.append(stream)
        stream.prev_enter = stream.t_enter
        now = stream.t_enter = _now()
        visits = self.visits
        if stream.due == visits and self._same and stream.mergeable and data == stream.data and self._raw == stream.raw:
            stream.due = visits + 1
            repeat = stream.repeat = stream.repeat + 1
            stream.phase = _ENTERED
            stream.merging = True
            stream.live.again(repeat, now)
        else:
            self._start(stream, data, width)

    def left(self, group: int, data: bytes, width: int) -> None:
        """Record the reduced polls, ``width`` bytes a poll."""
        stream = self._streams[group]
        stream.phase = _REDUCED
        if stream.merging:
            if data == stream.reduced_data:
                return
            self._split(stream, _Seen(stream.seen.gated, stream.seen.local))
        stream.reduced_data = data
        stream.seen.reduced = reduced = _narrow(data, width)
        if any(poll in reduced for poll in self._decides):
            self._look(stream.seen)
            self._store(stream)  # decisions follow: should the rank stop in them, the reduced polls are in the file

    def decided(self, entry: Any, action: int, found: int | None) -> None:
        """Take what the engine decided on one entry; ``found`` is the room it saw in the slot, None where unknown."""
        self._decided[id(entry)] = (action, found)

    def leave(self, queue: Sequence[Any]) -> None:
        """End the turn; ``queue`` is what the engine kept, in its order."""
        current = self._current
        if not current:
            return
        if len(queue) != len(self._queue) or self._decided:
            self._apply(queue)
            self._decided.clear()
        else:
            for stream in current:
                stream.phase = _APPLIED
                if stream.merging:
                    stream.merging = False
                    stream.live.done()
                else:
                    self._settle(stream, [])
        current.clear()

    # ---- what changed ---------------------------------------------------------------------------------------------

    def _start(self, stream: _Stream, data: bytes, width: int) -> None:
        self._close(stream)
        if stream.members != self._members or stream.due != self.visits:
            stream.known = None  # the list is another one, or this stream missed turns
        gated = _narrow(data, width)
        stream.seen = _Seen(gated, gated if self._raw is None else bytes(self._raw))
        stream.members = self._members
        stream.data, stream.raw, stream.reduced_data = data, self._raw, b""
        stream.n, stream.hash = len(gated), self._hash
        stream.ordinal += stream.repeat
        stream.visit = self.visits
        self._new_run(stream, stream.t_enter, _ENTERED)
        self._store(stream)

    def _split(self, stream: _Stream, seen: _Seen) -> None:
        """Take the round in progress out of the run it was thought to repeat and make it a run of its own."""
        enter, phase = stream.t_enter, stream.phase
        stream.repeat -= 1
        stream.phase, stream.t_enter = _APPLIED, stream.prev_enter
        self._close(stream)
        stream.seen = seen
        stream.ordinal += stream.repeat
        stream.visit += stream.repeat
        self._new_run(stream, enter, phase)

    def _new_run(self, stream: _Stream, enter: int, phase: int) -> None:
        stream.repeat = 1
        stream.due = stream.visit + 1
        stream.phase = phase
        stream.t_first = stream.t_enter = enter
        stream.t_done = 0
        stream.n_after = stream.after_hash = 0
        stream.gone = []
        stream.merging = stream.mergeable = False
        stream.runs_since_full += 1
        stream.full = (
            stream.known is None
            or len(stream.known.gated) > stream.n
            or stream.since_full > self._sink.items_capacity // _FULL_SHARE
            or stream.runs_since_full > self._sink.rounds_capacity // _FULL_SHARE
        )
        if stream.full:
            stream.since_full = stream.runs_since_full = 0

    def _close(self, stream: _Stream) -> None:
        if not stream.repeat:
            return
        self._sink.close_run(self._head(stream), self._tail(stream))
        if stream.phase != _APPLIED:
            stream.known = None  # the engine raised in the middle of the round
        else:
            stream.known = stream.seen.without(stream.gone) if stream.gone else stream.seen

    def _apply(self, queue: Sequence[Any]) -> None:
        before = self._queue
        gone = _gone(before, queue)
        for stream in self._current:
            seen = stream.seen
            actions = {index: _action_of(seen.reduced[index]) for index in gone}
            found = dict(seen.found)
            if self._decided:
                left = set(gone)
                for index in _indices(seen.reduced, self._decides):
                    verdict = self._decided.get(id(before[index]))
                    if verdict is not None:
                        if index in left:
                            actions[index] = verdict[0]
                        if verdict[1] is not None:
                            found[index] = verdict[1]
            stream.phase = _APPLIED
            if stream.merging:
                if not actions and found == seen.found:
                    stream.merging = False  # decided again as in the round before: still the same run
                    stream.live.done()
                    continue
                seen = _Seen(seen.gated, seen.local)
                seen.reduced = stream.seen.reduced
                self._split(stream, seen)
                stream.phase = _APPLIED
            seen.actions, seen.found = actions, found
            self._settle(stream, gone)
        self._forget(gone)

    def _settle(self, stream: _Stream, gone: list[int]) -> None:
        """Store a round that has been applied; ``gone`` left the queue."""
        stream.t_done = _now()
        stream.gone = gone
        stream.n_after = stream.n - len(gone)
        stream.after_hash = stream.hash
        if gone:
            rooms = self._rooms[:]
            for index in reversed(gone):
                del rooms[index]
            stream.after_hash = outcome_hash(rooms, stream.seen.actions)
        stream.mergeable = not gone
        self._store(stream)

    def _forget(self, gone: list[int]) -> None:
        if gone:
            self._pollers = self._pollers.copy()
            for index in reversed(gone):
                del self._pollers[index], self._rooms[index], self._slots[index]

    def _look(self, seen: _Seen) -> None:
        waiting = [index for index in _indices(seen.local, [b"\x04"]) if self._slots[index] >= 0]
        if waiting:
            rooms = self._view.found([self._slots[index] for index in waiting])
            if rooms is not None:
                seen.found = {index: int(room) for index, room in zip(waiting, rooms, strict=True)}

    # ---- storing --------------------------------------------------------------------------------------------------

    def _store(self, stream: _Stream) -> None:
        seen, known = stream.seen, stream.known
        if stream.full or known is None:
            picked: Sequence[int] = range(stream.n)
        else:
            picked = seen.changed_since(known, stream.phase)
        data = self._items(seen, picked)
        stream.items_count = len(picked)
        stream.since_full += len(picked)
        stream.items_crc = crc32(data)
        stream.items_start = self._sink.items(data)
        stream.live.store(self._head(stream), self._tail(stream))

    def _items(self, seen: _Seen, picked: Sequence[int]) -> bytes:
        rooms, slots, found, actions = self._rooms, self._slots, seen.found, seen.actions
        reduced = seen.reduced or bytes([UNKNOWN]) * len(seen.gated)
        if len(picked) < _MANY:
            return b"".join(
                _pack_item(
                    rooms[i],
                    found.get(i, 0),
                    slots[i],
                    i,
                    seen.local[i],
                    seen.gated[i],
                    reduced[i],
                    actions.get(i, 0),
                    f.ITEM_FOUND_KNOWN if i in found else 0,
                )
                for i in picked
            )
        rows = np.zeros(len(picked), f.ITEM_DTYPE)
        at = np.asarray(picked)
        rows["index"] = at
        rows["room"] = np.frombuffer(rooms, np.uint64)[at]
        rows["slot"] = np.frombuffer(slots, np.int32)[at]
        for name, values in (("local", seen.local), ("gated", seen.gated), ("reduced", reduced)):
            rows[name] = np.frombuffer(values, np.uint8)[at]
        place = {index: n for n, index in enumerate(picked)} if found or actions else {}
        for index, room in found.items():
            if index in place:
                rows["found"][place[index]] = room
                rows["flags"][place[index]] = f.ITEM_FOUND_KNOWN
        for index, action in actions.items():
            rows["action"][place[index]] = action
        return rows.tobytes()

    def _head(self, s: _Stream) -> tuple[int, ...]:
        flags = s.phase | _FULL if s.full else s.phase
        return s.id, self._code, s.group, flags, s.repeat, s.t_enter, s.t_done

    @staticmethod
    def _tail(s: _Stream) -> bytes:
        return _pack_tail(
            s.n,
            s.n_after,
            s.ordinal,
            s.visit,
            s.t_first,
            s.hash,
            s.after_hash,
            s.items_start,
            s.items_count,
            s.items_crc,
        )

    def ordinals(self) -> dict[int, int]:
        """Return, per group number, the ordinal of the last round entered. Safe to call from another thread."""
        return {group: s.ordinal + s.repeat - 1 for group, s in list(self._streams.items()) if s.repeat}


def _narrow(data: bytes, width: int) -> bytes:
    return data if width == 1 else np.frombuffer(data, f"<i{width}").astype(np.uint8).tobytes()


def _differ(old: bytes, new: bytes) -> list[int]:
    count = min(len(old), len(new))
    if old == new or old == new[:count]:
        return []
    # xor of two big integers: for a few differences far cheaper than numpy on arrays of this size
    bits = int.from_bytes(old[:count], "little") ^ int.from_bytes(new[:count], "little")
    different: list[int] = []
    while bits and len(different) < _MANY:
        at = (bits & -bits).bit_length() - 1 >> 3
        different.append(at)
        bits &= ~(255 << (at << 3))
    if bits:
        unequal = np.frombuffer(old, np.uint8, count) != np.frombuffer(new, np.uint8, count)
        return [int(i) for i in np.flatnonzero(unequal)]
    return different


def _indices(polls: bytes, wanted: Iterable[bytes]) -> list[int]:
    found = []
    for poll in wanted:
        at = polls.find(poll)
        while at >= 0:
            found.append(at)
            at = polls.find(poll, at + 1)
    return sorted(found)


def _cut(values: bytes, gone: list[int]) -> bytes:
    kept = bytearray(values)
    for index in reversed(gone):
        del kept[index : index + 1]
    return bytes(kept)


def _gone(before: Sequence[Any], after: Sequence[Any]) -> list[int]:
    """Return the indices of ``before`` that are not in ``after``, which is ``before`` without them."""
    missing = len(before) - len(after)
    if missing <= 0:
        return []
    if missing > 8:
        still = set(map(id, after))
        return [index for index, entry in enumerate(before) if id(entry) not in still]
    gone: list[int] = []
    start = 0
    while len(gone) < missing:
        same = list(map(is_, islice(before, start, None), islice(after, start - len(gone), None)))
        step = same.index(False) if False in same else len(same)
        gone.append(start + step)
        start += step + 1
    return gone


def _action_of(reduced: int) -> int:
    if reduced == KVPoll.SUCCESS:
        return int(Action.COMMITTED)
    if reduced == KVPoll.FAILED:
        return int(Action.FAILED)
    if reduced == KVPoll.WAITING_FOR_INPUT:
        return int(Action.MOVED)
    return int(Action.ABORTED)
