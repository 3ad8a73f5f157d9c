"""The Mooncake backend. Its metadata write is recorded, and delayed, changed or failed for a fault.

``MooncakeKVManager.send_aux`` writes one row of MetadataBuffers into the decode rank's memory. Then ``transfer_worker`` sends
the status. If the hook returns 0 at once and writes later, the decode rank sees "Success, but no metadata yet".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pdctl.engines import sites
from pdctl.engines.base import Hooks, Site
from pdctl.engines.sglang.backends import rows, slot_owner, status
from pdctl.engines.sglang.backends.base import Backend
from pdctl.engines.sglang.backends.status import ManagerProxy
from pdctl.engines.sites import Write
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import EventKind, Seam

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder


SEND_AUX_TCP = "SGLANG_MOONCAKE_SEND_AUX_TCP"


class Mooncake(Backend):
    """Mooncake, and Ascend, whose classes are Mooncake's with another engine."""

    prefix = "Mooncake"

    def is_it(self) -> bool:
        """Return whether the rank's manager is Mooncake's or Ascend's."""
        return self.manager is not None and self.kind.__name__ in ("MooncakeKVManager", "AscendKVManager")

    def aux(self, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
        """Return (``rdma`` or ``tcp``, the evidence).

        ``MooncakeKVManager.send_aux`` sends a message if its own code names the memory pool in use (NVLINK up to 0.5.23, also
        INTRA_NODE_NVLINK in 0.5.11 to 0.5.12.post1), or if SGLANG_MOONCAKE_SEND_AUX_TCP is set.
        """
        manager = self.manager
        code = getattr(getattr(self.kind, "send_aux", None), "__code__", None)
        if code is None or not self.kind.__name__.startswith(self.prefix):
            return super().aux(environ)
        custom = getattr(manager, "enable_custom_mem_pool", False)
        pool = getattr(manager, "custom_mem_pool_type", None) if custom else None
        if pool is not None and pool in _words(code.co_consts):
            return "tcp", f"memory pool {pool}: send_aux sends a message"
        if environ.get(SEND_AUX_TCP, "").strip().lower() in ("1", "true", "yes", "y") and SEND_AUX_TCP in code.co_names:
            return "tcp", f"{SEND_AUX_TCP} is set: send_aux sends a message"
        where = f"memory pool {pool}" if pool is not None else "no custom memory pool"
        return "rdma", f"{where}: send_aux writes into the row"

    def install(self, hooks: Hooks, recorder: Recorder, faults: FaultTable, role: str) -> list[Seam]:
        """Hook the metadata write and the status of a prefill rank; return the seams of the event and of the fault sites."""
        if role != "prefill":
            return []
        why_not = rows.why_not(self, "kv_args", "decode_kv_args_table", "_transfer_data", "engine")
        writes = Writes(self.scheduler, recorder, faults, possible=not why_not)
        there = hooks.wrap(self.kind, "send_aux", "metadata", writes.make)
        detail = f"{self.kind.__name__}.send_aux"
        return [
            Seam("events.metadata", there, detail),
            *sites.seams(sites.WRITE_KINDS, there and not why_not, why_not or detail),
            *sites.seams(sites.STATUS_KINDS, *status.install(hooks, self.kind, faults)),
            slot_owner.watch_aborts(hooks, self, faults),
        ]


def _words(consts: Iterable[Any]) -> Iterator[str]:
    for const in consts:
        if isinstance(const, str):
            yield const
        elif isinstance(const, tuple | frozenset):
            yield from _words(const)


class Writes(rows.RowHook):
    """The hook at ``send_aux``."""

    def make(self, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        """Return the function to put in place of ``send_aux``."""
        faults = self._faults

        def send_aux(self_: Any, req: Any, prefill_aux_index: int, dst_aux_ptrs: Any, *args: Any, **kwargs: Any) -> Any:
            result = None
            if faults.any and self._possible and site.on:
                with site:  # else the write goes its usual way
                    result = self._faulty(original, self_, req, prefill_aux_index, dst_aux_ptrs)
            if result is None:
                result = original(self_, req, prefill_aux_index, dst_aux_ptrs, *args, **kwargs)
                if site.on:
                    with site:
                        self._sent(self_, req, int(result))
                        if faults.armed:
                            self._sites.done(self._write(self_, req))
            return result

        return send_aux

    @staticmethod
    def _write(manager: Any, req: Any) -> Write:
        session = req.mooncake_session_id
        tp = int(manager.decode_kv_args_table[session].dst_tp_rank)
        return Write(req.room, -1, tp, session, (session, req.dst_aux_index))

    @staticmethod
    def _still_wanted(manager: Any, req: Any) -> Callable[[], bool] | None:
        return slot_owner.check(manager, req.mooncake_session_id, req.room, req.dst_aux_index)

    def _late(self, send_aux: Callable[..., Any], manager: Any, req: Any, index: int, targets: Any) -> Any:
        """Return the write of this row for later, as a LateWrite; None where the row can't be kept."""
        return LateWrite(send_aux, manager, req, index, targets)

    def _sent(self, manager: Any, req: Any, result: int) -> None:
        tp = int(manager.decode_kv_args_table[req.mooncake_session_id].dst_tp_rank)
        self._event(EventKind.META_SENT, room=req.room, slot=int(req.dst_aux_index), a=tp, b=result)

    def _faulty(self, send_aux: Callable[..., Any], manager: Any, req: Any, index: int, targets: Any) -> int | None:
        """Return what the engine is told of a write that a fault took, None where none did."""
        write = self._write(manager, req)
        if self._sites.fails(write):
            return -1
        fault, wrong = self._sites.holds(write), 0
        if fault is None:
            wrong = self._sites.wrong_room(write)
            if not wrong:
                return None
        late = self._late(send_aux, manager, req, index, targets)
        if late is None:
            return None
        if fault is not None:

            def write_now() -> None:
                late()
                self._sent(manager, req, 0)

            still_wanted = self._still_wanted(manager, req)
            if self._faults.hold(
                fault, write_now, room=write.room, tp=write.tp, place=write.place, still_wanted=still_wanted
            ):
                return 0
            return None
        if not late.set_room(self._rooms, wrong):
            return None
        late()
        self._sent(manager, req, 0)
        return 0


class LateWrite(rows.RowCopy):
    """A metadata write for later: a copy of the present row, and the engine's own ``send_aux``.

    Calling the object does the write. It raises RuntimeError if the engine reports a failure.
    """

    def __init__(self, send_aux: Callable[..., Any], manager: Any, req: Any, index: int, targets: Any) -> None:
        super().__init__(manager.kv_args, index)
        self._send_aux, self._req, self._targets, self._manager = send_aux, req, targets, manager
        self._proxy = ManagerProxy(manager, SimpleNamespace(aux_data_ptrs=self.pointers, aux_item_lens=self.lengths))

    def __call__(self) -> None:
        """Do the write, on a thread that is not the engine's."""
        engine = self._manager.engine
        # RDMA reads from registered memory only; over TCP this is a no-op.
        engine.register(self.start, self.length)
        try:
            result = self._send_aux(self._proxy, self._req, 0, self._targets)
        finally:
            engine.deregister(self.start)
            self._proxy.close()
        if result != 0:
            raise RuntimeError(f"send_aux returned {result}")
