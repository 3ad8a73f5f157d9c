"""Where a lab rank's metadata rows are, how they get there, and what protects them."""

from __future__ import annotations

from typing import Any

from pdctl.engines.metadata_rows import Buffers


def buffers(scheduler: Any, taken: dict[int, int]) -> Buffers:
    """Return where the rows are."""
    config = scheduler.config
    decode = scheduler.role == "decode"
    tcp = config.metadata_device != "cpu"
    why = "rows on a device go by message" if tcp else f"written by {scheduler.transport.name}"
    return Buffers(
        owner=scheduler.disagg_metadata_buffers,
        allocator=scheduler.req_to_metadata_buffer_idx_allocator,
        taken=taken,
        aux="tcp" if tcp else "rdma",
        aux_why=why,
        gate=config.has("gate") if decode else None,
        zeroed=config.has("zero-on-free") if decode else None,
    )
