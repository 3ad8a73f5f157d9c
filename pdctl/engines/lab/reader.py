"""Reads a lab rank's queues and metadata slots. Rooms, rids, slots, states and ages only; never a token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pdctl.protocol.model import UNKNOWN, QueueEntry, Seam, SlotEntry

QUEUES: dict[str, dict[str, Callable[[Any], list[Any]]]] = {
    "prefill": {
        "prefill.bootstrap": lambda s: s.disagg_prefill_bootstrap_queue.queue,
        "prefill.inflight": lambda s: s.disagg_prefill_inflight_queue,
        "waiting": lambda s: s.waiting_queue,
        "running": lambda s: s.running_batch,
    },
    "decode": {
        "decode.pending": lambda s: s.disagg_decode_prealloc_queue.pending_reqs,
        "decode.prealloc": lambda s: s.disagg_decode_prealloc_queue.queue,
        "decode.transfer": lambda s: s.disagg_decode_transfer_queue.queue,
        "decode.retracted": lambda s: s.disagg_decode_prealloc_queue.retracted_queue,
        "waiting": lambda s: s.waiting_queue,
        "running": lambda s: s.running_batch,
    },
}
"""How each queue of a role is reached from the scheduler."""


def manager_of(scheduler: Any) -> Any:
    """Return the rank's KV manager."""
    return scheduler.prefill_manager if scheduler.role == "prefill" else scheduler.decode_manager


class QueueReader:
    """The queues of one rank: all at once, and one at a time for the taps (it is their QueueView)."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._role = scheduler.role
        self._queues = QUEUES[scheduler.role]
        self._status = manager_of(scheduler).request_status
        rooms = scheduler.metadata_buffers.bootstrap_room
        # Reading a device's memory would wait for the device, behind work that may be stuck.
        self._rooms: Any = rooms[:, 0].numpy() if rooms.device.type == "cpu" else None
        self.owners: dict[int, int] = {}
        """Slot → room of the request seen in it last."""

    def seams(self) -> list[Seam]:
        """Return which queues are there and whether the slots can be read."""
        found = [Seam(f"queue.{name}", True, f"{self._role} scheduler") for name in self._queues]
        readable = self._rooms is not None
        device = self._scheduler.metadata_buffers.bootstrap_room.device
        return [*found, Seam("slots", readable, f"MetadataBuffers.bootstrap_room on {device}")]

    def queue(self, name: str) -> list[Any]:
        """Return the engine's list of a queue (not a copy). Raises KeyError for one this role does not have."""
        return self._queues[name](self._scheduler)

    def read(self) -> dict[str, list[QueueEntry]]:
        """Return all queues as they are now. Ages are seconds since the rank got the request."""
        now = time.monotonic()
        return {name: [self._entry(e, now) for e in list(get(self._scheduler))] for name, get in self._queues.items()}

    def _entry(self, entry: Any, now: float) -> QueueEntry:
        req = getattr(entry, "req", entry)
        state = int(self._status.get(req.bootstrap_room, UNKNOWN))
        return QueueEntry(req.bootstrap_room, req.rid, entry.metadata_buffer_index, state, now - req.entered)

    def slots(self) -> list[SlotEntry]:
        """Return the slots of requests whose metadata is on its way: room expected, room found there now."""
        if self._rooms is None:
            return []
        name = "decode.transfer" if self._role == "decode" else "prefill.inflight"
        described = [self.describe(entry) for entry in list(self.queue(name))]
        return [SlotEntry(slot, room, int(self._rooms[slot])) for room, slot in described if slot >= 0]

    def describe(self, entry: Any) -> tuple[int, int]:
        """Return (room, slot) of a queue entry."""
        room, slot = getattr(entry, "req", entry).bootstrap_room, entry.metadata_buffer_index
        if slot >= 0:
            self.owners[slot] = room
        return room, slot

    def found(self, slots: Sequence[int]) -> Sequence[int] | None:
        """Return the rooms in these slots, None where they can't be read."""
        return None if self._rooms is None else self._rooms[slots].tolist()

    def room_in(self, slot: int) -> int | None:
        """Return the room in one slot (0: not written), None where it can't be read."""
        return None if self._rooms is None or slot < 0 else int(self._rooms[slot])
