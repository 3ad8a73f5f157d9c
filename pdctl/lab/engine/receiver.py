"""The decode side of a transfer (SGLang: ``MooncakeKVReceiver`` and its manager, ``mooncake/conn.py``)."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch

from pdctl.lab.config import LabConfig
from pdctl.lab.engine import bootstrap
from pdctl.lab.engine.conn import CommonKVManager, KVArgs
from pdctl.lab.engine.transport import Transport
from pdctl.protocol.model import KVPoll

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PrefillServerInfo:
    """Sizes of the prefill server, and which of its ranks this decode rank deals with."""

    dp_size: int
    follow_bootstrap_room: bool
    target_tp_ranks: tuple[int, ...]
    target_pp_ranks: tuple[int, ...]
    required_dst_info_num: int
    required_prefill_response_num: int


class DecodeKVManager(CommonKVManager):
    """Knows the prefill servers, hears how transfers end, and watches whether prefill is alive."""

    role = "decode"

    def __init__(self, args: KVArgs, config: LabConfig, bootstrap_addr: str, transport: Transport) -> None:
        super().__init__(args, config, bootstrap_addr, transport)
        self.waiting_timeout = config.waiting_timeout_s
        self.prefill_info_table: dict[str, PrefillServerInfo] = {}
        self.connection_pool: dict[str, list[dict[str, Any]]] = {}
        self.required_prefill_response_num_table: dict[int, int] = {}
        self.prefill_response_tracker: dict[int, set[int]] = defaultdict(set)
        self.addr_to_rooms_tracker: dict[str, set[int]] = defaultdict(set)
        self.heartbeat_failures: dict[str, int] = {}
        self.max_failures = config.heartbeat_failures
        self._stream: Any = None
        threading.Thread(target=self.decode_thread, name="lab-decode", daemon=True).start()
        threading.Thread(target=self.heartbeat_checker, name="lab-heartbeat", daemon=True).start()

    def handle(self, message: dict[str, Any]) -> None:
        """Take the end of a transfer, or a metadata row that travels by message."""
        if message["op"] == "aux":
            self._handle_aux_data(message)
            return
        room, status = message["room"], KVPoll(message["status"])
        if status == KVPoll.FAILED:
            self.record_failure(room, "Failed to get kvcache from prefill instance, it might be dead")
            self.update_status(room, status)
        elif room in self.request_status:
            answers = self.prefill_response_tracker[room]
            answers.add(message["prefill_rank"])
            if len(answers) == self.required_prefill_response_num_table.get(room, 1):
                self.update_status(room, KVPoll.SUCCESS)

    def _handle_aux_data(self, message: dict[str, Any]) -> None:
        tensors = self.kv_args.metadata.tensors()
        if tensors[0].device.type == "cuda" and self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):  # does nothing for None
            for tensor, row in zip(tensors, message["rows"], strict=True):
                host = torch.frombuffer(bytearray(row), dtype=tensor.dtype)
                tensor[message["slot"]].copy_(host, non_blocking=True)

    def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
        """Fetch the prefill server's sizes once; True when they are known. Raises RuntimeError where KV has another format."""
        if bootstrap_addr in self.prefill_info_table:
            return True
        path = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
        try:
            status, info = bootstrap.call(bootstrap_addr, "GET", path)
        except OSError as error:
            log.error("no prefill info from %s: %s", bootstrap_addr, error)
            return False
        if status != 200:
            return False
        self._check_format(info)
        self.prefill_info_table[bootstrap_addr] = self._resolve_rank_mapping(info)
        return True

    def _check_format(self, info: dict[str, Any]) -> None:
        for name, theirs, ours in zip(
            ("page_size", "kv_cache_dtype"), (info["page_size"], info["kv_cache_dtype"]), self.kv_format(), strict=True
        ):
            if theirs != ours:
                what = "Page size" if name == "page_size" else "KV cache dtype"
                raise RuntimeError(
                    f"{what} mismatch: prefill server has {name}={theirs}, but decode server has {name}={ours}. "
                    f"Both servers must use the same --{name.replace('_', '-')} value."
                )

    def _resolve_rank_mapping(self, info: dict[str, Any]) -> PrefillServerInfo:
        args, prefill_tp, prefill_pp = self.kv_args, info["attn_tp_size"], info["pp_size"]
        rank = args.engine_rank
        if args.tp_size >= prefill_tp:
            ratio = args.tp_size // prefill_tp
            tp_ranks: tuple[int, ...] = (rank // ratio,)
            dst_num = ratio
        else:
            ratio = prefill_tp // args.tp_size
            tp_ranks = tuple(range(rank * ratio, (rank + 1) * ratio))
            dst_num = 1
        same_stages = args.pp_size == prefill_pp
        pp_ranks = (args.pp_rank,) if same_stages else tuple(range(prefill_pp))
        return PrefillServerInfo(
            info["dp_size"], info["follow_bootstrap_room"], tp_ranks, pp_ranks, dst_num, len(pp_ranks)
        )

    def is_answered(self, address: str) -> bool:
        """Send a prefill server one heartbeat; False when it does not answer within 3 s."""
        try:
            status, _ = bootstrap.call(address, "GET", "/health", timeout_s=3)
        except OSError:
            return False
        return status == 200

    def decode_thread(self) -> None:
        """Take what prefill ranks tell."""
        self.serve()

    def heartbeat_checker(self) -> None:
        """Give a prefill server up after so many heartbeats in a row without an answer.

        The count starts anew then, as in 0.5.23; up to 0.5.13.post1 it is kept until a heartbeat is answered.
        """
        while True:
            time.sleep(self.config.heartbeat_s)
            for address in list(self.prefill_info_table):
                missed = 0 if self.is_answered(address) else self.heartbeat_failures.get(address, 0) + 1
                self.heartbeat_failures[address] = missed
                if missed >= self.max_failures:
                    self._handle_node_failure(address)
                    del self.heartbeat_failures[address]

    def _handle_node_failure(self, address: str) -> None:
        self.prefill_info_table.pop(address, None)
        for key in [key for key in self.connection_pool if key.startswith(f"{address}_")]:
            del self.connection_pool[key]
        why = f"Losing connection with prefill instance (bootstrap_addr: {address})"
        rooms = self.addr_to_rooms_tracker.pop(address, set())
        affected = [r for r in list(rooms) if self.request_status.get(r, KVPoll.SUCCESS) != KVPoll.SUCCESS]
        for room in affected:
            self.record_failure(room, why)
            self.update_status(room, KVPoll.FAILED)
        log.error("%s, %d requests affected", why, len(affected))


class KVReceiver:
    """One room on a decode rank: made at once, initialised when the prefill dp rank is known."""

    def __init__(self, mgr: DecodeKVManager, bootstrap_addr: str, bootstrap_room: int) -> None:
        self.kv_mgr = mgr
        self.bootstrap_addr = bootstrap_addr
        self.bootstrap_room = bootstrap_room
        self.conclude_state: KVPoll | None = None
        self.init_time: float | None = None
        self.prefill_dp_rank = -1
        self.bootstrap_infos: list[dict[str, Any]] = []
        self.required_dst_info_num = 1
        mgr.update_status(bootstrap_room, KVPoll.BOOTSTRAPPING)
        mgr.addr_to_rooms_tracker[bootstrap_addr].add(bootstrap_room)

    def init(self, prefill_dp_rank: int) -> None:
        """Find the prefill ranks of ``prefill_dp_rank`` and give them this rank's memory; then WaitingForInput."""
        mgr = self.kv_mgr
        info = mgr.prefill_info_table.get(self.bootstrap_addr)
        if info is None:
            self._fail("the prefill server was there before and is gone")
            return
        self.prefill_dp_rank = prefill_dp_rank
        self.required_dst_info_num = info.required_dst_info_num
        mgr.required_prefill_response_num_table[self.bootstrap_room] = info.required_prefill_response_num
        key = f"{self.bootstrap_addr}_{prefill_dp_rank}_0_{info.target_tp_ranks[0]}"
        if key not in mgr.connection_pool:
            infos = []
            for tp in info.target_tp_ranks:
                for pp in reversed(info.target_pp_ranks):
                    found = self._get_bootstrap_info_from_server(prefill_dp_rank, tp, pp)
                    if found is None:
                        self._fail(f"no bootstrap info for prefill dp {prefill_dp_rank} tp {tp} pp {pp}")
                        return
                    infos.append({**found, "is_dummy": tp != info.target_tp_ranks[0]})
            mgr.connection_pool[key] = infos
            self._register_kv_args(infos)
        self.bootstrap_infos = mgr.connection_pool[key]
        mgr.update_status(self.bootstrap_room, KVPoll.WAITING_FOR_INPUT)

    def _fail(self, reason: str) -> None:
        self.kv_mgr.record_failure(self.bootstrap_room, reason)
        self.conclude_state = KVPoll.FAILED
        self.kv_mgr.update_status(self.bootstrap_room, KVPoll.FAILED)

    def _get_bootstrap_info_from_server(self, dp: int, tp: int, pp: int) -> dict[str, Any] | None:
        path = f"/route?prefill_dp_rank={dp}&prefill_cp_rank=0&target_tp_rank={tp}&target_pp_rank={pp}"
        try:
            status, info = bootstrap.call(self.bootstrap_addr, "GET", path)
        except OSError as error:
            log.error("no route from %s: %s", self.bootstrap_addr, error)
            return None
        return info if status == 200 else None

    @staticmethod
    def query_prefill_dp_ranks(bootstrap_addr: str, bootstrap_rooms: list[int]) -> dict[str, int]:
        """Ask the bootstrap server which dp ranks have these rooms; rooms nobody registered are left out."""
        try:
            body = {"bootstrap_rooms": bootstrap_rooms}
            status, found = bootstrap.call(bootstrap_addr, "POST", "/query_dp_ranks", body)
        except OSError as error:
            log.error("could not query dp ranks: %s", error)
            return {}
        return found if status == 200 else {}

    def _register_kv_args(self, infos: list[dict[str, Any]]) -> None:
        mgr = self.kv_mgr
        message = {
            "op": "register",
            "dst_port": mgr.rank_port,
            "session": mgr.engine.session_id,
            "dst_kv_ptrs": mgr.kv_ptrs,
            "dst_aux_ptrs": mgr.aux_ptrs,
            "dst_tp_rank": mgr.kv_args.engine_rank,
            "dst_dp_rank": mgr.kv_args.dp_rank,
        }
        for info in infos:
            mgr.tell(info["rank_port"], message)

    def send_metadata(self, kv_indices: list[int], aux_index: int) -> None:
        """Tell prefill where to write this room's KV and metadata. From here on the waiting timeout runs."""
        for info in self.bootstrap_infos:
            dummy = info["is_dummy"]
            self.kv_mgr.tell(
                info["rank_port"],
                {
                    "op": "metadata",
                    "room": self.bootstrap_room,
                    "dst_port": self.kv_mgr.rank_port,
                    "mooncake_session_id": self.kv_mgr.engine.session_id,
                    "dst_kv_indices": [] if dummy else kv_indices,
                    "dst_aux_index": -1 if dummy else aux_index,
                    "required_dst_info_num": self.required_dst_info_num,
                    "is_dummy": dummy,
                },
            )
        self.init_time = time.time()

    def poll(self) -> KVPoll:
        """Return the room's state; WaitingForInput fails after the waiting timeout, Transferring never does."""
        if self.conclude_state is not None:
            return self.conclude_state
        status = self.kv_mgr.check_status(self.bootstrap_room)
        if status in (KVPoll.SUCCESS, KVPoll.FAILED):
            self.conclude_state = status
        elif status == KVPoll.WAITING_FOR_INPUT and self.init_time is not None:
            elapsed = time.time() - self.init_time
            if elapsed >= self.kv_mgr.waiting_timeout:
                self._fail(f"Request {self.bootstrap_room} timed out after {elapsed:.1f}s in KVPoll.WaitingForInput")
                self._send_abort_notification()
                return KVPoll.FAILED
        return status

    def clear(self) -> None:
        """Forget the room."""
        self.kv_mgr.request_status.pop(self.bootstrap_room, None)
        self.kv_mgr.required_prefill_response_num_table.pop(self.bootstrap_room, None)
        self.kv_mgr.prefill_response_tracker.pop(self.bootstrap_room, None)
        self.kv_mgr.addr_to_rooms_tracker[self.bootstrap_addr].discard(self.bootstrap_room)

    def failure_reason(self) -> str:
        """Take the reason of a failure and forget the room."""
        self.conclude_state = KVPoll.FAILED
        self.clear()
        return self.kv_mgr.failure_of(self.bootstrap_room)

    def abort(self) -> None:
        """Fail the room because a client gave it up, and tell prefill."""
        self._fail("Aborted by AbortReq.")
        self._send_abort_notification()

    def _send_abort_notification(self) -> None:
        for info in self.bootstrap_infos:
            self.kv_mgr.tell(info["rank_port"], {"op": "abort", "room": self.bootstrap_room})
