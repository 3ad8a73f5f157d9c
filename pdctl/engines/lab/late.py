"""The metadata write of a lab's prefill rank: seen, and held back where a fault asks for it.

``send_aux`` writes a row into the decode rank's memory and the status goes out after it, so returning 0 at once and
writing later is "Success, but no metadata yet" for that decode rank: the same seam and the same trick as with
Mooncake in SGLang.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pdctl.engines.base import Hooks, Site
from pdctl.engines.lab.reader import manager_of
from pdctl.inject.faults import DELAY_METADATA, SEAM_PREFIX
from pdctl.inject.table import FaultTable
from pdctl.model import EventKind, Seam

if TYPE_CHECKING:
    from pdctl.agent.tap import Recorder


def install(hooks: Hooks, scheduler: Any, recorder: Recorder, faults: FaultTable) -> list[Seam]:
    """Hook the metadata write; returns the seams of the event and of the fault site."""
    manager = manager_of(scheduler)
    rows = scheduler.metadata_buffers

    def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def send_aux(req: Any, prefill_aux_index: int, dst_aux_ptrs: Any) -> Any:
            memory = manager.decode_kv_args_table[req.mooncake_session_id]
            if site.on and faults.metadata:
                try:
                    if _held(req, prefill_aux_index, dst_aux_ptrs, memory):
                        return 0
                except Exception as error:  # the write goes its usual way
                    site.failed(error)
            result = original(req, prefill_aux_index, dst_aux_ptrs)
            if site.on:
                try:
                    event = EventKind.META_SENT
                    recorder.event(event, room=req.room, slot=req.dst_aux_index, a=memory.dst_tp_rank, b=result)
                except Exception as error:
                    site.failed(error)
            return result

        def _held(req: Any, index: int, targets: Any, memory: Any) -> bool:
            place = (req.mooncake_session_id, req.dst_aux_index)
            fault = faults.metadata_fault(
                req.room, memory.dst_dp_rank, memory.dst_tp_rank, req.mooncake_session_id, place
            )
            if fault is None:
                return False
            row = rows.hold_row(index)  # the engine uses the slot again as soon as it believes the row sent
            if row is None:
                return False

            def write_now() -> None:
                result = original(req, row, targets)
                if result != 0:
                    raise RuntimeError(f"send_aux returned {result}")
                recorder.event(
                    EventKind.META_SENT, room=req.room, slot=req.dst_aux_index, a=memory.dst_tp_rank, b=result
                )

            weakref.finalize(write_now, rows.drop_row, row)  # written, or dropped because nobody waits for it any more
            return faults.hold(fault, write_now, room=req.room, tp=memory.dst_tp_rank, place=place)

        return send_aux

    def listen(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def handle(message: dict[str, Any]) -> Any:
            if site.on and faults.metadata:
                try:
                    if message["op"] == "abort":  # decode gives the slot away: a row that is held must not land there
                        faults.gone(message["room"])
                except Exception as error:
                    site.failed(error)
            return original(message)

        return handle

    hooks.wrap(manager, "handle", "abort-message", listen)
    hooks.wrap(manager, "send_aux", "metadata", make)
    detail = "PrefillKVManager.send_aux"
    return [Seam("events.metadata", True, detail), Seam(SEAM_PREFIX + DELAY_METADATA, True, detail)]
