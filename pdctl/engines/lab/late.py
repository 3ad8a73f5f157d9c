"""The fault sites at what a lab's prefill rank writes to decode ranks: the metadata row and the status of a room.

``send_aux`` writes a row into the decode rank's memory and the status goes out after it, so returning 0 at once and
writing later is "Success, but no metadata yet" for that decode rank: the same seam and the same trick as with
Mooncake in SGLang.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pdctl.engines import sites
from pdctl.engines.base import Hooks, Maker, Site, before
from pdctl.engines.sglang.backends.mooncake import Writes
from pdctl.engines.sglang.seams import kv_manager
from pdctl.engines.sites import Write
from pdctl.faults.kinds import FAIL_TRANSFER, METADATA_KINDS
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import Seam

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder


def install(hooks: Hooks, scheduler: Any, recorder: Recorder, faults: FaultTable) -> list[Seam]:
    """Hook the metadata write and the status; returns the seams of the event and of the fault sites."""
    manager, config = kv_manager(scheduler), scheduler.config
    hooks.wrap(manager, "handle", "abort-message", _listens(faults))
    row_writes = RowWrites(scheduler, recorder, faults, possible=True)
    hooks.wrap(type(manager), "send_aux", "metadata", row_writes.make)
    if faults.armed:
        hooks.wrap(
            manager, "sync_status_to_decode_endpoint", "status", lambda f, site: _tells(f, site, manager, faults)
        )
    # Without metadata-sync nobody looks at what the write returned.
    fails = config.has("metadata-sync")
    detail = "PrefillKVManager.send_aux"
    return [
        Seam("events.metadata", True, detail),
        *sites.seams(sorted(METADATA_KINDS), True, detail),
        *sites.seams([FAIL_TRANSFER], fails, detail if fails else "left out: metadata-sync"),
        *sites.seams(sites.STATUS_KINDS, True, "PrefillKVManager.sync_status_to_decode_endpoint"),
    ]


def _listens(faults: FaultTable) -> Maker:
    def hears(message: dict[str, Any]) -> None:
        # Decode gives the slot away: a row that is held must not land there.
        if faults.any and message["op"] == "abort":
            faults.gone(message["room"])

    return before(hears)


def _tells(original: Callable[..., Any], site: Site, manager: Any, faults: FaultTable) -> Callable[..., Any]:
    def sync_status(dst_port: int, room: int, status: int, prefill_rank: int) -> Any:
        if faults.any and site.on:
            with site:
                memory = next(m for m in list(manager.decode_kv_args_table.values()) if m.dst_port == dst_port)
                dp, tp = memory.dst_dp_rank, memory.dst_tp_rank
                fault = sites.status_fault(faults, room, status, dp=dp, tp=tp, address=memory.session)
                if fault is not None:

                    def tell_now() -> None:
                        original(dst_port, room, status, prefill_rank)

                    if faults.hold(fault, tell_now, room=room, tp=tp):
                        return None
        return original(dst_port, room, status, prefill_rank)

    return sync_status


class RowWrites(Writes):
    """The hook at ``send_aux``. What is held for a room that decode aborts is dropped by :func:`_listens`."""

    @staticmethod
    def _write(manager: Any, req: Any) -> Write:
        memory, session = manager.decode_kv_args_table[req.mooncake_session_id], req.mooncake_session_id
        return Write(req.room, memory.dst_dp_rank, memory.dst_tp_rank, session, (session, req.dst_aux_index))

    @staticmethod
    def _still_wanted(manager: Any, req: Any) -> None:
        del manager, req

    def _late(self, send_aux: Callable[..., Any], manager: Any, req: Any, index: int, targets: Any) -> Any:
        rows = manager.kv_args.metadata
        row = rows.hold_row(index)  # the engine uses the slot again as soon as it believes the row sent
        return None if row is None else _LateRow(rows, row, lambda: send_aux(manager, req, row, targets))


class _LateRow:
    """A write of a copied row. The copy's place is given back when nobody waits for the write any more."""

    def __init__(self, rows: Any, row: int, send: Callable[[], int]) -> None:
        self._row = row
        self._send = send
        weakref.finalize(self, rows.drop_row, row)

    def __call__(self) -> None:
        result = self._send()
        if result != 0:
            raise RuntimeError(f"send_aux returned {result}")

    def set_room(self, rooms: Any, room: int) -> bool:
        rooms[self._row, 0] = room
        return True
