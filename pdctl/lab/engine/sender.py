"""The prefill side of a transfer (SGLang: ``MooncakeKVSender`` and its manager, ``mooncake/conn.py``)."""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

from pdctl.lab.config import LabConfig
from pdctl.lab.engine import bootstrap
from pdctl.lab.engine.conn import CommonKVManager, KVArgs, UnexpectedMessageError
from pdctl.lab.engine.memory import group_concurrent_contiguous
from pdctl.lab.engine.transport import HOST, Block, Transport
from pdctl.protocol.model import KVPoll

log = logging.getLogger(__name__)

REGISTER_S = 30.0


@dataclass(frozen=True)
class KVArgsRegisterInfo:
    """Memory of one decode rank and which rank it is."""

    dst_port: int
    session: str
    dst_kv_ptrs: list[int]
    dst_aux_ptrs: list[int]
    dst_tp_rank: int
    dst_dp_rank: int


@dataclass(frozen=True)
class TransferInfo:
    """Where one decode rank wants a room's KV and metadata."""

    room: int
    dst_port: int
    mooncake_session_id: str
    dst_kv_indices: list[int]
    dst_aux_index: int
    required_dst_info_num: int
    is_dummy: bool


@dataclass(frozen=True)
class TransferKVChunk:
    """Work for the transfer thread: a whole prompt (the lab does not chunk)."""

    room: int
    prefill_kv_indices: list[int]
    prefill_aux_index: int


