"""An SGLang rank's metadata rows: location, transport, and owners outside the queues."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pdctl.engines.metadata_rows import Buffers
from pdctl.engines.sglang import seams
from pdctl.engines.sglang.backends import backend_of
from pdctl.protocol.metadata import Holder
from pdctl.protocol.model import UNKNOWN

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
    aux, why = backend_of(scheduler, modules).aux(environ)
    if role != "decode":
        return Facts(aux, why, None, None)
    return Facts(aux, why, "gate" not in lacks, any(seam.present for seam in seams.zeroes_slots(modules)))


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
