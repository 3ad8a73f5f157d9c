"""Where an SGLang rank keeps what :mod:`pdctl.engines.request_tables` reads, and its settings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from pdctl.engines import peers
from pdctl.engines.request_tables import Places, kv_of
from pdctl.engines.sglang import routing, seams
from pdctl.engines.sglang.backends import backend_of
from pdctl.engines.sglang.queues import QueueReader
from pdctl.protocol.requests import MAX_DEFERRED, Deferred, Settings, Space

ARGUMENTS = (
    "attention_backend", "attn_cp_size", "chunked_prefill_size", "context_length", "decode_attention_backend",
    "disaggregation_bootstrap_port", "disaggregation_decode_enable_radix_cache", "disaggregation_ib_device",
    "disaggregation_mode", "disaggregation_transfer_backend", "dp_size", "dtype", "enable_dp_attention",
    "enable_hierarchical_cache", "enable_hisparse", "ep_size", "host", "kv_cache_dtype", "load_balance_method",
    "max_running_requests",
    "num_reserved_decode_tokens", "page_size", "pp_size", "prefill_attention_backend", "quantization",
    "served_model_name", "speculative_algorithm", "speculative_num_draft_tokens", "tp_size",
)  # fmt: skip
"""Server arguments that both sides must agree on, or that routing and transfers follow."""

_PLAIN_POOLS = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")
_PLAIN_CACHES = ("ChunkCache", "RadixCache")
"""One pool, and one cache over it: there ``size == available + evictable + protected`` while no request is there, which
the engine's own idle check holds against as well."""

_PREFIXES = (
    "SGLANG_DISAGG", "SGLANG_MOONCAKE", "SGLANG_REQ_", "SGLANG_TEST_DISAGG", "MC_", "MOONCAKE_", "NIXL_", "UCX_", "GLOO_",
)  # fmt: skip
_SECRET = ("KEY", "PASS", "SECRET", "TOKEN")


def places(scheduler: Any, role: str, reader: QueueReader, modules: Mapping[str, Any] | None = None) -> Places:
    """Return where this rank keeps its rooms. modules: the loaded ones of the rank, if it is another process."""
    names = [path.name for path in seams.QUEUE_PATHS if role in path.roles]
    return Places(
        role=role,
        manager=seams.kv_manager(scheduler),
        queues={name: _getter(reader, name) for name in names},
        space=lambda: space(scheduler),
        ends=backend_of(scheduler, modules).ends(),
        prealloc=getattr(scheduler, "disagg_decode_prealloc_queue", None),
        running=reader.running,
        client=client,
        deferred=lambda: deferred(scheduler),
    )


def client(req: Any) -> int:
    """Return 0 for a request that is aborted, else -1: a scheduler is not told whether the client is still there."""
    ends = (getattr(req, "to_finish", None), getattr(req, "finished_reason", None))
    return 0 if any(end.__class__.__name__ == "FINISH_ABORT" for end in ends) else -1


def deferred(scheduler: Any) -> tuple[Deferred, ...]:
    """Return the failed transfers whose memory decode keeps until prefill has said that it writes no more (since 0.5.22)."""
    queue = getattr(scheduler, "disagg_decode_transfer_queue", None)
    acked = getattr(seams.kv_manager(scheduler), "_deferred_abort_ack_tracker", None) or {}
    now, found = time.monotonic(), []
    for entry, began, deadline, slot, needed in list(getattr(queue, "_deferred_releases", None) or ())[:MAX_DEFERRED]:
        room = seams.room_of(entry.req)
        state = acked.get(room)
        # What is received in host memory has neither: its receiver knows when it is drained.
        host = bool(getattr(queue, "enable_host_receive", False) and getattr(entry, "host_staged", False))
        found.append(
            Deferred(
                room,
                entry.req.rid,
                slot,
                kv_of(entry.req),
                max(0.0, now - began),
                -1.0 if host else max(0.0, deadline - now),
                -1 if host else 0 if state is None else len(state.prefill_ranks),
                -1 if host else needed,
            )
        )
    return tuple(found)


def _getter(reader: QueueReader, name: str) -> Callable[[], list[Any]]:
    return lambda: reader.queue(name)