class PrefillKVManager(CommonKVManager):
    """Sends KV, then metadata, then the status, each by itself."""

    role = "prefill"

    def __init__(self, args: KVArgs, config: LabConfig, bootstrap_addr: str, transport: Transport) -> None:
        super().__init__(args, config, bootstrap_addr, transport)
        self.bootstrap_timeout = config.bootstrap_timeout_s
        self.transfer_infos: dict[int, dict[str, TransferInfo]] = {}
        self.decode_kv_args_table: dict[str, KVArgsRegisterInfo] = {}
        self._chunks: queue.SimpleQueue[TransferKVChunk] = queue.SimpleQueue()
        self._late: queue.SimpleQueue[tuple[float, TransferInfo, int, list[int]]] = queue.SimpleQueue()
        self.register_to_bootstrap()
        threading.Thread(target=self.bootstrap_thread, name="lab-bootstrap", daemon=True).start()
        threading.Thread(target=self.transfer_worker, name="lab-transfer", daemon=True).start()
        if not config.has("metadata-sync"):
            threading.Thread(target=self._late_worker, name="lab-late-metadata", daemon=True).start()

    def register_to_bootstrap(self) -> None:
        """Tell the bootstrap server where this rank listens. Raises RuntimeError when it does not take it, OSError without one.

        It may start at the same time as this rank, at an address that is known before.
        """
        args, attention = self.kv_args, self.config.dp_attention
        page_size, kv_cache_dtype = self.kv_format()
        body = {
            "attn_tp_size": args.tp_size,
            "attn_tp_rank": args.engine_rank,
            "attn_cp_size": 1,
            "attn_cp_rank": 0,
            "attn_dp_size": args.dp_size if attention else 1,
            "attn_dp_rank": args.dp_rank if attention else 0,
            "pp_size": args.pp_size,
            "pp_rank": args.pp_rank,
            "system_dp_size": 1 if attention else args.dp_size,
            "system_dp_rank": 0 if attention else args.dp_rank,
            "rank_ip": HOST,
            "rank_port": self.rank_port,
            "page_size": page_size,
            "kv_cache_dtype": kv_cache_dtype,
            "load_balance_method": self.config.load_balance,
        }
        deadline = time.monotonic() + REGISTER_S
        while True:
            try:
                status, text = bootstrap.call(self.bootstrap_addr, "PUT", "/route", body)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        if status != 200:
            raise RuntimeError(f"the bootstrap server refused this rank: {status} {text}")

    def bootstrap_thread(self) -> None:
        """Take what decode ranks tell."""
        self.serve()

    def handle(self, message: dict[str, Any]) -> None:
        """Take a decode rank's memory, its addresses for a room, or an abort.

        Raises UnexpectedMessageError for an abort where the lab has no code for it.
        """
        if message["op"] == "register":
            del message["op"]
            info = KVArgsRegisterInfo(**message)
            self.decode_kv_args_table[info.session] = info
        elif message["op"] == "abort":
            if not self.config.has("aborts"):
                raise UnexpectedMessageError("an abort")
            room = message["room"]
            if self.request_status.get(room, KVPoll.SUCCESS) != KVPoll.SUCCESS:
                self.record_failure(room, "decode aborted the request")
                self.update_status(room, KVPoll.FAILED)
        else:
            del message["op"]
            wanted = TransferInfo(**message)
            infos = self.transfer_infos.setdefault(wanted.room, {})
            infos[wanted.mooncake_session_id] = wanted
            if len(infos) == wanted.required_dst_info_num:
                self.update_status(wanted.room, KVPoll.WAITING_FOR_INPUT)

    def add_transfer_request(self, room: int, kv_indices: list[int], aux_index: int) -> None:
        """Queue a room's transfer, unless it has failed already."""
        if self.request_status.get(room, KVPoll.FAILED) != KVPoll.FAILED:
            self._chunks.put(TransferKVChunk(room, kv_indices, aux_index))

    def _transfer_data(self, mooncake_session_id: str, transfer_blocks: list[Block]) -> int:
        return self.engine.write(mooncake_session_id, transfer_blocks) if transfer_blocks else 0

    def send_kvcache(self, req: TransferInfo, kv_indices: list[int], dst_kv_ptrs: list[int]) -> int:
        """Write this stage's layers of a prompt; returns 0 or a negative number."""
        pool = self.kv_args.pool
        length = pool.item_len
        runs = group_concurrent_contiguous(kv_indices, req.dst_kv_indices)
        # A decode with one stage holds all layers, one with as many stages as prefill holds the same ones.
        first = pool.first_layer if len(dst_kv_ptrs) != pool.layers else 0
        blocks = [
            (source + a * length, dst_kv_ptrs[first + layer] + b * length, count * length)
            for layer, source in enumerate(self.kv_ptrs)
            for a, b, count in runs
        ]
        return self._transfer_data(req.mooncake_session_id, blocks)

    def send_aux(self, req: TransferInfo, prefill_aux_index: int, dst_aux_ptrs: list[int]) -> int:
        """Write the metadata row of a room; returns 0 or a negative number.

        Tensors on a device go by message, as the engine's ``send_aux_tcp``, and land when the decode rank has copied
        them.
        """
        if self.config.metadata_device != "cpu":
            rows = [tensor[prefill_aux_index].cpu().numpy().tobytes() for tensor in self.kv_args.metadata.tensors()]
            self.tell(req.dst_port, {"op": "aux", "room": req.room, "slot": req.dst_aux_index, "rows": rows})
            return 0
        blocks = [
            (self.aux_ptrs[i] + length * prefill_aux_index, dst_aux_ptrs[i] + length * req.dst_aux_index, length)
            for i, length in enumerate(self.aux_item_lens)
        ]
        return self._transfer_data(req.mooncake_session_id, blocks)

    def sync_status_to_decode_endpoint(self, dst_port: int, room: int, status: int, prefill_rank: int) -> None:
        """Tell a decode rank how a room's transfer ended."""
        self.tell(dst_port, {"op": "status", "room": room, "status": int(status), "prefill_rank": prefill_rank})

    def transfer_worker(self) -> None:
        """Send rooms one after the other: KV, metadata, then the status to all destinations at once."""
        while True:
            chunk = self._chunks.get()
            try:
                self._send(chunk)
            except Exception as error:
                log.exception("transfer of room %s failed", chunk.room)
                self.record_failure(chunk.room, f"{type(error).__name__}: {error}")
                self.update_status(chunk.room, KVPoll.FAILED)

    def _send(self, chunk: TransferKVChunk) -> None:
        if self.request_status.get(chunk.room, KVPoll.FAILED) == KVPoll.FAILED:
            return
        unique_rank = self.kv_args.engine_rank * self.kv_args.pp_size + self.kv_args.pp_rank
        destinations: list[int] = []
        results: list[int] = []
        for req in list(self.transfer_infos.get(chunk.room, {}).values()):
            if req.is_dummy:
                self.update_status(chunk.room, KVPoll.SUCCESS)
                continue
            memory = self.decode_kv_args_table[req.mooncake_session_id]
            if self.send_kvcache(req, chunk.prefill_kv_indices, memory.dst_kv_ptrs) != 0:
                self.record_failure(chunk.room, f"could not send KV to {req.mooncake_session_id}")
                self.update_status(chunk.room, KVPoll.FAILED)
                self.sync_status_to_decode_endpoint(req.dst_port, req.room, KVPoll.FAILED, unique_rank)
                return
            results.append(self._metadata(req, chunk.prefill_aux_index, memory))
            destinations.append(req.dst_port)
            if len(results) == req.required_dst_info_num:
                status = KVPoll.SUCCESS if not any(results) else KVPoll.FAILED
                self.update_status(chunk.room, status)
                for port in destinations:
                    self.sync_status_to_decode_endpoint(port, chunk.room, status, unique_rank)
        if self.request_status.get(chunk.room, KVPoll.SUCCESS) == KVPoll.SUCCESS:
            self.transfer_infos.pop(chunk.room, None)

    def _metadata(self, req: TransferInfo, aux_index: int, memory: KVArgsRegisterInfo) -> int:
        if self.config.has("metadata-sync"):
            return self.send_aux(req, aux_index, memory.dst_aux_ptrs)
        row = self.kv_args.metadata.hold_row(aux_index)
        if row is None:
            return self.send_aux(req, aux_index, memory.dst_aux_ptrs)
        due = time.monotonic() + self.config.metadata_lag_s * memory.dst_tp_rank
        self._late.put((due, req, row, memory.dst_aux_ptrs))
        return 0

    def _late_worker(self) -> None:
        waiting: list[tuple[float, TransferInfo, int, list[int]]] = []
        while True:
            try:
                waiting.append(self._late.get(timeout=None if not waiting else 0.001))
            except queue.Empty:
                pass
            now = time.monotonic()
            for item in [item for item in waiting if item[0] <= now]:
                waiting.remove(item)
                self.send_aux(item[1], item[2], item[3])
                self.kv_args.metadata.drop_row(item[2])


