"""A rank's metadata slots: the owner of each slot, the room in it, and a checksum of each row.

Data only, as :mod:`pdctl.protocol.model`. Rooms, shapes and checksums are included. The content of a row never is.
"""

from __future__ import annotations

import msgspec

NOT_READ = -1
MAX_SLOTS = 20_000


class Tensor(msgspec.Struct, frozen=True):
    """One tensor of the metadata buffers: ``row_bytes`` for each slot."""

    name: str
    dtype: str
    row_bytes: int


class Holder(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A request of this rank, wherever it is. where: a queue's name, or a place outside the queues (``chunked_req``).

    slot: metadata slot, -1 without one. state: KVPoll or UNKNOWN.
    """

    room: int
    rid: str
    slot: int
    where: str
    state: int


class SlotRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One slot. found: room in it, NOT_READ where it could not be read.

    held_s: seconds since it was taken from the allocator, 0.0: it is free, -1.0: taken before the agent was there.
    allocation: monotonic ns of that, so that two answers can be told to be of one allocation; 0 where unknown.
    sums: crc32 of the row in each tensor, in ``Metadata.tensors``' order, empty where not asked for or not read.
    changing: two reads in a row differed, so the row was being written.
    """

    slot: int
    found: int
    held_s: float
    allocation: int = 0
    sums: tuple[int, ...] = ()
    changing: bool = False


class Metadata(msgspec.Struct, frozen=True):
    """A live rank's answer to ``metadata``.

    device: device of the tensors (``cpu``, ``cuda:0``). aux: transport of the rows: ``rdma`` (one-sided write by the transfer
    engine), ``bound`` (the same, and decode hears of the end by what is bound to that write), ``tcp`` (a message that this
    side copies), "" if unknown. aux_why: evidence for aux.
    gate: whether the rank's code holds Success back while a slot reads 0; None on prefill. zeroed: whether it zeroes freed
    slots. slots: number of slots. rows: the rows asked for. left_out: whether more than MAX_SLOTS were asked for.
    not_read: why rooms or checksums are missing, "" if none is missing.
    """

    mono_ns: int
    ticks: int
    device: str
    tensors: tuple[Tensor, ...]
    aux: str
    aux_why: str
    gate: bool | None
    zeroed: bool | None
    slots: int
    holders: list[Holder]
    rows: list[SlotRow]
    left_out: int = 0
    not_read: str = ""


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which slots are asked for. Empty slots and rooms: those with an owner, taken, or with a room in them; every: all.

    rooms: slots whose owner or content is one of these. sums: with checksums. wait_s: how long a copy from a device may
    take.
    """

    slots: tuple[int, ...] = ()
    rooms: tuple[int, ...] = ()
    every: bool = False
    sums: bool = True
    wait_s: float = 0.5
