"""Turns an engine's polls into recorded rounds. One QueueTap per polled queue; runs on the scheduler's main thread.

The engine adapter calls, in this order and once per turn of the scheduler:

    tap.visit(queue)                  the queue is about to be polled (or skipped, when it is empty)
    tap.polled(pollers)               the poll function was called with these pollers
    tap.raw(polls)                    the polls before the metadata gate, where the engine has a gate
    tap.entering(group, data, width)  a collective is about to start with these bytes, ``width`` bytes a poll
    tap.left(group, data, width)      it returned these
    tap.decided(entry, action, found) the engine committed, failed or kept an entry, as seen at its own seam
    tap.leave(queue)                  the turn is over; this is the queue now

A turn that is equal to the one before costs a few list comparisons in C and two stores into a mapped file; everything else
is done only when something changed.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pdctl.model import QUEUES, UNKNOWN, Action, KVPoll, Phase
from pdctl.recording import format as f

Items = NDArray[Any]
"""Structured array of :data:`pdctl.recording.format.ITEM_DTYPE`, one element per request in queue order."""

ITEM = np.dtype(f.ITEM_DTYPE)
_pack = struct.Struct("<" + f.ROUND.format.lstrip("<").replace("Q", "", 1)).pack
_now = time.monotonic_ns
_ENTERED, _REDUCED, _APPLIED = int(Phase.ENTERED), int(Phase.REDUCED), int(Phase.APPLIED)
_SUCCESS = int(KVPoll.SUCCESS)
_FULL_SHARE = 16
"""A full list is written at least once every 1/16 of a ring, so that what the rings hold can be rebuilt."""


class Sink(Protocol):
    """What a tap writes to; :class:`pdctl.recording.writer.RecordingWriter` is one. Capacities count records."""

    items_capacity: int
    rounds_capacity: int

    def pulse(self, ticks: int, mono_ns: int) -> None: ...

    def live(self, stream: int, record: bytes) -> None: ...

    def close_run(self, record: bytes) -> None: ...

    def items(self, data: bytes) -> int: ...


class Recorder(Sink, Protocol):
    """What an adapter gets from the agent to write to: a recording, or the null recorder when recording is off."""

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
    ) -> None: ...


class QueueView(Protocol):
    """How a tap reads one engine queue; an adapter implements it."""

    def describe(self, entry: Any) -> tuple[int, int]:
        """Return (room, slot) of a queue entry; 0 and -1 where it has none."""

    def found(self, slots: Sequence[int]) -> Sequence[int] | None:
        """Return the rooms these metadata slots hold now, None where they can't be read."""


def list_hash(rooms: NDArray[np.uint64]) -> int:
    """Return a 64-bit hash of a queue's rooms in order; equal lists have equal hashes, the empty list has 0."""
    if not len(rooms):
        return 0
    return int.from_bytes(blake2b(rooms.tobytes(), digest_size=8).digest(), "little")


class _Stream:
    """The rounds of one queue over one group: the run it is in and what a reader knows before that run."""

    def __init__(self, stream_id: int, group: int) -> None:
        self.id = stream_id
        self.group = group
        self.items: Items = np.zeros(0, ITEM)
        self.known: Items | None = None
        self.contribution = b""
        self.reduced = b""
        self.raw: list[int] | None = None
        self.ordinal = 0
        self.repeat = 0
        self.visit = 0
        self.phase = 0
        self.full = True
        self.mergeable = False
        self.merging = False
        self.t_first = self.t_enter = self.t_done = 0
        self.prev_enter = self.prev_done = 0
        self.hash = self.after_hash = 0
        self.n_after = 0
        self.items_start = self.items_count = self.items_crc = 0
        self.since_full = 0
        self.runs_since_full = 0