class KVSender:
    """One room on a prefill rank. Making it registers the room's dp rank where that is this rank's task."""

    def __init__(self, mgr: PrefillKVManager, bootstrap_room: int) -> None:
        self.kv_mgr = mgr
        self.bootstrap_room = bootstrap_room
        self.conclude_state: KVPoll | None = None
        self.init_time = time.time()
        mgr.update_status(bootstrap_room, KVPoll.BOOTSTRAPPING)
        args, config = mgr.kv_args, mgr.config
        if args.dp_size == 1:
            return
        force = "prefill" in config.force_query
        implied = bootstrap_room % args.dp_size
        if config.load_balance != "follow_bootstrap_room" or (force and config.has("register-every-room")):
            self._register_prefill_dp_rank()
        elif args.dp_rank != implied and config.has("dp-registration"):
            if force:
                self._register_prefill_dp_rank()
                return
            mgr.record_failure(
                bootstrap_room,
                f"follow_bootstrap_room conflict: dispatched to dp_rank {args.dp_rank} but bootstrap_room "
                f"{bootstrap_room} implies dp_rank {implied}. Set "
                "SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1 to allow mixed routing.",
            )
            mgr.update_status(bootstrap_room, KVPoll.FAILED)

    def _register_prefill_dp_rank(self) -> None:
        body = {"bootstrap_room": self.bootstrap_room, "dp_rank": self.kv_mgr.attn_dp_rank}
        try:
            status, text = bootstrap.call(self.kv_mgr.bootstrap_addr, "POST", "/register_dp_rank", body)
        except OSError as error:
            status, text = 0, str(error)
        if status != 200:
            log.error("could not register the dp rank of room %s: %s %s", self.bootstrap_room, status, text)

    def send(self, kv_indices: list[int], aux_index: int) -> None:
        """Queue the transfer of KV rows and of metadata row ``aux_index``."""
        self.kv_mgr.add_transfer_request(self.bootstrap_room, kv_indices, aux_index)

    def poll(self) -> KVPoll:
        """Return the room's state; Bootstrapping fails after the bootstrap timeout."""
        if self.conclude_state is not None:
            return self.conclude_state
        status = self.kv_mgr.check_status(self.bootstrap_room)
        if status in (KVPoll.SUCCESS, KVPoll.FAILED):
            self.conclude_state = status
        elif status == KVPoll.BOOTSTRAPPING:
            elapsed = time.time() - self.init_time
            if elapsed >= self.kv_mgr.bootstrap_timeout:
                self.kv_mgr.record_failure(
                    self.bootstrap_room,
                    f"Request {self.bootstrap_room} timed out after {elapsed:.1f}s in KVPoll.Bootstrapping",
                )
                self.kv_mgr.update_status(self.bootstrap_room, KVPoll.FAILED)
                self.conclude_state = status = KVPoll.FAILED
        return status

    def clear(self) -> None:
        """Forget the room."""
        self.kv_mgr.request_status.pop(self.bootstrap_room, None)
        self.kv_mgr.transfer_infos.pop(self.bootstrap_room, None)

    def failure_reason(self) -> str:
        """Take the reason of a failure and forget the room."""
        self.conclude_state = KVPoll.FAILED
        self.clear()
        return self.kv_mgr.failure_of(self.bootstrap_room)

    def abort(self) -> None:
        """Fail the room because a client gave it up."""
        self.kv_mgr.record_failure(self.bootstrap_room, "Aborted by AbortReq.")
        self.kv_mgr.update_status(self.bootstrap_room, KVPoll.FAILED)
        self.conclude_state = KVPoll.FAILED
