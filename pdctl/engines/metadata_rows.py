"""Read metadata rows beside a working engine: rooms and checksums, never contents.

Rows in host memory are read in place, twice, without stopping any thread. Rows on a device come through
:mod:`pdctl.engines.device_copy`, which never waits for the engine.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from pdctl.engines.device_copy import DeviceCopy
from pdctl.protocol.metadata import MAX_SLOTS, NOT_READ, Holder, Metadata, SlotRow, Tensor, Wanted
from pdctl.protocol.model import QueueEntry

ROOM = "bootstrap_room"
_AT_A_STRETCH = 20
"""Rows read before the agent's thread lets the scheduler have the GIL: some ten kilobytes each."""
_PAUSE_S = 2e-5


@dataclass(frozen=True)
class Buffers:
    """The metadata buffers of a rank. owner: the engine's MetadataBuffers. allocator: the allocator of its slots.

    taken: slot → monotonic ns at which it was taken. aux, gate, zeroed: as in :class:`pdctl.protocol.metadata.Metadata`.
    """

    owner: Any
    allocator: Any
    taken: dict[int, int] = field(default_factory=dict)
    aux: str = ""
    aux_why: str = ""
    gate: bool | None = None
    zeroed: bool | None = None


def tensors_of(owner: Any) -> dict[str, Any]:
    """Return the tensors of a MetadataBuffers by their attributes' names, which differ from version to version.

    A row of each is one slot's; a tensor whose rows are not contiguous is not one of them.
    """
    torch = sys.modules["torch"]
    rooms = getattr(owner, ROOM, None)
    if rooms is None:
        return {}
    return {
        name: value
        for name, value in vars(owner).items()
        if isinstance(value, torch.Tensor) and len(value) == len(rooms) and value.is_contiguous()
    }


def holders(queues: dict[str, list[QueueEntry]], others: Iterable[Holder] = ()) -> list[Holder]:
    """Return every request of a rank: those in its queues, and those its adapter finds outside them."""
    found = [Holder(e.room, e.rid, e.slot, name, e.state) for name, entries in queues.items() for e in entries]
    known = {(h.rid, h.slot) for h in found}
    return found + [h for h in others if (h.rid, h.slot) not in known]


class MetadataReader:
    """Answers ``metadata`` for one rank."""

    def __init__(self, buffers: Callable[[], Buffers | None]) -> None:
        self._buffers = buffers
        self._copy: DeviceCopy | None = None

    def prepare(self) -> None:
        """Allocate pinned memory if the rows are on a device. A later allocation could wait for the device."""
        buffers = self._buffers()
        tensors = tensors_of(buffers.owner) if buffers is not None else {}
        if tensors and tensors[ROOM].device.type == "cuda":
            self._copy = DeviceCopy(tensors)

    def read(self, wanted: Wanted, held: list[Holder], ticks: int) -> Metadata:
        """Return the rows asked for; ``held`` are the rank's requests."""
        buffers = self._buffers()
        if buffers is None:
            return _nothing(held, ticks, "this rank has no metadata buffers")
        tensors = tensors_of(buffers.owner)
        if not tensors:
            return _nothing(held, ticks, f"its metadata buffers have no tensor {ROOM}")
        count = min(_size(buffers.allocator), len(tensors[ROOM]))
        free = set(_free(buffers.allocator))
        everywhere = range(count)
        device = tensors[ROOM].device
        if device.type == "cpu":
            rooms, not_read = _rooms_in(tensors[ROOM], everywhere), ""
        else:
            rooms, not_read = self._fetch(everywhere, {ROOM: tensors[ROOM]}, wanted.wait_s, str(device))
        slots = select_slots(wanted, everywhere, free, held, rooms)
        left_out = max(0, len(slots) - MAX_SLOTS)
        slots = slots[:MAX_SLOTS]
        sums: dict[int, tuple[int, ...]] = {}
        changing: set[int] = set()
        if wanted.sums and not not_read:
            if device.type == "cpu":
                sums, changing = _sums(tensors, slots, rooms)
            else:
                sums, not_read = self._sums(slots, tensors, wanted.wait_s, str(device))
        now = time.monotonic_ns()
        return Metadata(
            mono_ns=now,
            ticks=ticks,
            device=str(device),
            tensors=tuple(Tensor(n, str(t.dtype).removeprefix("torch."), _row_bytes(t)) for n, t in tensors.items()),
            aux=buffers.aux,
            aux_why=buffers.aux_why,
            gate=buffers.gate,
            zeroed=buffers.zeroed,
            slots=count,
            holders=held,
            rows=[
                SlotRow(
                    slot,
                    rooms.get(slot, NOT_READ),
                    0.0 if slot in free else _since(buffers.taken.get(slot), now),
                    0 if slot in free else buffers.taken.get(slot, 0),
                    sums.get(slot, ()),
                    slot in changing,
                )
                for slot in slots
            ],
            left_out=left_out,
            not_read=not_read,
        )

    # ---- rows on a device --------------------------------------------------------------------------------------------

    def _fetch(
        self, slots: Sequence[int], tensors: dict[str, Any], wait_s: float, device: str
    ) -> tuple[dict[int, int], str]:
        copies, why = self._copied(tensors, slots, wait_s, device)
        return (_rooms_in(copies[ROOM], slots) if copies else {}), why

    def _sums(
        self, slots: Sequence[int], tensors: dict[str, Any], wait_s: float, device: str
    ) -> tuple[dict[int, tuple[int, ...]], str]:
        copies, why = self._copied(tensors, slots, wait_s, device)
        return ({slot: _row_sums(copies.values(), slot) for slot in slots} if copies else {}), why

    def _copied(
        self, tensors: dict[str, Any], slots: Sequence[int], wait_s: float, device: str
    ) -> tuple[dict[str, Any], str]:
        if self._copy is None:
            return {}, f"its metadata is on {device}, and no memory was set aside to copy it to"
        copies = self._copy.rows(tensors, slots, wait_s)
        if copies is None:
            return (
                {},
                f"its metadata is on {device}, which did not copy it within {wait_s:g} s: the device is busy or stuck",
            )
        return copies, ""


