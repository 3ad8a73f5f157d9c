"""The decode server's requests before their transfer (SGLang: ``disaggregation/decode.py``)."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdctl.lab.engine.receiver import DecodeKVManager, KVReceiver
from pdctl.lab.engine.request import Req
from pdctl.lab.engine.utils import poll_and_all_reduce
from pdctl.protocol.model import KVPoll

if TYPE_CHECKING:
    from pdctl.lab.engine.core import SchedulerCore

log = logging.getLogger(__name__)

ENSURE_RETRIES = 15
ENSURE_INTERVAL_S = 1.0


def _bootstrap_addr(req: Req) -> str:
    """Return the bootstrap server of a request's prefill server."""
    return f"{req.bootstrap_host}:{req.bootstrap_port}"


@dataclass(eq=False)
class DecodeRequest:
    """A request in the decode queues. Without the fix ``receiver``, kv_receiver is None at first."""

    req: Req
    kv_receiver: KVReceiver | None
    waiting_for_input: bool = False
    metadata_buffer_index: int = -1

    @property
    def receiver(self) -> KVReceiver:
        """The receiver of a request that is in a polled queue."""
        assert self.kv_receiver is not None
        return self.kv_receiver


class DecodePreallocQueue:
    """Requests before their transfer: ``pending_reqs`` (dp rank unknown), ``queue`` and ``retracted_queue``."""

    def __init__(self, scheduler: SchedulerCore, kv_manager: DecodeKVManager, gloo_group: Any) -> None:
        self.scheduler = scheduler
        self.kv_manager = kv_manager
        self.gloo_group = gloo_group
        self.queue: list[DecodeRequest] = []
        self.pending_reqs: list[DecodeRequest] = []
        self.retracted_queue: list[Req] = []
        self._ensure_retry_count: dict[str, int] = {}
        self._max_ensure_retries = ENSURE_RETRIES
        self._ensure_last_attempt_time: dict[str, float] = {}
        self._ensure_retry_interval = ENSURE_INTERVAL_S

    def add(self, req: Req) -> None:
        """Take a new request."""
        if len(req.origin_input_ids) + req.max_new_tokens > self.scheduler.pool.size:
            req.abort("request exceeds the KV capacity")
            self.scheduler.stream_output(req)
            return
        if not self.kv_manager.config.has("receiver"):
            # The old life cycle: nothing is enqueued before this very rank has heard of the prefill dp rank.
            self.pending_reqs.append(DecodeRequest(req, None))
            return
        decode_req = self._create_receiver_and_enqueue(DecodeRequest(req, None))
        prefill_dp_rank = self._resolve_prefill_dp_rank(req)
        if prefill_dp_rank is not None:
            decode_req.receiver.init(prefill_dp_rank)
        else:
            self.pending_reqs.append(decode_req)

    def _create_receiver_and_enqueue(self, decode_req: DecodeRequest) -> DecodeRequest:
        req = decode_req.req
        decode_req.kv_receiver = KVReceiver(self.kv_manager, _bootstrap_addr(req), req.bootstrap_room)
        self.queue.append(decode_req)
        return decode_req

    def _resolve_prefill_dp_rank(self, req: Req) -> int | None:
        info = self.kv_manager.prefill_info_table.get(_bootstrap_addr(req))
        if info is None:
            return None
        if info.dp_size == 1:
            return 0
        if info.follow_bootstrap_room and "decode" not in self.kv_manager.config.force_query:
            return req.bootstrap_room % info.dp_size
        return None

    def _ensure_prefill_info(self, bootstrap_addr: str, reqs: list[DecodeRequest]) -> bool:
        """Return whether the sizes of a prefill server are known.

        It asks at most once a second. After 15 times it gives up and fails ``reqs``, the requests that wait for that server.
        """
        now = time.monotonic()
        last = self._ensure_last_attempt_time.get(bootstrap_addr)
        if last is not None and now - last < self._ensure_retry_interval:
            return False
        self._ensure_last_attempt_time[bootstrap_addr] = now
        if self.kv_manager.try_ensure_parallel_info(bootstrap_addr):
            self._ensure_retry_count.pop(bootstrap_addr, None)
            self._ensure_last_attempt_time.pop(bootstrap_addr, None)
            return True
        count = self._ensure_retry_count[bootstrap_addr] = self._ensure_retry_count.get(bootstrap_addr, 0) + 1
        if count >= self._max_ensure_retries:
            log.error("Could not fetch prefill parallel info from %s after %d attempts", bootstrap_addr, count)
            del self._ensure_retry_count[bootstrap_addr], self._ensure_last_attempt_time[bootstrap_addr]
            for decode_req in reqs:
                if decode_req.kv_receiver is None:
                    self._create_receiver_and_enqueue(decode_req)
                decode_req.receiver.abort()
                self.pending_reqs.remove(decode_req)
        return False

    def _resolve_pending_reqs(self) -> None:
        """Ask the bootstrap servers about all rooms without a dp rank. Each rank asks for itself."""
        addr_to_reqs: dict[str, list[DecodeRequest]] = {}
        for decode_req in self.pending_reqs:
            addr_to_reqs.setdefault(_bootstrap_addr(decode_req.req), []).append(decode_req)
        for address, reqs in addr_to_reqs.items():
            if self._ensure_prefill_info(address, reqs):
                self._resolve(address, reqs)

    def _resolve(self, bootstrap_addr: str, reqs: list[DecodeRequest]) -> None:
        resolved: list[tuple[DecodeRequest, int]] = []
        need_query: list[DecodeRequest] = []
        for decode_req in reqs:
            if decode_req.kv_receiver is not None and decode_req.kv_receiver.conclude_state == KVPoll.FAILED:
                self.pending_reqs.remove(decode_req)  # aborted: the handshake queue ends it
                continue
            dp_rank = self._resolve_prefill_dp_rank(decode_req.req)
            if dp_rank is not None:
                resolved.append((decode_req, dp_rank))
            else:
                need_query.append(decode_req)
        if need_query:
            rooms = [decode_req.req.bootstrap_room for decode_req in need_query]
            found = KVReceiver.query_prefill_dp_ranks(bootstrap_addr, rooms)
            for decode_req in need_query:
                answer = found.get(str(decode_req.req.bootstrap_room))
                if answer is not None:
                    resolved.append((decode_req, int(answer)))
        for decode_req, dp_rank in resolved:
            self.pending_reqs.remove(decode_req)
            if decode_req.kv_receiver is None:
                self._create_receiver_and_enqueue(decode_req)
            decode_req.receiver.init(dp_rank)

    def _update_handshake_waiters(self, rids_to_check: list[str] | None = None) -> None:
        if not self.queue:
            return
        if all(decode_req.waiting_for_input for decode_req in self.queue) and not any(
            decode_req.receiver.conclude_state == KVPoll.FAILED for decode_req in self.queue
        ):
            return
        polls = poll_and_all_reduce([decode_req.receiver for decode_req in self.queue], self.gloo_group)
        for decode_req, poll in zip(self.queue, polls, strict=False):
            if rids_to_check is not None and decode_req.req.rid not in rids_to_check:
                continue
            if poll == KVPoll.WAITING_FOR_INPUT:
                decode_req.waiting_for_input = True
            elif poll == KVPoll.FAILED:
                decode_req.req.abort(f"decode handshake failed: {decode_req.receiver.failure_reason()}")
            elif poll != KVPoll.BOOTSTRAPPING:
                raise ValueError(f"Unexpected poll case: {poll}")

    def pop_preallocated(
        self, rids_to_check: list[str] | None = None
    ) -> tuple[list[DecodeRequest], list[DecodeRequest]]:
        """Return (requests that got KV places and a slot, requests that failed); both have left the queue."""
        self._resolve_pending_reqs()
        self._update_handshake_waiters(rids_to_check)
        scheduler = self.scheduler
        failed: list[DecodeRequest] = []
        preallocated: list[DecodeRequest] = []
        remove: set[int] = set()
        for i, decode_req in enumerate(self.queue):
            if rids_to_check is not None and decode_req.req.rid not in rids_to_check:
                continue
            if decode_req.req.is_aborted:
                scheduler.stream_output(decode_req.req)
                failed.append(decode_req)
                remove.add(i)
        for i, decode_req in enumerate(self.queue):
            if (rids_to_check is not None and decode_req.req.rid not in rids_to_check) or i in remove:
                continue
            if not decode_req.waiting_for_input:
                continue
            # Strictly first come, first served: a request that does not fit holds up those behind it.
            wanted = len(decode_req.req.origin_input_ids) + decode_req.req.max_new_tokens
            if (
                scheduler.req_to_token_pool.available_size() <= 0
                or scheduler.req_to_metadata_buffer_idx_allocator.available_size() <= 0
                or wanted > scheduler.allocatable_tokens()
            ):
                break
            self._pre_alloc(decode_req)
            preallocated.append(decode_req)
            remove.add(i)
            decode_req.receiver.send_metadata(decode_req.req.kv, decode_req.metadata_buffer_index)
        self.queue = [entry for i, entry in enumerate(self.queue) if i not in remove]
        return preallocated, failed

    def _pre_alloc(self, decode_req: DecodeRequest) -> None:
        places = self.scheduler.pool.alloc(len(decode_req.req.origin_input_ids))
        slot = self.scheduler.req_to_metadata_buffer_idx_allocator.alloc()
        assert places is not None
        assert slot is not None
        decode_req.req.kv = places
        self.scheduler.req_to_token_pool.alloc(decode_req.req)
        decode_req.metadata_buffer_index = slot

    def resume_retracted_reqs(self) -> list[Req]:
        """Return retracted requests that have their KV places back."""
        resumed: list[Req] = []
        for req in self.retracted_queue:
            need = len(req.origin_input_ids) + len(req.output_ids) - 1
            rows = self.scheduler.req_to_token_pool
            if need + 1 > self.scheduler.pool.available_size() or rows.available_size() <= 0:
                break
            places = self.scheduler.pool.alloc(need)
            assert places is not None
            req.kv = places
            rows.alloc(req)
            self.scheduler.pool.load(places, req.saved_kv)
            req.saved_kv = None
            resumed.append(req)
        self.retracted_queue = self.retracted_queue[len(resumed) :]
        return resumed
