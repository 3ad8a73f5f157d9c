"""Light ranks for routing: the engine's own bootstrap server, registration, formula and query, each in its process.

Loaded by :mod:`.rank` for scripts with ``"routing": true``. What is the engine's: ``CommonKVBootstrapServer`` and its HTTP
routes, ``CommonKVManager`` (registration of the server, its sizes as decode is told of them, statuses, failures),
``CommonKVSender.__init__`` with its registration of rooms, ``CommonKVReceiver.query_prefill_dp_ranks``,
``PrefillBootstrapQueue``, ``DecodePreallocQueue._resolve_prefill_dp_rank`` and ``_resolve_pending_reqs``.
What stands in: the scheduler, the requests, and the receiver, which only notes the dp rank it is told.

Script: ``balance``, ``dp`` (prefill size), ``port`` of the bootstrap server, ``rooms`` (room → prefill dp rank it goes to).
"""

from __future__ import annotations

import inspect
import socket
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any


def run(role: str, rank: int, script: dict[str, Any], tools: ModuleType) -> None:
    """Be the bootstrap server, a prefill dp rank or a decode tp rank until killed."""
    if role == "bootstrap":
        from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer

        CommonKVBootstrapServer("127.0.0.1", script["port"])
        tools.say("serves")
        threading.Event().wait()
    publish(script)
    size = 2 if role == "decode" else 1
    scheduler = tools.make_scheduler(role, rank if role == "decode" else 0, size, 8)
    arguments = scheduler.server_args
    arguments.dp_size = script["dp"] if role == "prefill" else 1
    arguments.load_balance_method = script["balance"] if role == "prefill" else "auto"
    arguments.disaggregation_bootstrap_port = script["port"]
    arguments.host = "127.0.0.1"
    if role == "prefill":
        scheduler.dp_rank, scheduler.attn_tp_rank = rank, 0
    manager = make_manager(role, rank, script)
    (prefill if role == "prefill" else decode)(scheduler, manager, rank, script, tools)


def publish(script: dict[str, Any]) -> None:
    """0.5.23 reads sizes and load balancing from a context that a server publishes at its start."""
    from sglang.srt.disaggregation.common import conn

    if not hasattr(conn, "get_parallel"):
        return
    import sglang.srt.runtime_context as context

    parallel = SimpleNamespace(
        num_dp_ranks=script["dp"], load_balance_method=script["balance"], enable_cp_tp_group_sharing=False, nnodes=1,
        enable_dsa_cache_layer_split=False, enable_kv_cache_sharding=False,
    )  # fmt: skip
    conn.get_parallel = context.get_parallel = lambda: parallel
    conn.get_observability = lambda: SimpleNamespace(enable_trace=False)
    conn.get_serving = lambda: SimpleNamespace(port=30100)
    conn.get_disagg = lambda: SimpleNamespace(disaggregation_decode_allocation_policy="early")


def concrete(base: type, **methods: Any) -> type:
    """Return a subclass of an abstract class of the engine that can be made."""
    made = type(base.__name__, (base,), methods)
    made.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return made


def make_manager(role: str, rank: int, script: dict[str, Any]) -> Any:
    """Return the engine's manager without its ``__init__``, which wants a transfer engine and memory."""
    from sglang.srt.disaggregation.common.conn import CommonKVManager

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    manager = concrete(CommonKVManager).__new__(concrete(CommonKVManager))
    prefilling = role == "prefill"
    manager.__dict__.update(
        request_status={}, failure_records={}, failure_lock=threading.Lock(), prefill_info_table={}, transfer_infos={},
        kv_args=SimpleNamespace(page_size=1, engine_rank=0 if prefilling else rank, rust_http_port=None),
        server_args=SimpleNamespace(
            dp_size=script["dp"], load_balance_method=script["balance"], kv_cache_dtype="auto", enable_hisparse=False,
        ),
        kv_cache_dtype_str="auto", kv_layout=None, dsv41_spec_layout=None, dcp_size=1, is_mla_backend=False,
        is_hybrid_mla_backend=False, enable_all_cp_ranks_for_transfer=False, is_dummy_cp_rank=False,
        attn_tp_size=1 if prefilling else 2, attn_tp_rank=0 if prefilling else rank, attn_cp_size=1, attn_cp_rank=0,
        attn_dp_size=script["dp"] if prefilling else 1, attn_dp_rank=rank if prefilling else 0, pp_size=1, pp_rank=0,
        system_dp_size=1, system_dp_rank=0, local_ip="127.0.0.1", rank_port=listener.getsockname()[1],
        bootstrap_host="127.0.0.1", bootstrap_port=script["port"], dist_init_addr=None, bootstrap_timeout=300,
        waiting_timeout=300, deferred_bootstrap=None, defer_decode_allocation=False, sender_trace_module=None,
        _deferred_ack_targets={}, _deferred_ack_poisoned_rooms=set(), _staging_outstanding={}, listener=listener,
    )  # fmt: skip
    return manager


