"""What the hooks at ``send_aux`` share over all backends: whether a row of MetadataBuffers can be copied, and its copy."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from pdctl.engines.sglang import seams
from pdctl.engines.sglang.backends.base import Backend
from pdctl.engines.sites import WriteSites
from pdctl.faults.table import FaultTable

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder

_ROOMS = ("disagg_metadata_buffers", "bootstrap_room")


def why_not(backend: Backend, *needed: str) -> str:
    """Return why no row can be copied for a fault, "" where it can be. needed: what a late write uses of the manager."""
    for name in needed:
        if not hasattr(backend.manager, name):
            return f"no {backend.prefix}KVManager.{name}"
    rooms = seams.follow(backend.scheduler, _ROOMS)
    if rooms is None or rooms.device.type != "cpu":
        return f"metadata is on {getattr(getattr(rooms, 'device', None), 'type', 'no device')}: its row can't be kept"
    return ""


class RowHook:
    """What a hook at ``send_aux`` has. possible: whether a row can be copied, which faults need."""

    def __init__(self, scheduler: Any, recorder: Recorder, faults: FaultTable, *, possible: bool) -> None:
        self._rooms = seams.follow(scheduler, _ROOMS)
        self._event = recorder.event
        self._faults = faults
        self._possible = possible
        self._sites = WriteSites(faults)


class RowCopy:
    """A copy of the present row ``index``, of as many tensors as ``count`` says.

    The engine reuses the row's slot as soon as it believes that the row was sent. So a late write uses the copy only.
    start, length: its memory. pointers, lengths: of each tensor's part.
    """

    def __init__(self, kv_args: Any, index: int, count: int | None = None) -> None:
        self._bases = list(kv_args.aux_data_ptrs)[:count]
        self.lengths = lengths = list(kv_args.aux_item_lens)[:count]
        rows = [
            ctypes.string_at(base + length * index, length) for base, length in zip(self._bases, lengths, strict=True)
        ]
        self.length = sum(lengths)
        self._buffer = ctypes.create_string_buffer(b"".join(rows), self.length)
        self.start = ctypes.addressof(self._buffer)
        self.pointers = [self.start + sum(lengths[:place]) for place in range(len(lengths))]

    def set_room(self, rooms: Any, room: int) -> bool:
        """Change the room in the row. False if the row of ``MetadataBuffers.bootstrap_room`` is not found in it."""
        for pointer, base in zip(self.pointers, self._bases, strict=True):
            if base == rooms.data_ptr():
                ctypes.c_uint64.from_address(pointer).value = room
                return True
        return False
