"""The metadata write of the Mooncake backend: seen, and held back where a fault asks for it.

``MooncakeKVManager.send_aux`` writes one row of MetadataBuffers into the decode rank's memory; ``transfer_worker`` sends
the status after it, so returning 0 at once and writing later is "Success, but no metadata yet" for that decode rank.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pdctl.engines.base import Hooks, Site
from pdctl.engines.sglang import seams, wanted
from pdctl.inject.faults import DELAY_METADATA, SEAM_PREFIX
from pdctl.inject.table import FaultTable
from pdctl.model import EventKind, Seam

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder


def install(hooks: Hooks, scheduler: Any, recorder: Recorder, faults: FaultTable) -> list[Seam]:
    """Hook the metadata write of a prefill rank; returns the seams of the event and of the fault site."""
    owner = getattr(seams.module(seams.MOONCAKE), "MooncakeKVManager", None)
    manager = seams.kv_manager(scheduler)
    fault = SEAM_PREFIX + DELAY_METADATA
    if owner is None or not isinstance(manager, owner):
        backend = seams.server_arg(scheduler, "disaggregation_transfer_backend", "?")
        why = f"backend {backend}: only Mooncake's write is known"
        return [Seam("events.metadata", False, why), Seam(fault, False, why)]
    why_not = _why_not(manager, scheduler)
    event = recorder.event

    def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def send_aux(self_: Any, req: Any, prefill_aux_index: int, dst_aux_ptrs: Any, *args: Any, **kwargs: Any) -> Any:
            tp = -1
            if site.on:
                try:
                    tp = int(self_.decode_kv_args_table[req.mooncake_session_id].dst_tp_rank)
                    if faults.metadata and not why_not:
                        place = (req.mooncake_session_id, req.dst_aux_index)
                        fault = faults.metadata_fault(req.room, -1, tp, req.mooncake_session_id, place)
                        if fault is not None:
                            late = LateWrite(original, self_, req, prefill_aux_index, dst_aux_ptrs)
                            wanted_still = wanted.check(self_, req)
                            if faults.hold(fault, late, room=req.room, tp=tp, place=place, still_wanted=wanted_still):
                                return 0
                            late.close()
                except Exception as error:
                    site.failed(error)
            result = original(self_, req, prefill_aux_index, dst_aux_ptrs, *args, **kwargs)
            if site.on:
                try:
                    event(EventKind.META_SENT, room=req.room, slot=int(req.dst_aux_index), a=tp, b=int(result))
                except Exception as error:
                    site.failed(error)
            return result

        return send_aux

    there = hooks.wrap(owner, "send_aux", "metadata", make)
    detail = "MooncakeKVManager.send_aux"
    aborts = wanted.watch_aborts(hooks, manager, faults)
    return [Seam("events.metadata", there, detail), Seam(fault, there and not why_not, why_not or detail), aborts]


def _why_not(manager: Any, scheduler: Any) -> str:
    for name in ("kv_args", "decode_kv_args_table", "_transfer_data", "engine"):
        if not hasattr(manager, name):
            return f"no MooncakeKVManager.{name}"
    rooms = seams.follow(scheduler, ("disagg_metadata_buffers", "bootstrap_room"))
    if rooms is None or rooms.device.type != "cpu":
        return f"metadata is on {getattr(getattr(rooms, 'device', None), 'type', 'no device')}: its row can't be kept"
    return ""


class LateWrite:
    """A metadata write to be done later: the row as it is now, and the engine's own ``send_aux`` to send it with.

    The engine reuses the row's slot as soon as it believes the row sent, so the late write must not read it again.
    Calling the object writes; it raises RuntimeError when the engine says that it failed.
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
        self._send_aux, self._req, self._targets, self._manager = send_aux, req, targets, manager
        self._stand_in = _StandIn(manager, SimpleNamespace(aux_data_ptrs=pointers, aux_item_lens=lengths))

    def __call__(self) -> None:
        """Do the write, on a thread that is not the engine's."""
        engine = self._manager.engine
        # RDMA reads from registered memory only; over TCP this is a no-op.
        engine.register(self._start, self._length)
        try:
            result = self._send_aux(self._stand_in, self._req, 0, self._targets)
        finally:
            engine.deregister(self._start)
            self.close()
        if result != 0:
            raise RuntimeError(f"send_aux returned {result}")

    def close(self) -> None:
        """Close what the write opened."""
        self._stand_in.close()


class _StandIn:
    """The KV manager as ``send_aux`` sees it during a late write: its own, except for where the row is.

    The path that sends metadata in messages (``send_aux_tcp``) keeps ZeroMQ sockets which belong to the engine's
    threads; a late write runs on another one and opens its own.
    """

    def __init__(self, manager: Any, kv_args: Any) -> None:
        self._manager = manager
        self._sockets: list[Any] = []
        self.kv_args = kv_args

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def send_aux_tcp(self, *args: Any, **kwargs: Any) -> Any:
        return type(self._manager).send_aux_tcp(self, *args, **kwargs)

    def send_aux_data_to_endpoint(self, *args: Any, **kwargs: Any) -> Any:
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
        for socket in self._sockets:
            socket.close()
        self._sockets.clear()
