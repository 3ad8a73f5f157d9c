"""Where a lab rank keeps what :mod:`pdctl.engines.request_tables` reads, and its settings under the engine's names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pdctl.engines import peers
from pdctl.engines.lab.reader import QueueReader
from pdctl.engines.request_tables import BOOTSTRAP_TIMEOUT, WAITING_TIMEOUT, Ends, Places
from pdctl.engines.sglang import request_tables
from pdctl.engines.sglang.seams import kv_manager
from pdctl.protocol.model import Seam
from pdctl.protocol.requests import (
    ENTRY_CLEANUP,
    FORCE_QUERY,
    NOTES_CONFLICTS,
    QUERY_FORCED,
    REGISTERS_EVERY_ROOM,
    Settings,
    Space,
)


def places(scheduler: Any, reader: QueueReader) -> Places:
    """Return where this rank keeps its rooms."""
    there = request_tables.places(scheduler, scheduler.role, reader)
    return replace(there, space=lambda: space(scheduler), ends=Ends(bootstrap=True, waiting=True), client=client)


def client(req: Any) -> int:
    """Return whether somebody waits for a request's answer: the socket of its client goes when the client does."""
    return int(not req.is_aborted and Path(req.reply.removeprefix("ipc://")).exists())


def space(scheduler: Any) -> Space:
    """Return the rank's memory and who is first in line for it."""
    decode = scheduler.role == "decode"
    prealloc = list(scheduler.disagg_decode_prealloc_queue.queue) if decode else []
    head = next((entry for entry in prealloc if entry.waiting_for_input), None)
    free = scheduler.pool.available_size()
    return Space(
        slots=scheduler.req_to_metadata_buffer_idx_allocator.size,
        slots_free=scheduler.req_to_metadata_buffer_idx_allocator.available_size(),
        kv=scheduler.pool.size,
        kv_free=free,
        requests=scheduler.req_to_token_pool.size if decode else -1,
        requests_free=scheduler.req_to_token_pool.available_size() if decode else -1,
        reserved=free - scheduler.allocatable_tokens() if decode else 0,
        head=head.req.bootstrap_room if head is not None else 0,
        needs=len(head.req.origin_input_ids) + head.req.max_new_tokens if head is not None else -1,
        countable=True,
        batch=scheduler.config.max_running if decode else -1,
    )


def settings(scheduler: Any) -> Settings:
    """Return this rank's settings by the engine's names of them."""
    config = scheduler.config
    shape = config.shape(scheduler.role)
    page_size, kv_cache_dtype = kv_manager(scheduler).kv_format()
    values = {
        "disaggregation_bootstrap_port": kv_manager(scheduler).bootstrap_addr.rpartition(":")[2],
        "disaggregation_mode": scheduler.role,
        "disaggregation_transfer_backend": scheduler.transport.name,
        "dp_size": str(shape.dp),
        "host": kv_manager(scheduler).bootstrap_addr.rpartition(":")[0],
        "kv_cache_dtype": kv_cache_dtype,
        "load_balance_method": config.load_balance if scheduler.role == "prefill" else "",
        "max_running_requests": str(config.max_running),
        "metadata_device": str(scheduler.disagg_metadata_buffers.bootstrap_room.device),
        "num_hidden_layers": str(config.layers),
        "page_size": str(page_size),
        "pp_size": str(shape.pp),
        "rank_ip": kv_manager(scheduler).local_ip,
        "rank_port": str(kv_manager(scheduler).rank_port),
        "enable_dp_attention": str(config.dp_attention),
        "tp_size": str(shape.tp * (shape.dp if config.dp_attention else 1)),
        "transfer_session": peers.session(kv_manager(scheduler)),
    }
    env = {
        ENTRY_CLEANUP: f"{config.entry_cleanup_s:g}",
        BOOTSTRAP_TIMEOUT: f"{config.bootstrap_timeout_s:g}",
        WAITING_TIMEOUT: f"{config.waiting_timeout_s:g}",
    }
    if scheduler.role in config.force_query:
        env[FORCE_QUERY] = "1"
    for name, value in config.settings(scheduler.role).items():
        (env if name.isupper() else values)[name] = value
    return Settings(values, env)


def routing_seams(scheduler: Any) -> list[Seam]:
    """Return how this rank's engine registers rooms, or asks for them, under the names of SGLang's seams."""
    config = scheduler.config
    if scheduler.role == "decode":
        return [Seam(QUERY_FORCED, True, "DecodePreallocQueue._resolve_prefill_dp_rank")]
    conflicts, every = config.has("dp-registration"), config.has("register-every-room")
    where = "KVSender.__init__"
    return [Seam(NOTES_CONFLICTS, conflicts, where), Seam(REGISTERS_EVERY_ROOM, every, where)]