class QueueTap:
    """Records the rounds of one polled queue.

    queue: its name, one of :data:`pdctl.model.POLLED_QUEUES`. view: how entries and slots are read. sink: where it goes.
    next_stream: gives stream numbers unique in the recording. leaves: polls after which an entry may leave the queue.
    """

    def __init__(
        self, queue: str, view: QueueView, sink: Sink, next_stream: Callable[[], int], leaves: frozenset[int]
    ) -> None:
        self.queue = queue
        self.visits = 0
        self._code = QUEUES.index(queue)
        self._view = view
        self._sink = sink
        self._next_stream = next_stream
        self._leaves = np.array(sorted(leaves), np.uint8)
        self._streams: dict[int, _Stream] = {}
        self._current: list[_Stream] = []
        self._queue: Sequence[Any] = ()
        self._pollers: list[Any] | None = None
        self._kept: list[Any] | None = None
        self._kept_items: Items = np.zeros(0, ITEM)
        self._base: Items = np.zeros(0, ITEM)
        self._hash = 0
        self._same = False
        self._seen = False
        self._raw: list[int] | None = None
        self._decided: dict[int, tuple[int, int | None]] = {}

    # ---- one turn -------------------------------------------------------------------------------------------------

    def visit(self, queue: Sequence[Any]) -> None:
        """Begin a turn. ``queue`` is the engine's list; an empty one means the engine will skip the collective."""
        self.visits += 1
        self._queue = queue
        self._current.clear()
        self._raw = None
        self._seen = False
        if not queue:
            self._pollers = None
            self._kept = []
            self._kept_items = self._base = np.zeros(0, ITEM)
        self._sink.pulse(self.visits, _now())

    def polled(self, pollers: list[Any]) -> None:
        """Take the pollers of this turn, one per entry; the same objects in the same order mean the same requests."""
        if self._seen:
            return  # one poll function of the engine calls another
        self._seen = True
        if self._pollers is not None and pollers == self._pollers:
            self._same = True
            return
        self._same = False
        self._rebuild(pollers)
        self._pollers = pollers

    def _rebuild(self, pollers: list[Any]) -> None:
        kept, kept_items = self._kept, self._kept_items
        if self._pollers is not None:
            kept, kept_items = self._pollers, self._base
        entries = self._queue
        start = 0
        if kept is not None and len(kept) <= len(pollers) and pollers[: len(kept)] == kept:
            start = len(kept)
        base = np.zeros(len(pollers), ITEM)
        base[:start] = kept_items[:start]
        if start < len(pollers):
            described = [self._view.describe(entry) for entry in entries[start:]]
            base["room"][start:] = [room for room, _ in described]
            base["slot"][start:] = [slot for _, slot in described]
        base["found"] = 0
        base["flags"] = 0
        base["action"] = UNKNOWN
        base["reduced"] = UNKNOWN
        base["index"] = np.arange(len(pollers), dtype=np.uint32)
        self._base = base
        self._hash = list_hash(base["room"])

    def raw(self, polls: list[int]) -> None:
        """Take this rank's own polls before the engine's metadata gate changed them."""
        self._raw = polls.copy()

    def entering(self, group: int, data: bytes, width: int) -> None:
        """Record that the collective over group number ``group`` starts with ``data``, ``width`` bytes a poll."""
        stream = self._streams.get(group)
        if stream is None:
            stream = self._streams[group] = _Stream(self._next_stream(), group)
        self._current.append(stream)
        stream.prev_enter, stream.prev_done = stream.t_enter, stream.t_done
        stream.t_enter = _now()
        if (
            self._same
            and stream.mergeable
            and data == stream.contribution
            and self._raw == stream.raw
            and stream.visit + stream.repeat == self.visits
        ):
            stream.merging = True
            stream.repeat += 1
            stream.phase = _ENTERED
        else:
            self._start(stream, data, width)
        self._sink.live(stream.id, self._record(stream))

    def left(self, group: int, data: bytes, width: int) -> None:
        """Record the reduced polls, ``width`` bytes a poll."""
        stream = self._streams[group]
        stream.phase = _REDUCED
        if stream.merging:
            if data == stream.reduced:
                return
            self._split(stream)
        stream.reduced = data
        stream.items["reduced"] = _polls(data, width)
        self._look(stream.items)
        self._store(stream)

    def decided(self, entry: Any, action: int, found: int | None) -> None:
        """Take what the engine decided on one entry; ``found`` is the room it saw in the slot, None where unknown."""
        self._decided[id(entry)] = (action, found)

    def leave(self, queue: Sequence[Any]) -> None:
        """End the turn; ``queue`` is what the engine kept, in its order."""
        if not self._current:
            return
        before = self._queue
        now = _now()
        if len(queue) == len(before) and not self._decided:
            for stream in self._current:
                stream.phase = _APPLIED
                stream.t_done = now
                if not stream.merging:
                    stream.items["action"] = 0
                    stream.n_after, stream.after_hash = len(before), stream.hash
                    stream.mergeable = True
                    self._store(stream)
                else:
                    stream.merging = False
                    self._sink.live(stream.id, self._record(stream))
            self._current.clear()
            return
        self._apply(queue, now)
        self._decided.clear()
        self._current.clear()

    # ---- what changed ---------------------------------------------------------------------------------------------

    def _apply(self, queue: Sequence[Any], now: int) -> None:
        before = self._queue
        gone = self._gone(before, queue, self._current[-1].items["reduced"])
        left = np.zeros(len(before), bool)
        left[gone] = True
        for stream in self._current:
            items = stream.items.copy()
            items["action"] = 0
            for index in gone:
                items["action"][index] = _action_of(int(items["reduced"][index]))
            if self._decided:
                for index in np.flatnonzero(np.isin(items["reduced"], self._leaves)).tolist():
                    verdict = self._decided.get(id(before[index]))
                    if verdict is not None:
                        self._verdict(items, index, verdict, bool(left[index]))
            stream.phase = _APPLIED
            stream.t_done = now
            if stream.merging and items.tobytes() == stream.items.tobytes():
                stream.merging = False  # decided again as in the round before: still the same run
                self._sink.live(stream.id, self._record(stream))
                continue
            if stream.merging:
                self._split(stream)
            stream.items = items
            stream.t_done = now
            stream.n_after = len(before) - len(gone)
            stream.after_hash = list_hash(items["room"][~left])
            stream.mergeable = not gone
            self._store(stream)
        if gone and self._pollers is not None:
            pollers = self._pollers
            self._kept = [pollers[i] for i in np.flatnonzero(~left).tolist()]
            self._kept_items = self._current[-1].items[~left]
            self._pollers = None

    @staticmethod
    def _verdict(items: Items, index: int, verdict: tuple[int, int | None], left: bool) -> None:
        action, found = verdict
        items["action"][index] = action if left or action == Action.KEPT else Action.KEPT
        if found is not None:
            items["found"][index] = found
            items["flags"][index] |= f.ITEM_FOUND_KNOWN

    def _gone(self, before: Sequence[Any], after: Sequence[Any], reduced: NDArray[np.uint8]) -> list[int]:
        gone: list[int] = []
        for index in np.flatnonzero(np.isin(reduced, self._leaves)).tolist():
            at = index - len(gone)
            if at >= len(after) or after[at] is not before[index]:
                gone.append(index)
        if len(before) - len(gone) == len(after):
            return gone
        still = set(map(id, after))  # the engine removed others too (an abort, a flush)
        return [index for index, entry in enumerate(before) if id(entry) not in still]

    def _start(self, stream: _Stream, data: bytes, width: int) -> None:
        self._close(stream)
        items = self._base.copy()
        items["gated"] = _polls(data, width)
        items["local"] = items["gated"] if self._raw is None else self._raw
        stream.items = items
        stream.contribution = data
        stream.raw = self._raw
        stream.reduced = b""
        stream.visit = self.visits
        self._new_run(stream, _ENTERED, stream.t_enter)
        stream.hash = self._hash
        stream.n_after, stream.after_hash = 0, 0
        self._write_items(stream)

    def _new_run(self, stream: _Stream, phase: int, enter: int) -> None:
        """Begin a run of one round after the run that was closed."""
        stream.ordinal += stream.repeat
        stream.repeat = 1
        stream.phase = phase
        stream.t_first = stream.t_enter = enter
        stream.t_done = 0
        stream.merging = stream.mergeable = False
        stream.runs_since_full += 1
        stream.full = (
            stream.known is None
            or stream.since_full > self._sink.items_capacity // _FULL_SHARE
            or stream.runs_since_full > self._sink.rounds_capacity // _FULL_SHARE
        )
        if stream.full:
            stream.since_full = stream.runs_since_full = 0

    def _split(self, stream: _Stream) -> None:
        """Take the round in progress out of the run it was thought to repeat and make it a run of its own."""
        enter, phase = stream.t_enter, stream.phase
        stream.repeat -= 1
        stream.phase = _APPLIED
        stream.t_enter, stream.t_done = stream.prev_enter, stream.prev_done
        self._close(stream)
        stream.items = stream.items.copy()
        stream.visit += stream.repeat
        self._new_run(stream, phase, enter)

    def _close(self, stream: _Stream) -> None:
        if not stream.repeat:
            return
        self._sink.close_run(self._record(stream))
        stream.known = stream.items[stream.items["action"] == 0] if stream.phase == _APPLIED else None

    def _look(self, items: Items) -> None:
        waiting = np.flatnonzero((items["local"] == _SUCCESS) & (items["slot"] >= 0))
        if not len(waiting):
            return
        rooms = self._view.found(items["slot"][waiting].tolist())
        if rooms is not None:
            items["found"][waiting] = rooms
            items["flags"][waiting] |= f.ITEM_FOUND_KNOWN

    # ---- storing --------------------------------------------------------------------------------------------------

    def _store(self, stream: _Stream) -> None:
        self._write_items(stream)
        self._sink.live(stream.id, self._record(stream))

    def _write_items(self, stream: _Stream) -> None:
        items, known = stream.items, stream.known
        if stream.full or known is None or len(known) > len(items):
            stream.full = True
            data = items.tobytes()
        else:
            rows = items.view(np.uint64).reshape(len(items), 4)
            old = known.view(np.uint64).reshape(len(known), 4)
            # The index of a kept entry moves when an earlier one leaves; word 2 holds slot and index.
            same = (rows[: len(known), 0] == old[:, 0]) & (rows[: len(known), 1] == old[:, 1])
            same &= (rows[: len(known), 3] == old[:, 3]) & (items["slot"][: len(known)] == known["slot"])
            picked = np.concatenate([np.flatnonzero(~same), np.arange(len(known), len(items))])
            data = items[picked].tobytes()
        stream.items_count = len(data) // f.ITEM_SIZE
        stream.since_full += stream.items_count
        stream.items_crc = crc32(data)
        stream.items_start = self._sink.items(data)

    def _record(self, s: _Stream) -> bytes:
        return _pack(
            s.id,
            self._code,
            s.group,
            s.phase | (f.FLAG_FULL << 4 if s.full else 0),
            len(s.items),
            s.n_after,
            s.ordinal,
            s.repeat,
            s.visit,
            s.t_first,
            s.t_enter,
            s.t_done,
            s.hash,
            s.after_hash,
            s.items_start,
            s.items_count,
            s.items_crc,
        )

    def ordinals(self) -> dict[int, int]:
        """Return, per group number, the ordinal of the last round entered. Safe to call from another thread."""
        return {group: s.ordinal + s.repeat - 1 for group, s in list(self._streams.items()) if s.repeat}


def _polls(data: bytes, width: int) -> NDArray[Any]:
    return np.frombuffer(data, "<i4" if width == 4 else "u1")


def _action_of(reduced: int) -> int:
    if reduced == KVPoll.SUCCESS:
        return Action.COMMITTED
    if reduced == KVPoll.FAILED:
        return Action.FAILED
    if reduced == KVPoll.WAITING_FOR_INPUT:
        return Action.MOVED
    return Action.ABORTED