def space(scheduler: Any) -> Space:
    """Return the rank's memory: metadata slots, KV pool, rows for running requests, and who is first in line."""
    slots = getattr(scheduler, "req_to_metadata_buffer_idx_allocator", None)
    kv = getattr(scheduler, "token_to_kv_pool_allocator", None)
    rows = getattr(scheduler, "req_to_token_pool", None)
    prealloc = getattr(scheduler, "disagg_decode_prealloc_queue", None)
    reserve = getattr(prealloc, "num_reserved_decode_tokens", 0)
    head = next((e for e in list(getattr(prealloc, "queue", ())) if e.waiting_for_input), None)
    ahead = [
        *list(getattr(getattr(scheduler, "running_batch", None), "reqs", None) or ()),
        *list(seams.follow(scheduler, ("disagg_decode_transfer_queue", "queue")) or ()),
        *list(getattr(scheduler, "waiting_queue", None) or ()),
    ]
    return Space(
        slots=_int(getattr(slots, "size", None)),
        slots_free=_call(slots, "available_size"),
        kv=_int(getattr(kv, "size", None)),
        kv_free=_call(kv, "available_size"),
        evictable=max(0, _call(getattr(scheduler, "tree_cache", None), "evictable_size")),
        reserved=reserve * len(ahead),
        requests=_int(getattr(rows, "size", None)),
        requests_free=_call(rows, "available_size"),
        head=seams.room_of(head.req) if head is not None else 0,
        needs=len(head.req.origin_input_ids) + reserve if head is not None else -1,
        page_size=_int(getattr(kv, "page_size", None)),
        protected=max(0, _call(getattr(scheduler, "tree_cache", None), "protected_size")),
        countable=kv.__class__.__name__ in _PLAIN_POOLS
        and getattr(scheduler, "tree_cache", None).__class__.__name__ in _PLAIN_CACHES,
        batch=_batch(scheduler) if prealloc is not None else -1,
    )


def _batch(scheduler: Any) -> int:
    """Return how many requests may run at a time, as ``get_new_prebuilt_batch`` counts them."""
    rows = _int(getattr(getattr(scheduler, "req_to_token_pool", None), "size", None))
    most = _int(getattr(scheduler, "max_running_requests", None))
    return min(rows, most) if rows >= 0 else most


def _int(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _call(owner: Any, name: str) -> int:
    method = getattr(owner, name, None)
    if method is None:
        return -1
    try:
        return _int(method())
    except Exception:
        return -1


def settings(scheduler: Any, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return this rank's settings, by the names of the engine's arguments, and its environment variables."""
    arguments = getattr(scheduler, "server_args", None)
    values = {name: _text(getattr(arguments, name, None)) for name in ARGUMENTS}
    values.update(routing.settings())
    model = getattr(scheduler, "model_config", None)
    values["num_hidden_layers"] = _text(getattr(model, "num_hidden_layers", None))
    manager = seams.kv_manager(scheduler)
    values["custom_mem_pool_type"] = _text(getattr(manager, "custom_mem_pool_type", None))
    values["rank_ip"] = _text(getattr(manager, "local_ip", None))
    values["rank_port"] = _text(getattr(manager, "rank_port", None))
    values["transfer_session"] = peers.session(manager)
    values["kv_item_lens"] = _lengths(seams.follow(manager, ("kv_args", "kv_item_lens")))
    values["aux_item_lens"] = _lengths(seams.follow(manager, ("kv_args", "aux_item_lens")))
    values["kv_page_size"] = _text(seams.follow(manager, ("kv_args", "page_size")))
    rooms = seams.follow(scheduler, ("disagg_metadata_buffers", "bootstrap_room"))
    values["metadata_device"] = _text(getattr(rooms, "device", None))
    return Settings(values, environment(environ))


def _text(value: Any) -> str:
    return "" if value is None else str(value)[:200]


def _lengths(lengths: Any) -> str:
    """Return the different lengths of a list of them and how many there are, as ``10 × 256``."""
    if not lengths:
        return ""
    counts: dict[int, int] = {}
    for length in lengths:
        counts[int(length)] = counts.get(int(length), 0) + 1
    return ", ".join(f"{count} × {length}" for length, count in sorted(counts.items()))[:200]


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the engine's environment variables for disaggregation, but none whose name suggests a secret."""
    return {
        name: value[:200]
        for name, value in sorted(env.items())
        if name.startswith(_PREFIXES) and not any(word in name for word in _SECRET)
    }
