"""Fault sites at seams that all engines with SGLang's structure have: polls, registration and query of dp ranks.

A site first makes one cheap test (``table.any``). While no fault is in place it does nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pdctl.engines.base import Maker, Site
from pdctl.engines.shared import POLLED_STATES
from pdctl.faults.fault import Fault
from pdctl.faults.kinds import (
    ABORT,
    CORRUPT_ROOM,
    DELAY_REGISTRATION,
    DROP_STATUS,
    FAIL_TRANSFER,
    FLIP_POLL,
    HELD_METADATA,
    HELD_STATUS,
    HIDE_REGISTRATION,
    KINDS,
    METADATA_KINDS,
    MISROUTE,
    SKEW_POLL,
    STALE_METADATA,
)
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import KVPoll, Seam

POLL_KINDS = (SKEW_POLL, FLIP_POLL, ABORT)
WRITE_KINDS = (*sorted(METADATA_KINDS), FAIL_TRANSFER)
STATUS_KINDS = tuple(sorted(HELD_STATUS))
REGISTRATION_KINDS = (DELAY_REGISTRATION, MISROUTE)
QUERY_KINDS = (HIDE_REGISTRATION,)

_ROOM_BITS = (1 << 63) - 1
_WRONG_BITS = 0x5555_5555_5555_5555 & _ROOM_BITS
_MAX_PLACES = 4096


def seams(kinds: Iterable[str], present: bool, detail: str) -> list[Seam]:
    """Return the Seams of the sites of these kinds: found in ``detail``, or missing because of it."""
    return [Seam(KINDS[kind].seam, present, detail) for kind in kinds]


class Instead:
    """A proxy of an engine object for one call: it has the object's attributes, except for the replaced ones."""

    def __init__(self, real: Any, **instead: Any) -> None:
        self.__dict__.update(instead, _real=real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class PollSites:
    """The sites at the polls of one rank: late to a round, another state, the engine's own abort. Scheduler's thread."""

    def __init__(self, table: FaultTable) -> None:
        self.table = table
        self.flipped: list[tuple[Any, str]] = []
        """What says another state now: object and name of its method."""

    def before(self, entries: Sequence[Any]) -> None:
        """Delay the poll of a queue, then abort the rooms that a fault selects. ``entries``: the entries to be polled."""
        table = self.table
        for fault in table.any:
            if fault.kind == SKEW_POLL and entries:
                self._be_late(fault.room, entries)
            elif fault.kind == ABORT:
                for entry in list(entries):
                    self._abort(entry)

    def _be_late(self, wanted: int, entries: Sequence[Any]) -> None:
        if wanted and all(_request(entry).bootstrap_room != wanted for entry in entries):
            return
        # A late poll is late for every room in it: without a room asked for, it is counted for none of them.
        fault = self.table.decide(SKEW_POLL, wanted)
        if fault is not None:
            self.table.linger(fault)

    def _abort(self, entry: Any) -> None:
        transfer = transfer_of(entry)
        if transfer is None or getattr(transfer, "conclude_state", None) is not None:
            return
        request = _request(entry)
        if self.table.decide(ABORT, request.bootstrap_room or 0, rid=str(request.rid)) is not None:
            transfer.abort()

    def flip(self, queue: str, entries: Sequence[Any], pollers: Sequence[Any]) -> None:
        """Make pollers return another state until :meth:`unflip`. The caller must always call :meth:`unflip`."""
        states = {fault.value for fault in self.table.any if fault.kind == FLIP_POLL}
        if not states or not states <= POLLED_STATES[queue]:  # the engine raises on a state it does not expect there
            return
        requests = [_request(entry) for entry in entries] if len(entries) == len(pollers) else [None] * len(pollers)
        for request, poller in zip(requests, pollers, strict=True):
            one = transfer_of(poller) or poller
            room, rid = one.bootstrap_room or 0, "" if request is None else str(request.rid)
            fault = self.table.decide(FLIP_POLL, room, rid=rid)
            if fault is not None:
                for name in ("poll", "poll_pp_consensus"):  # the second: SGLang 0.5.23
                    if hasattr(one, name):
                        setattr(one, name, _says(fault.value))
                        self.flipped.append((one, name))

    def unflip(self) -> None:
        """Make all pollers return their own state again."""
        while self.flipped:
            one, name = self.flipped.pop()
            vars(one).pop(name, None)


def _says(state: int) -> Callable[[], int]:
    return lambda: state


def _request(entry: Any) -> Any:
    return getattr(entry, "req", entry)


def transfer_of(entry: Any) -> Any:
    """Return the sender or receiver of a queue entry, None where it has none (yet)."""
    receiver = getattr(entry, "kv_receiver", None)
    return receiver if receiver is not None else getattr(entry, "disagg_kv_sender", None)


@dataclass(frozen=True)
class Write:
    """A metadata write under way: its room, its decode rank, and its destination there (session and slot)."""

    room: int
    dp: int
    tp: int
    address: str
    place: tuple[str, int]


class WriteSites:
    """The decisions of one rank's faults about a metadata write. Called on any writing thread of the engine."""

    def __init__(self, table: FaultTable) -> None:
        self.table = table
        self._before: dict[Hashable, int] = {}

    def fails(self, write: Write) -> bool:
        """Return whether the write shall fail."""
        return self._decided(FAIL_TRANSFER, write)

    def holds(self, write: Write) -> Fault | None:
        """Return the fault that may hold the write back; drops what is held for another room at the same place."""
        return self.table.offer(
            HELD_METADATA, write.room, dp=write.dp, tp=write.tp, address=write.address, place=write.place
        )

    def wrong_room(self, write: Write) -> int:
        """Return the room that the row shall hold instead of its own, 0 for its own.

        For a stale row without a given room this is the room that this rank wrote to the same slot before, else the last room
        that it wrote to the same decode rank. Without any, the write passes.
        """
        for fault in self.table.metadata:
            if fault.kind == CORRUPT_ROOM:
                room = write.room & _ROOM_BITS ^ _WRONG_BITS
            elif fault.kind == STALE_METADATA:
                room = fault.value or self._before.get(write.place) or self._before.get(write.address, 0)
            else:
                continue
            if room not in (0, write.room) and self._decided(fault.kind, write):
                return room
        return 0

    def done(self, write: Write) -> None:
        """Note the room whose row is now at that place."""
        if len(self._before) > _MAX_PLACES:
            self._before.clear()
        self._before[write.place] = self._before[write.address] = write.room

    def _decided(self, kind: str, write: Write) -> bool:
        return self.table.decide(kind, write.room, dp=write.dp, tp=write.tp, address=write.address) is not None


def status_fault(table: FaultTable, room: int, status: int, *, dp: int, tp: int, address: str) -> Fault | None:
    """Return the fault that may hold back the message that tells a decode rank how a room's transfer ended."""
    kinds = {KVPoll.SUCCESS: STATUS_KINDS, KVPoll.FAILED: (DROP_STATUS,)}.get(KVPoll(status), ())
    return table.offer(kinds, room, dp=dp, tp=tp, address=address) if kinds else None


def registration(table: FaultTable) -> Maker:
    """Return a maker of the hook at the method of a sender that registers its room's dp rank."""

    def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def registers(sender: Any, *args: Any, **kwargs: Any) -> Any:
            if table.any and site.on:
                with site:
                    room = sender.bootstrap_room
                    fault = table.offer((DELAY_REGISTRATION,), room)
                    if fault is not None and table.hold(fault, lambda: original(sender, *args, **kwargs), room=room):
                        return None
                    fault = table.decide(MISROUTE, room)
                    if fault is not None:
                        sender = Instead(sender, kv_mgr=Instead(sender.kv_mgr, attn_dp_rank=fault.value))
            return original(sender, *args, **kwargs)

        return registers

    return make


def query(table: FaultTable) -> Maker:
    """Return a maker of the hook at the static method that asks for the dp ranks of rooms."""

    def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def queries(bootstrap_addr: str, bootstrap_rooms: list[int], *args: Any, **kwargs: Any) -> Any:
            result = original(bootstrap_addr, bootstrap_rooms, *args, **kwargs)
            if table.any and site.on:
                with site:
                    answered = [str(room) for room in bootstrap_rooms if str(room) in result]
                    hidden = {room for room in answered if table.decide(HIDE_REGISTRATION, int(room)) is not None}
                    if hidden:
                        result = {room: dp for room, dp in result.items() if room not in hidden}
            return result

        return queries

    return make
