"""An SGLang rank's metadata rows, read where they are in its host memory.

Their addresses come from the engine: ``KVArgs.aux_data_ptrs`` and ``aux_item_lens``, which it registers for transfers. Both are
plain lists of numbers, in the order of the tensors in ``MetadataBuffers.get_buf_infos`` (0.5.10.post1 to 0.5.23).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pdctl.engines.metadata_rows import ROOM
from pdctl.engines.sglang import seams
from pdctl.introspect.memory import BadAddressError
from pdctl.introspect.proxy import World, is_tensor


@dataclass(frozen=True)
class Place:
    """One tensor: its name, where it begins, bytes a row."""

    name: str
    address: int
    row_bytes: int


class Rows:
    """The rows of one sample. off: why they can't be read, "" if they can. count: number of slots."""

    def __init__(self, scheduler: Any, world: World) -> None:
        self._world = world
        self.places: tuple[Place, ...] = ()
        self.count = 0
        self.off = ""
        try:
            self.places, self.count = _places(scheduler)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            self.off = str(error)
            return
        try:
            self.room(0)
        except BadAddressError:
            self.places, self.off = (), "its metadata is not in host memory: from outside a device's can't be read"

    @property
    def rooms(self) -> Place:
        """The tensor with the room of each row."""
        return next(place for place in self.places if place.name == ROOM)

    def room(self, slot: int) -> int:
        """Return the room in a slot, 0 where none was written."""
        rooms = self.rooms
        return self._world.objects.word(rooms.address + slot * rooms.row_bytes)

    def content(self, slot: int) -> Iterator[bytes]:
        """Yield the row of a slot in each tensor: for checksums only."""
        for place in self.places:
            yield self._world.objects.memory.read(place.address + slot * place.row_bytes, place.row_bytes)


class Column:
    """The rooms by slot, as the engine's readers take them: ``column[slot]``, and ``column[slots].tolist()``."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __getitem__(self, slots: int | Sequence[int]) -> Any:
        if isinstance(slots, int):
            return self._rows.room(slots)
        return _Values(map(self._rows.room, slots))


class _Values(list[int]):
    def tolist(self) -> list[int]:
        return list(self)


def _places(scheduler: Any) -> tuple[tuple[Place, ...], int]:
    buffers = getattr(scheduler, "disagg_metadata_buffers", None)
    arguments = getattr(seams.kv_manager(scheduler), "kv_args", None)
    if buffers is None or arguments is None:
        raise LookupError("this rank has no metadata buffers that it registered for transfers")
    addresses, lengths = list(arguments.aux_data_ptrs), list(arguments.aux_item_lens)
    totals = list(arguments.aux_data_lens)
    named = buffers.__class__.get_buf_infos.__code__.co_names
    order = [name for name in dict.fromkeys(named) if is_tensor(getattr(buffers, name, None))]
    if not len(order) == len(addresses) == len(lengths) == len(totals) or ROOM not in order:
        raise LookupError(f"{len(addresses)} metadata tensors are registered, {len(order)} are known by name")
    places = tuple(Place(*each) for each in zip(order, addresses, lengths, strict=True))
    count = {total // length for total, length in zip(totals, lengths, strict=True)}
    if len(count) != 1:
        raise LookupError("its metadata tensors are of different length")
    return places, count.pop()
