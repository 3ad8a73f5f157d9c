"""Turns an engine's polls into recorded rounds. One QueueTap per polled queue; runs on the scheduler's main thread.

The engine adapter calls, in this order and once per turn of the scheduler:

    tap.visit(queue)                  the queue is about to be polled (or skipped, when it is empty)
    tap.about(part)                   only a part of it is polled (seldom)
    tap.polled(pollers)               the poll function was called with these pollers
    tap.raw(polls)                    the polls before the metadata gate, where the engine has a gate
    tap.entering(group, data, width)  a collective is about to start with these polls: numbers, or ``width`` bytes each
    tap.left(group, data, width)      it returned these
    tap.decided(entry, action, found) the engine committed, failed or kept an entry, as seen at its own seam
    tap.leave(queue)                  the turn is over; this is the queue now

A turn that equals the one before costs a few list comparisons in C and two writes of a few words, before and after the
collective. All other work is done only for changes.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from zlib import crc32

from pdctl.agent.rounds import (
    Polls,
    Seen,
    Stream,
    action_of,
    gone_from,
    indices_of,
    items_of,
    list_hash,
    narrow,
    outcome_hash,
)
from pdctl.agent.sinks import QueueView, Sink
from pdctl.protocol.model import QUEUES, Action, KVPoll, Phase
from pdctl.recording import format as f

_now = time.monotonic_ns
_ENTERED, _REDUCED, _APPLIED = int(Phase.ENTERED), int(Phase.REDUCED), int(Phase.APPLIED)
_SUCCESS = int(KVPoll.SUCCESS)
_IS_SUCCESS = [bytes([_SUCCESS])]
_FULL_SHARE = 16
"""A full list is written at least once every 1/16 of a ring, so that what the rings hold can be rebuilt."""


class QueueTap:
    """Records the rounds of one polled queue.

    queue: its name, one of :data:`pdctl.protocol.model.POLLED_QUEUES`. view: how entries and slots are read. sink: where it
    goes. next_stream: gives stream numbers unique in the recording. decides: reduced polls after which the engine
    decides on an entry (its metadata slot is looked at then). failed: told every room that leaves as failed.
    """

    __slots__ = (
        "_code",
        "_current",
        "_decided",
        "_decides",
        "_failed",
        "_flush",
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
        self,
        queue: str,
        view: QueueView,
        sink: Sink,
        next_stream: Callable[[], int],
        decides: Iterable[int] = (0, 4),
        failed: Callable[[int], None] | None = None,
    ) -> None:
        self.queue = queue
        self.visits = 0
        self._code = QUEUES.index(queue)
        self._view = view
        self._sink = sink
        self._visits = sink.visits(self._code)
        self._flush = sink.flush
        self._next_stream = next_stream
        self._decides = [bytes([poll]) for poll in decides]
        self._failed = failed
        self._streams: dict[int, Stream] = {}
        self._current: list[Stream] = []
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
        if not queue:
            self._flush()  # else it is in the file when the round that follows is entered

    def reads(self, view: QueueView) -> None:
        """Read entries and slots with ``view`` from now on: the engine has made a new queue of this name."""
        self._view = view

    def about(self, part: Sequence[Any]) -> None:
        """Say that only this part of the queue is polled in this turn, in the queue's order."""
        self._queue = part

    def polled(self, pollers: list[Any]) -> None:
        """Take the pollers of this turn, one per entry. The same objects in the same order mean the same requests."""
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
        self._pollers = pollers
        wrong: Exception | None = None
        for entry in self._queue[known:]:
            room, slot = 0, -1
            try:
                room, slot = self._view.describe(entry)
                self._rooms.append(room)
            except Exception as error:  # raised below: every request has its place all the same
                wrong, slot = error, -1
                self._rooms.append(0)
            self._slots.append(slot)
        self._hash = list_hash(self._rooms)
        if wrong is not None:
            raise wrong

    def raw(self, polls: list[int]) -> list[int]:
        """Take this rank's own polls before the engine's metadata gate, which changes nothing but Success; returns a copy."""
        if polls != self._raw_polls:  # to compare lists of the same small ints is far cheaper than to search one
            self._raw_polls = polls.copy()
            self._raw_kept = self._raw_polls if _SUCCESS in polls else None
        self._raw = self._raw_kept
        return self._raw_polls

    def entering(self, group: int, data: Polls, width: int) -> None:
        """Record that the collective over group number ``group`` starts with ``data``: numbers or ``width`` bytes a poll."""
        stream = self._streams.get(group)
        if stream is None:
            number = self._next_stream()
            stream = self._streams[group] = Stream(number, self._code, group, self._sink.live(number))
        self._current.append(stream)
        stream.prev_enter = stream.t_enter
        now = stream.t_enter = _now()
        visits = self.visits
        if stream.due == visits and self._same and stream.mergeable and data == stream.data and self._raw == stream.raw:
            stream.due = visits + 1
            repeat = stream.repeat = stream.repeat + 1
            stream.phase = _ENTERED
            stream.merging = True
            live = stream.live
            words = live.words
            words[1] = now
            words[0] = live.tag | repeat
            self._flush()
        else:
            self._start(stream, data, width)
            self._flush()

    def left(self, group: int, data: Polls, width: int) -> None:
        """Record the reduced polls, in the same way."""
        stream = self._streams[group]
        stream.phase = _REDUCED
        if stream.merging:
            if data == stream.reduced_data:
                return
            self._split(stream, Seen(stream.seen.gated, stream.seen.local))
            stream.stored = 0  # the run that it was thought to repeat has ended without it
        stream.reduced_data = data
        stream.seen.reduced = reduced = narrow(data, width)
        decides = any(poll in reduced for poll in self._decides)
        if decides:
            self._look(stream.seen)
        if decides or not stream.stored:
            # Where decisions follow: should the rank stop in them, the reduced polls are in the file.
            self._store(stream)

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
            merged = False
            for stream in current:
                stream.phase = _APPLIED
                if stream.merging:
                    stream.merging = False
                    merged = True
                    live = stream.live
                    live.words[2] = live.tag | stream.repeat
                else:
                    self._settle(stream, [])
            if merged:
                self._flush()
        current.clear()

    # ---- what changed ---------------------------------------------------------------------------------------------

    def _start(self, stream: Stream, data: Polls, width: int) -> None:
        enter, stream.t_enter = stream.t_enter, stream.prev_enter  # the run that ends was not entered again
        self._close(stream)
        if stream.members != self._members or stream.due != self.visits:
            stream.known = None  # the list is another one, or this stream missed turns
        gated = narrow(data, width)
        stream.seen = Seen(gated, gated if self._raw is None else bytes(self._raw))
        stream.members = self._members
        stream.data, stream.raw, stream.reduced_data = data, self._raw, b""
        stream.n, stream.hash = len(gated), self._hash
        stream.ordinal += stream.repeat
        stream.visit = self.visits
        self._new_run(stream, enter, _ENTERED)
        self._store(stream)

    def _split(self, stream: Stream, seen: Seen) -> None:
        """Take the round in progress out of the run it was thought to repeat and make it a run of its own."""
        enter, phase = stream.t_enter, stream.phase
        stream.repeat -= 1
        stream.phase, stream.t_enter = _APPLIED, stream.prev_enter
        self._close(stream)
        stream.seen = seen
        stream.ordinal += stream.repeat
        stream.visit += stream.repeat
        self._new_run(stream, enter, phase)

    def _new_run(self, stream: Stream, enter: int, phase: int) -> None:
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

    def _close(self, stream: Stream) -> None:
        if not stream.repeat:
            return
        if stream.phase == _REDUCED and stream.stored == _ENTERED:
            stream.phase = _ENTERED  # the engine raised after a collective whose result was not written
        self._sink.close_run(stream.head(), stream.tail())
        if stream.phase != _APPLIED:
            stream.known = None  # the engine raised in the middle of the round
        else:
            stream.known = stream.seen.without(stream.gone) if stream.gone else stream.seen

    def _apply(self, queue: Sequence[Any]) -> None:
        before = self._queue
        gone, lost = gone_from(before, queue), list[int]()
        for stream in self._current:
            seen = stream.seen
            actions = {index: action_of(seen.reduced[index]) for index in gone}
            found = dict(seen.found)
            if self._decided:
                left = set(gone)
                for index in indices_of(seen.reduced, self._decides):
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
                    stream.live.words[2] = stream.live.tag | stream.repeat
                    self._flush()
                    continue
                seen = Seen(seen.gated, seen.local)
                seen.reduced = stream.seen.reduced
                self._split(stream, seen)
                stream.phase = _APPLIED
            seen.actions, seen.found = actions, found
            self._settle(stream, gone)
            lost += [self._rooms[index] for index, action in actions.items() if action == Action.FAILED]
        self._forget(gone)
        if self._failed is not None:
            for room in lost:
                self._failed(room)

    def _settle(self, stream: Stream, gone: list[int]) -> None:
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

    def _look(self, seen: Seen) -> None:
        waiting = [index for index in indices_of(seen.local, _IS_SUCCESS) if self._slots[index] >= 0]
        if waiting:
            rooms = self._view.found([self._slots[index] for index in waiting])
            if rooms is not None:
                seen.found = {index: int(room) for index, room in zip(waiting, rooms, strict=True)}

    # ---- storing --------------------------------------------------------------------------------------------------

    def _store(self, stream: Stream) -> None:
        seen, known = stream.seen, stream.known
        if stream.full or known is None:
            picked: Sequence[int] = range(stream.n)
        else:
            picked = seen.changed_since(known, stream.phase)
        data = items_of(self._rooms, self._slots, seen, picked)
        stream.items_count = len(picked)
        stream.since_full += len(picked)
        stream.items_crc = crc32(data)
        stream.items_start = self._sink.items(data)
        stream.live.store(stream.head(), stream.tail())
        stream.stored = stream.phase

    def ordinals(self) -> dict[int, int]:
        """Return, per group number, the ordinal of the last round entered. Safe to call from another thread."""
        return {group: s.ordinal + s.repeat - 1 for group, s in list(self._streams.items()) if s.repeat}
