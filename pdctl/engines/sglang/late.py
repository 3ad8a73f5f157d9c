"""Hook the metadata write of the Mooncake backend: record it, and delay, change or fail it for a fault.

``MooncakeKVManager.send_aux`` writes one row of MetadataBuffers into the decode rank's memory. Then ``transfer_worker`` sends
the status. If the hook returns 0 at once and writes later, the decode rank sees "Success, but no metadata yet".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pdctl.engines import sites
from pdctl.engines.base import Hooks, Site
from pdctl.engines.sglang import seams, slot_owner
from pdctl.engines.sites import Write, WriteSites
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import EventKind, Seam

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder


def install(hooks: Hooks, scheduler: Any, recorder: Recorder, faults: FaultTable) -> list[Seam]:
    """Hook the metadata write of a prefill rank; returns the seams of the event and of the fault sites."""
    owner = getattr(seams.module(seams.MOONCAKE), "MooncakeKVManager", None)
    manager = seams.kv_manager(scheduler)
    if owner is None or not isinstance(manager, owner):
        backend = seams.server_arg(scheduler, "disaggregation_transfer_backend", "?")
        why = f"backend {backend}: only Mooncake's write is known"
        return [Seam("events.metadata", False, why), *sites.seams(sites.WRITE_KINDS, False, why)]
    why_not = _why_not(manager, scheduler)
    writes = Writes(scheduler, recorder, faults, possible=not why_not)
    there = hooks.wrap(owner, "send_aux", "metadata", writes.make)
    detail = "MooncakeKVManager.send_aux"
    aborts = slot_owner.watch_aborts(hooks, manager, faults)
    kinds = sites.seams(sites.WRITE_KINDS, there and not why_not, why_not or detail)
    return [Seam("events.metadata", there, detail), *kinds, aborts]


class Writes:
    """The hook at ``send_aux``. possible: whether a row can be copied, which faults need."""

    def __init__(self, scheduler: Any, recorder: Recorder, faults: FaultTable, *, possible: bool) -> None:
        self._rooms = seams.follow(scheduler, ("disagg_metadata_buffers", "bootstrap_room"))
        self._event = recorder.event
        self._faults = faults
        self._possible = possible
        self._sites = WriteSites(faults)

    def make(self, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        """Return the function to put in place of ``send_aux``."""
        faults = self._faults

        def send_aux(self_: Any, req: Any, prefill_aux_index: int, dst_aux_ptrs: Any, *args: Any, **kwargs: Any) -> Any:
            result = None
            if faults.any and self._possible and site.on:
                try:
                    result = self._faulty(original, self_, req, prefill_aux_index, dst_aux_ptrs)
                except Exception:  # the write goes its usual way
                    site.failed()
            if result is None:
                result = original(self_, req, prefill_aux_index, dst_aux_ptrs, *args, **kwargs)
                if site.on:
                    try:
                        self._sent(self_, req, int(result))
                        if faults.armed:
                            self._sites.done(self._write(self_, req))
                    except Exception:
                        site.failed()
            return result

        return send_aux

    @staticmethod
    def _write(manager: Any, req: Any) -> Write:
        session = req.mooncake_session_id
        tp = int(manager.decode_kv_args_table[session].dst_tp_rank)
        return Write(req.room, -1, tp, session, (session, req.dst_aux_index))

    @staticmethod
    def _still_wanted(manager: Any, req: Any) -> Callable[[], bool] | None:
        return slot_owner.check(manager, req)

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


def _why_not(manager: Any, scheduler: Any) -> str:
    for name in ("kv_args", "decode_kv_args_table", "_transfer_data", "engine"):
        if not hasattr(manager, name):
            return f"no MooncakeKVManager.{name}"
    rooms = seams.follow(scheduler, ("disagg_metadata_buffers", "bootstrap_room"))
    if rooms is None or rooms.device.type != "cpu":
        return f"metadata is on {getattr(getattr(rooms, 'device', None), 'type', 'no device')}: its row can't be kept"
    return ""


class LateWrite:
    """A metadata write for later: a copy of the present row, and the engine's own ``send_aux``.

    The engine reuses the row's slot as soon as it believes that the row was sent. So the late write uses the copy only.
    Calling the object does the write. It raises RuntimeError if the engine reports a failure.
    """

    def __init__(self, send_aux: Callable[..., Any], manager: Any, req: Any, index: int, targets: Any) -> None:
        kv_args = manager.kv_args
        lengths = list(kv_args.aux_item_lens)
        rows = [
            ctypes.string_at(base + length * index, length)
            for base, length in zip(kv_args.aux_data_ptrs, lengths, strict=True)
        ]
        self._buffer = ctypes.create_string_buffer(b"".join(rows), sum(lengths))
        start = ctypes.addressof(self._buffer)
        pointers = [start + sum(lengths[:place]) for place in range(len(lengths))]
        self._start, self._length = start, sum(lengths)
        self._bases = list(kv_args.aux_data_ptrs)
        self._send_aux, self._req, self._targets, self._manager = send_aux, req, targets, manager
        self._proxy = ManagerProxy(manager, SimpleNamespace(aux_data_ptrs=pointers, aux_item_lens=lengths))

    def __call__(self) -> None:
        """Do the write, on a thread that is not the engine's."""
        engine = self._manager.engine
        # RDMA reads from registered memory only; over TCP this is a no-op.
        engine.register(self._start, self._length)
        try:
            result = self._send_aux(self._proxy, self._req, 0, self._targets)
        finally:
            engine.deregister(self._start)
            self.close()
        if result != 0:
            raise RuntimeError(f"send_aux returned {result}")

    def set_room(self, rooms: Any, room: int) -> bool:
        """Change the room in the row. False if the row of ``MetadataBuffers.bootstrap_room`` is not found in it."""
        for pointer, base in zip(self._proxy.kv_args.aux_data_ptrs, self._bases, strict=True):
            if base == rooms.data_ptr():
                ctypes.c_uint64.from_address(pointer).value = room
                return True
        return False

    def close(self) -> None:
        """Close what the write opened."""
        self._proxy.close()


class ManagerProxy:
    """A proxy of the KV manager for its own functions on a thread of pdctl. It has its own sockets.

    kv_args: location of the row of a late write, None for the manager's own.

    The path that sends metadata in messages (``send_aux_tcp``) keeps ZeroMQ sockets which belong to the engine's
    threads; a late write runs on another one and opens its own.
    """

    def __init__(self, manager: Any, kv_args: Any = None) -> None:
        self._manager = manager
        self._sockets: list[Any] = []
        self.kv_args = manager.kv_args if kv_args is None else kv_args

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def send_aux_tcp(self, *args: Any, **kwargs: Any) -> Any:
        """Do as the manager does, through these sockets."""
        return type(self._manager).send_aux_tcp(self, *args, **kwargs)

    def send_aux_data_to_endpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Do as the manager does, through these sockets."""
        return type(self._manager).send_aux_data_to_endpoint(self, *args, **kwargs)

    def _connect(self, endpoint: str, is_ipv6: bool = False) -> Any:
        import zmq

        if not self._sockets:
            socket: Any = zmq.Context.instance().socket(zmq.PUSH)
            socket.setsockopt(zmq.LINGER, 10_000)
            if is_ipv6:
                socket.setsockopt(zmq.IPV6, 1)
            socket.connect(endpoint)
            self._sockets.append(socket)
        return self._sockets[0]

    def close(self) -> None:
        """Close the sockets; what was sent goes out first."""
        for socket in self._sockets:
            socket.close()
        self._sockets.clear()
