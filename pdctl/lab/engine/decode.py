"""The decode server's transfer queue and loop (SGLang: ``sglang/srt/disaggregation/decode.py``).

pending → handshake and preallocation → transfer → waiting → running. All ranks of an attention-TP group walk through
the same lists in the same order; nothing checks that they do.
"""

from __future__ import annotations

import logging
from typing import Any

from pdctl.lab.engine.core import SchedulerCore
from pdctl.lab.engine.prealloc import DecodeRequest
from pdctl.lab.engine.request import Req
from pdctl.lab.engine.utils import MetadataBuffers, ReqToMetadataIdxAllocator, poll_and_all_reduce
from pdctl.protocol.model import KVPoll

log = logging.getLogger(__name__)


class DecodeTransferQueue:
    """Requests whose KV and metadata are on their way."""

    def __init__(
        self,
        scheduler: SchedulerCore,
        gloo_group: Any,
        allocator: ReqToMetadataIdxAllocator,
        metadata_buffers: MetadataBuffers,
    ) -> None:
        self.queue: list[DecodeRequest] = []
        self.scheduler = scheduler
        self.gloo_group = gloo_group
        self.req_to_metadata_buffer_idx_allocator = allocator
        self.metadata_buffers = metadata_buffers
        self.gate = scheduler.config.has("gate")
        self.zero_on_free = scheduler.config.has("zero-on-free")

    def extend(self, decode_reqs: list[DecodeRequest]) -> None:
        """Take preallocated requests."""
        self.queue.extend(decode_reqs)

    def _commit_transfer_to_req(self, decode_req: DecodeRequest) -> bool:
        """Take the metadata row over; True when the request leaves the queue, committed or aborted.

        With the gate a slot that reads 0 here is an error; without it (up to 0.5.12.post1) it means "not yet".
        """
        token, actual_room = self.metadata_buffers.get_buf(decode_req.metadata_buffer_index)
        req = decode_req.req
        if actual_room == 0:
            if not self.gate:
                return False
            req.abort("Metadata unexpectedly not ready after readiness gate (bootstrap_room=0)")
        elif actual_room != req.bootstrap_room:
            log.error(
                "room %s: slot %s holds room %s", req.bootstrap_room, decode_req.metadata_buffer_index, actual_room
            )
            req.abort("Metadata corruption detected - bootstrap_room mismatch")
        else:
            req.output_ids.append(token)
        decode_req.receiver.clear()
        decode_req.kv_receiver = None
        return True

    def _poll_with_metadata_gate(self) -> list[int]:
        receivers = [decode_req.receiver for decode_req in self.queue]
        if not self.gate:
            return poll_and_all_reduce(receivers, self.gloo_group)
        return poll_and_all_reduce(receivers, self.gloo_group, self.queue, self.metadata_buffers)

    def pop_transferred(self, rids_to_check: list[str] | None = None) -> list[Req]:
        """Return requests whose KV and metadata have arrived; they and the failed ones have left the queue."""
        if not self.queue:
            return []
        polls = self._poll_with_metadata_gate()
        transferred: list[Req] = []
        remove: set[int] = set()
        for i, (decode_req, poll) in enumerate(zip(self.queue, polls, strict=False)):
            if rids_to_check is not None and decode_req.req.rid not in rids_to_check:
                continue
            req = decode_req.req
            if poll == KVPoll.FAILED:
                req.abort(f"decode transfer failed: {decode_req.receiver.failure_reason()}")
                remove.add(i)
            elif poll == KVPoll.SUCCESS and self._commit_transfer_to_req(decode_req):
                remove.add(i)
                if not req.is_aborted:
                    transferred.append(req)
            if req.is_aborted and i in remove:
                self.scheduler.stream_output(req)
                self.scheduler.release_kv(req)
        for i in remove:
            slot = self.queue[i].metadata_buffer_index
            if self.zero_on_free:
                self.metadata_buffers.bootstrap_room[slot] = 0
            self.req_to_metadata_buffer_idx_allocator.free(slot)
        self.queue = [entry for i, entry in enumerate(self.queue) if i not in remove]
        return transferred


class SchedulerDisaggregationDecodeMixin(SchedulerCore):
    """The decode server's loop."""

    def event_loop_normal_disagg_decode(self) -> None:
        """Serve for ever."""
        while True:
            self.begin_tick()
            self.process_input_requests(self.recv_requests())
            self.process_decode_queue()
            batch = self.get_next_disagg_decode_batch_to_run()
            counts = self.maybe_prepare_mlp_sync_batch(batch)
            if any(counts):
                self.process_batch_result(batch, self.run_batch(batch, counts))

    def process_decode_queue(self) -> None:
        """Move requests through the decode queues, as far as they can go now."""
        self.waiting_queue.extend(self.disagg_decode_prealloc_queue.resume_retracted_reqs())
        if self.disagg_decode_prealloc_queue.retracted_queue:
            return
        req_conns, _ = self.disagg_decode_prealloc_queue.pop_preallocated()
        self.disagg_decode_transfer_queue.extend(req_conns)
        self.waiting_queue.extend(self.disagg_decode_transfer_queue.pop_transferred())

    def get_next_disagg_decode_batch_to_run(self) -> list[Req]:
        """Return the running batch after new requests joined it and, where KV runs out, the youngest left it."""
        space = self.config.max_running - len(self.running_batch)
        self.running_batch.extend(self.waiting_queue[:space])
        del self.waiting_queue[: max(space, 0)]
        self.finish_requests()
        while len(self.running_batch) > self.pool.available_size():
            self._retract(self.running_batch.pop())
        return self.running_batch

    def _retract(self, req: Req) -> None:
        req.saved_kv = self.pool.save(req.kv)
        self.release_kv(req)
        self.disagg_decode_prealloc_queue.retracted_queue.append(req)
