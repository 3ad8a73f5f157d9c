"""Reads an SGLang scheduler's queues and metadata slots. Rooms, rids, slots, states and ages only; never a token id.

All functions may run on the agent's thread while the scheduler works. Lists are copied first. ``poll()`` is never called: it
has side effects (timeouts, state changes).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from pdctl.engines.sglang import seams
from pdctl.engines.shared import statuses_of
from pdctl.engines.sites import transfer_of
from pdctl.protocol.model import UNKNOWN, QueueEntry, Seam, SlotEntry

_stats = attrgetter("time_stats")
_AT_A_STRETCH = 100
"""Requests read before the agent's thread lets the scheduler have the GIL: about a tenth of a millisecond."""
_PAUSE_S = 2e-5


def _state(holder: Any, room: int, statuses: Any) -> int:
    """Return what the poll of a request says: what its sender or receiver has concluded, else the status of its room."""
    concluded = getattr(transfer_of(holder), "conclude_state", None)
    return int(statuses.get(room, UNKNOWN) if concluded is None else concluded)


def _in_parts(entries: list[Any]) -> Iterator[list[Any]]:
    """Yield ``entries`` in parts, with a pause between them in which the scheduler's thread can go on."""
    for start in range(0, len(entries), _AT_A_STRETCH):
        if start:
            time.sleep(_PAUSE_S)  # 0 would give the GIL up and take it again before anybody woke up
        yield entries[start : start + _AT_A_STRETCH]


class QueueReader:
    """The queues of one rank: as they are now, and one at a time for the taps (it is their QueueView).

    slots: the result of :func:`seams.slot_view`, if the caller has it already.
    """

    def __init__(self, scheduler: Any, role: str, slots: tuple[Any, Seam] | None = None) -> None:
        self._scheduler = scheduler
        self._role = role
        self._paths = [path for path in seams.QUEUE_PATHS if role in path.roles]
        self._path_of = {path.name: path.path for path in self._paths}
        self._manager = seams.kv_manager(scheduler)
        self._rooms, self.slot_seam = seams.slot_view(scheduler) if slots is None else slots
        self.owners: dict[int, int] = {}
        """Slot → room of the request seen in it last."""

    def queue(self, name: str) -> list[Any]:
        """Return the engine's list of a queue (not a copy). Raises KeyError for one this rank does not have."""
        found = seams.follow(self._scheduler, self._path_of[name])  # twice in every turn
        if found is None:
            raise KeyError(name)
        return found  # type: ignore[no-any-return]

    def seams(self) -> list[Seam]:
        """Return which queues and states are there."""
        found = []
        for path in self._paths:
            there = seams.follow(self._scheduler, path.path) is not None
            found.append(Seam(f"queue.{path.name}", there, "scheduler." + ".".join(path.path)))
        batches = [name for name in seams.BATCHES if hasattr(self._scheduler, name)]
        found.append(Seam("queue.running", bool(batches), ", ".join(batches) or "no batch on the scheduler"))
        if self._role != seams.UNIFIED:
            statuses = self._statuses()
            found.append(Seam("state", statuses is not None, "kv_manager.request_status"))
            found.append(self.slot_seam)
        return found

    def read(self) -> tuple[dict[str, list[QueueEntry]], dict[str, str]]:
        """Return the queues now, and why those that are missing can't be read. Ages in seconds."""
        queues: dict[str, list[QueueEntry]] = {}
        missing: dict[str, str] = {}
        statuses = self._statuses() or {}
        now = time.perf_counter()  # the clock of sglang.srt.observability.req_time_stats
        # All lists first: what is read in parts is of one moment.
        copies: list[tuple[str, str, list[Any]]] = []
        for path in self._paths:
            found = seams.follow(self._scheduler, path.path)
            if found is None:
                missing[path.name] = f"this SGLang has no scheduler.{'.'.join(path.path)}"
                continue
            held = seams.follow(self._scheduler, path.held) if path.held else None
            copies.append((path.name, path.age, [*found, *(held or ())]))
        copies.append(("running", seams.RUNNING_AGE, self.running()))
        for name, age, entries in copies:
            queues[name] = [entry for part in _in_parts(entries) for entry in self._entries(part, age, statuses, now)]
        return queues, missing

    def _statuses(self) -> Any:
        return statuses_of(getattr(self._manager, "request_status", None))

    def running(self) -> list[Any]:
        """Return the requests that are computed: those of any batch that have not finished."""
        waiting = {id(req) for req in list(getattr(self._scheduler, "waiting_queue", None) or ())}
        found: dict[int, Any] = {}
        batches = [getattr(self._scheduler, name, None) for name in seams.BATCHES]
        for name in seams.MICROBATCHES:
            batches += list(getattr(self._scheduler, name, None) or ())
        for batch in batches:
            for req in list(getattr(batch, "reqs", None) or ()):
                if id(req) not in waiting and req.finished_reason is None:
                    found.setdefault(id(req), req)
        return list(found.values())

    @staticmethod
    def _entries(entries: list[Any], age: str, statuses: Any, now: float) -> list[QueueEntry]:
        if not entries:
            return []
        pairs = (
            [(entry.req, entry) for entry in entries]
            if hasattr(entries[0], "kv_receiver")
            else [(e, e) for e in entries]
        )
        return [
            QueueEntry(
                req.bootstrap_room or 0,
                req.rid,
                seams.slot_of(holder),
                _state(holder, req.bootstrap_room, statuses),
                now - entered if age and 0 < (entered := getattr(_stats(req), age, 0.0)) <= now else -1.0,
            )
            for req, holder in pairs
        ]

    # ---- slots -------------------------------------------------------------------------------------------------------

    def slots(self) -> list[SlotEntry]:
        """Return the slots of requests whose metadata is on its way: room expected, room found there now."""
        if self._rooms is None:
            return []
        name = "decode.transfer" if self._role == "decode" else "prefill.inflight"
        try:
            entries = list(self.queue(name))
        except KeyError:
            return []
        slots: list[SlotEntry] = []
        for part in _in_parts(entries):
            described = [(slot, room) for room, slot in map(self.describe, part) if slot >= 0]
            rooms = self._rooms[[slot for slot, _ in described]].tolist() if described else []
            slots += [SlotEntry(slot, room, there) for (slot, room), there in zip(described, rooms, strict=True)]
        return slots

    def describe(self, entry: Any) -> tuple[int, int]:
        """Return (room, slot) of a queue entry."""
        req = getattr(entry, "req", entry)
        room, slot = seams.room_of(req), seams.slot_of(entry)
        if slot >= 0:
            self.owners[slot] = room
        return room, slot

    def found(self, slots: Sequence[int]) -> Sequence[int] | None:
        """Return the rooms in these slots, None where they can't be read."""
        if self._rooms is None:
            return None
        return self._rooms[slots].tolist()  # type: ignore[no-any-return]

    def room_in(self, slot: int) -> int | None:
        """Return the room in one slot (0: not written), None where it can't be read."""
        return None if self._rooms is None or slot < 0 else int(self._rooms[slot])