def _nothing(held: list[Holder], ticks: int, why: str) -> Metadata:
    return Metadata(time.monotonic_ns(), ticks, "", (), "", "", None, None, 0, held, [], not_read=why)


def _size(allocator: Any) -> int:
    size = getattr(allocator, "size", None)
    return size if isinstance(size, int) else 0


def _free(allocator: Any) -> list[int]:
    return list(getattr(allocator, "free_slots", ()))  # one C call: nobody changes the deque meanwhile


def _since(taken: int | None, now: int) -> float:
    return -1.0 if taken is None else max(0.0, (now - taken) / 1e9)


def select_slots(
    wanted: Wanted, everywhere: range, free: set[int], held: Sequence[Holder], rooms: dict[int, int]
) -> list[int]:
    """Return the requested slots among ``everywhere``. ``rooms``: the room in each slot."""
    if wanted.slots:
        return [slot for slot in wanted.slots if slot in everywhere]
    if wanted.every:
        return list(everywhere)
    if wanted.rooms:
        asked = set(wanted.rooms)
        own = {h.slot for h in held if h.room in asked}
        return [slot for slot in everywhere if slot in own or rooms.get(slot) in asked]
    own = {h.slot for h in held}
    return [slot for slot in everywhere if slot in own or slot not in free or rooms.get(slot, 0) > 0]


def _row_bytes(tensor: Any) -> int:
    return int(tensor.stride(0)) * int(tensor.element_size())


def _rooms_in(rooms: Any, slots: Iterable[int]) -> dict[int, int]:
    """Return slot → room. It reads the memory directly: torch lacks 64-bit unsigned operations on some devices."""
    base, step = rooms.data_ptr(), _row_bytes(rooms)
    return {slot: ctypes.c_uint64.from_address(base + slot * step).value for slot in slots}


def _row_sums(tensors: Iterable[Any], slot: int) -> tuple[int, ...]:
    return tuple(
        crc32((ctypes.c_char * size).from_address(tensor.data_ptr() + slot * size))
        for tensor in tensors
        for size in (_row_bytes(tensor),)
    )


def _sums(
    tensors: dict[str, Any], slots: Sequence[int], rooms: dict[int, int]
) -> tuple[dict[int, tuple[int, ...]], set[int]]:
    """Return the rows' checksums, and the slots that changed between two reads. Updates ``rooms``."""
    sums: dict[int, tuple[int, ...]] = {}
    changing: set[int] = set()
    for start in range(0, len(slots), _AT_A_STRETCH):
        part = slots[start : start + _AT_A_STRETCH]
        first = {slot: _row_sums(tensors.values(), slot) for slot in part}
        time.sleep(_PAUSE_S)  # the scheduler may have the GIL, and a write may go on
        now = _rooms_in(tensors[ROOM], part)
        for slot in part:
            sums[slot] = _row_sums(tensors.values(), slot)
            if sums[slot] != first[slot] or now[slot] != rooms[slot]:
                changing.add(slot)
        rooms.update(now)
    return sums, changing
