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
from pdctl.engines.base import Hooks, Site
from pdctl.engines.sglang.seams import kv_manager
from pdctl.engines.sites import Write, WriteSites
from pdctl.faults.kinds import FAIL_TRANSFER, METADATA_KINDS
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import EventKind, Seam

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder


def install(hooks: Hooks, scheduler: Any, recorder: Recorder, faults: FaultTable) -> list[Seam]:
    """Hook the metadata write and the status; returns the seams of the event and of the fault sites."""
    manager, config = kv_manager(scheduler), scheduler.config
    hooks.wrap(manager, "handle", "abort-message", lambda original, site: _listens(original, site, faults))
    row_writes = RowWrites(manager, scheduler.disagg_metadata_buffers, recorder, faults)
    hooks.wrap(manager, "send_aux", "metadata", row_writes.make)
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


def _listens(original: Callable[..., Any], site: Site, faults: FaultTable) -> Callable[..., Any]:
    def handle(message: dict[str, Any]) -> Any:
        if faults.any and site.on:
            try:
                if message["op"] == "abort":  # decode gives the slot away: a row that is held must not land there
                    faults.gone(message["room"])
            except Exception as error:
                site.failed(error)
        return original(message)

    return handle


def _tells(original: Callable[..., Any], site: Site, manager: Any, faults: FaultTable) -> Callable[..., Any]:
    def sync_status(dst_port: int, room: int, status: int, prefill_rank: int) -> Any:
        if faults.any and site.on:
            try:
                memory = next(m for m in list(manager.decode_kv_args_table.values()) if m.dst_port == dst_port)
                dp, tp = memory.dst_dp_rank, memory.dst_tp_rank
                fault = sites.status_fault(faults, room, status, dp=dp, tp=tp, address=memory.session)
                if fault is not None:

                    def tell_now() -> None:
                        original(dst_port, room, status, prefill_rank)

                    if faults.hold(fault, tell_now, room=room, tp=tp):
                        return None
            except Exception as error:
                site.failed(error)
        return original(dst_port, room, status, prefill_rank)

    return sync_status


class RowWrites:
    """The hook at ``send_aux``."""

    def __init__(self, manager: Any, rows: Any, recorder: Recorder, faults: FaultTable) -> None:
        self._manager = manager
        self._rows = rows
        self._recorder = recorder
        self._faults = faults
        self._sites = WriteSites(faults)

    def make(self, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        """Return the function to put in place of ``send_aux``."""
        faults = self._faults

        def send_aux(req: Any, prefill_aux_index: int, dst_aux_ptrs: Any) -> Any:
            result = None
            if faults.any and site.on:
                try:
                    result = self._faulty(original, req, prefill_aux_index, dst_aux_ptrs)
                except Exception as error:  # the write goes its usual way
                    site.failed(error)
            if result is None:
                result = original(req, prefill_aux_index, dst_aux_ptrs)
                if site.on:
                    try:
                        self._sent(req, result)
                        if faults.armed:
                            self._sites.done(self._write(req))
                    except Exception as error:
                        site.failed(error)
            return result

        return send_aux

    def _write(self, req: Any) -> Write:
        memory, session = self._manager.decode_kv_args_table[req.mooncake_session_id], req.mooncake_session_id
        return Write(req.room, memory.dst_dp_rank, memory.dst_tp_rank, session, (session, req.dst_aux_index))

    def _sent(self, req: Any, result: int) -> None:
        tp = self._manager.decode_kv_args_table[req.mooncake_session_id].dst_tp_rank
        self._recorder.event(EventKind.META_SENT, room=req.room, slot=req.dst_aux_index, a=tp, b=result)

    def _faulty(self, original: Callable[..., Any], req: Any, index: int, targets: Any) -> int | None:
        """Return what the engine is told of a write that a fault took, None where none did."""
        write = self._write(req)
        if self._sites.fails(write):
            return -1
        fault = self._sites.holds(write)
        if fault is not None and self._held(original, fault, write, (req, index, targets)):
            return 0
        wrong = self._sites.wrong_room(write)
        return self._wrong(original, wrong, req, index, targets) if wrong else None

    def _held(self, original: Callable[..., Any], fault: Any, write: Write, args: tuple[Any, int, Any]) -> bool:
        req, index, targets = args
        row = self._rows.hold_row(index)  # the engine uses the slot again as soon as it believes the row sent
        if row is None:
            return False

        def write_now() -> None:
            result = original(req, row, targets)
            if result != 0:
                raise RuntimeError(f"send_aux returned {result}")
            self._sent(req, result)

        weakref.finalize(write_now, self._rows.drop_row, row)  # written, or dropped: nobody waits for it any more
        return self._faults.hold(fault, write_now, room=write.room, tp=write.tp, place=write.place)

    def _wrong(self, original: Callable[..., Any], room: int, req: Any, index: int, targets: Any) -> int | None:
        row = self._rows.hold_row(index)
        if row is None:
            return None
        try:
            self._rows.bootstrap_room[row, 0] = room
            result: int = original(req, row, targets)
        finally:
            self._rows.drop_row(row)
        self._sent(req, result)
        return result