def prefill(scheduler: Any, manager: Any, rank: int, script: dict[str, Any], tools: ModuleType) -> None:
    """Register, take the rooms that are sent to this dp rank, and poll them for ever."""
    from sglang.srt.disaggregation.common.conn import CommonKVSender
    from sglang.srt.disaggregation.prefill import PrefillBootstrapQueue

    queue = tools.make_queue(PrefillBootstrapQueue, scheduler, 0)
    queue.kv_manager = manager
    scheduler.disagg_prefill_bootstrap_queue, scheduler.disagg_prefill_inflight_queue = queue, []
    tools.start_agent(scheduler)
    manager.register_to_bootstrap()

    def failure_exception(self: Any) -> None:
        raise RuntimeError(self.kv_mgr.failure_records.pop(self.bootstrap_room, "of an unknown reason"))

    sender = concrete(
        CommonKVSender,
        poll=lambda self: self.kv_mgr.check_status(self.bootstrap_room),
        failure_exception=failure_exception,
        clear=lambda self: None,
    )
    wanted = inspect.signature(CommonKVSender.__init__).parameters
    more = {name: value for name, value in (("dest_tp_ranks", [0]), ("pp_rank", 0)) if name in wanted}
    for room, dp in script["rooms"].items():
        if dp == rank:
            req = tools.Request(int(room))
            req.disagg_kv_sender = sender(
                mgr=manager, bootstrap_addr=f"127.0.0.1:{script['port']}", bootstrap_room=int(room), **more
            )
            queue.queue.append(req)
    tools.say("took", len(queue.queue))
    while True:
        scheduler.process_input_requests([])
        queue.pop_bootstrapped()
        time.sleep(0.02)


class Receiver:
    """Notes the prefill dp rank that the room is taken to be on; hears nothing more."""

    require_staging = False
    conclude_state = None
    prefill_dp_rank = None

    def __init__(self, manager: Any, address: str, room: int) -> None:
        self.kv_mgr, self.bootstrap_addr, self.bootstrap_room = manager, address, room
        manager.update_status(room, 1)

    def init(self, prefill_dp_rank: int) -> None:
        self.prefill_dp_rank = prefill_dp_rank
        self.kv_mgr.update_status(self.bootstrap_room, 2)

    def poll(self) -> int:
        return int(self.kv_mgr.check_status(self.bootstrap_room))


def decode(scheduler: Any, manager: Any, rank: int, script: dict[str, Any], tools: ModuleType) -> None:
    """Take every room as ``DecodePreallocQueue.add`` does, and resolve those that wait for ever."""
    from sglang.srt.disaggregation.decode import DecodePreallocQueue, DecodeRequest, DecodeTransferQueue

    scheduler.disagg_decode_transfer_queue = tools.make_queue(DecodeTransferQueue, scheduler, rank)
    queue = scheduler.disagg_decode_prealloc_queue = tools.make_queue(DecodePreallocQueue, scheduler, rank)
    queue.kv_manager = manager
    queue.__dict__.update(
        _ensure_last_attempt_time={}, _ensure_retry_count={}, _ensure_retry_interval=0.2, _max_ensure_retries=10**6
    )
    tools.start_agent(scheduler)
    for room in map(int, script["rooms"]):
        req = tools.Request(room)
        req.bootstrap_port, req.disagg_prefill_dp_rank = script["port"], None
        made = DecodeRequest(req=req, kv_receiver=Receiver(manager, f"127.0.0.1:{script['port']}", room))
        queue.queue.append(made)
        dp = queue._resolve_prefill_dp_rank(req)
        if dp is not None:
            made.kv_receiver.init(dp)
        else:
            queue.pending_reqs.append(made)
    tools.say("took", len(queue.queue))
    while True:
        scheduler.process_input_requests([])
        queue._resolve_pending_reqs()
        time.sleep(0.02)
