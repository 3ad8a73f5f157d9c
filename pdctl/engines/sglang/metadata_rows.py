"""An SGLang rank's metadata rows: location, transport, and owners outside the queues."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pdctl.engines.metadata_rows import Buffers
from pdctl.engines.sglang import seams
from pdctl.protocol.metadata import Holder
from pdctl.protocol.model import UNKNOWN

SEND_AUX_TCP = "SGLANG_MOONCAKE_SEND_AUX_TCP"
_BATCH_LISTS = ("mbs", "running_mbs", "last_mbs")
"""Microbatches of a pipeline stage, in ``scheduler_pp_mixin.py``."""


@dataclass(frozen=True)
class Facts:
    """How a rank's code treats rows. Read these before any hook is installed: they come from the engine's own functions."""

    aux: str
    aux_why: str
    gate: bool | None
    zeroed: bool | None


def facts(
    scheduler: Any,
    role: str,
    lacks: tuple[str, ...],
    modules: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Facts:
    """Return the transport of metadata from or to this rank, and its protections.

    modules, environ: those of the rank's process, if it is another process.
    """
    aux, why = _aux(scheduler, seams.kv_manager(scheduler), environ)
    if role != "decode":
        return Facts(aux, why, None, None)
    return Facts(aux, why, "gate" not in lacks, any(seam.present for seam in seams.zeroes_slots(modules)))


def _aux(scheduler: Any, manager: Any, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return (``rdma`` or ``tcp`` or "", the evidence).

    ``MooncakeKVManager.send_aux`` sends a message if its own code names the memory pool in use (NVLINK up to 0.5.23, also
    INTRA_NODE_NVLINK in 0.5.11 to 0.5.12.post1), or if SGLANG_MOONCAKE_SEND_AUX_TCP is set.
    """
    kind = manager.__class__  # a manager seen from outside says so of itself
    code = getattr(getattr(kind, "send_aux", None), "__code__", None)
    if code is None or not kind.__name__.startswith("Mooncake"):
        backend = seams.server_arg(scheduler, "disaggregation_transfer_backend", "?")
        return "", f"backend {backend}: how it writes metadata is not known"
    pool = getattr(manager, "custom_mem_pool_type", None) if getattr(manager, "enable_custom_mem_pool", False) else None
    if pool is not None and pool in _words(code.co_consts):
        return "tcp", f"memory pool {pool}: send_aux sends a message"
    if environ.get(SEND_AUX_TCP, "").strip().lower() in ("1", "true", "yes", "y") and SEND_AUX_TCP in code.co_names:
        return "tcp", f"{SEND_AUX_TCP} is set: send_aux sends a message"
    where = f"memory pool {pool}" if pool is not None else "no custom memory pool"
    return "rdma", f"{where}: send_aux writes into the row"


def _words(consts: Iterable[Any]) -> Iterator[str]:
    for const in consts:
        if isinstance(const, str):
            yield const
        elif isinstance(const, tuple | frozenset):
            yield from _words(const)


def buffers(scheduler: Any, known: Facts, taken: dict[int, int]) -> Buffers | None:
    """Return where the rows are, None on a rank without any."""
    owner = getattr(scheduler, "disagg_metadata_buffers", None)
    allocator = getattr(scheduler, "req_to_metadata_buffer_idx_allocator", None)
    if owner is None or allocator is None:
        return None
    return Buffers(owner, allocator, taken, known.aux, known.aux_why, known.gate, known.zeroed)


def elsewhere(scheduler: Any) -> Iterator[Holder]:
    """Yield requests that hold a slot or KV outside the queues: in batches between two steps, and in deferred releases."""
    req = getattr(scheduler, "chunked_req", None)
    if req is not None:
        yield _holder(req, req, "chunked_req")
    for name in _BATCH_LISTS:
        for batch in list(getattr(scheduler, name, None) or ()):
            yield from _of_batch(batch, name)
    for entry in list(getattr(scheduler, "result_queue", None) or ()):
        yield from _of_batch(entry[0] if isinstance(entry, tuple) else entry, "result_queue")
    # 0.5.23: memory of a failed request is given back once prefill has said that it writes no more.
    put_off = seams.follow(scheduler, ("disagg_decode_transfer_queue", "_deferred_releases"))
    for entry in list(put_off or ()):
        yield _holder(entry[0].req, entry[0], "deferred release")


def _of_batch(batch: Any, where: str) -> Iterator[Holder]:
    for req in list(getattr(batch, "reqs", None) or ()):
        yield _holder(req, req, where)


def _holder(req: Any, owner: Any, where: str) -> Holder:
    return Holder(seams.room_of(req), str(req.rid), seams.slot_of(owner), where, UNKNOWN)
