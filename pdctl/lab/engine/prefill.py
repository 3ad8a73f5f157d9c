"""The prefill server's queues (SGLang: ``sglang/srt/disaggregation/prefill.py``): bootstrap → waiting → in flight."""

from __future__ import annotations

from pdctl.lab.engine.core import SchedulerCore
from pdctl.lab.engine.request import Req
from pdctl.lab.engine.sender import KVSender, PrefillKVManager
from pdctl.lab.engine.utils import poll_and_all_reduce_attn_cp_tp_group
from pdctl.protocol.model import KVPoll


def sender_of(req: Req) -> KVSender:
    """Return the sender of a request that is in a polled queue."""
    assert req.disagg_kv_sender is not None
    return req.disagg_kv_sender


class PrefillBootstrapQueue:
    """Requests that wait for decode's addresses."""

    def __init__(self, scheduler: SchedulerCore, kv_manager: PrefillKVManager) -> None:
        self.scheduler = scheduler
        self.kv_manager = kv_manager
        self.queue: list[Req] = []

    def add(self, req: Req) -> None:
        """Take a new request."""
        if len(req.origin_input_ids) > self.scheduler.pool.size:
            req.abort("request exceeds the KV capacity")
            self.scheduler.stream_output(req)
            return
        req.disagg_kv_sender = KVSender(self.kv_manager, req.bootstrap_room)
        self.queue.append(req)

    def pop_bootstrapped(self, rids_to_check: list[str] | None = None) -> tuple[list[Req], list[Req]]:
        """Return (requests that decode has prepared for, requests that failed); both have left the queue.

        rids_to_check: on later pipeline stages the rids that the stage before agreed on. Without ``orphan-drain`` it
        filters failed requests too, so that one which the earlier stage has already forgotten stays for ever.
        """
        bootstrapped: list[Req] = []
        failed: list[Req] = []
        if not self.queue:
            return bootstrapped, failed
        drain = self.kv_manager.config.has("orphan-drain")
        polls = poll_and_all_reduce_attn_cp_tp_group(
            [sender_of(req) for req in self.queue],
            self.scheduler.attn_cp_cpu_group,
            self.scheduler.attn_tp_cpu_group,
        )
        remove: set[int] = set()
        for i, (req, poll) in enumerate(zip(self.queue, polls, strict=False)):
            if rids_to_check is not None and req.rid not in rids_to_check and not (drain and poll == KVPoll.FAILED):
                continue
            if poll == KVPoll.FAILED:
                self.scheduler.handle_bootstrap_failure(req)
                remove.add(i)
                failed.append(req)
            elif poll == KVPoll.WAITING_FOR_INPUT:
                if req.metadata_buffer_index < 0:
                    slot = self.scheduler.req_to_metadata_buffer_idx_allocator.alloc()
                    if slot is None:
                        continue
                    req.metadata_buffer_index = slot
                bootstrapped.append(req)
                remove.add(i)
            elif poll != KVPoll.BOOTSTRAPPING:
                raise RuntimeError(f"Unexpected poll state {poll} for req {req.rid} in pop_bootstrapped")
        self.queue = [entry for i, entry in enumerate(self.queue) if i not in remove]
        return bootstrapped, failed


class SchedulerDisaggregationPrefillMixin(SchedulerCore):
    """The prefill server's loop."""

    def event_loop_normal_disagg_prefill(self) -> None:
        """Serve for ever."""
        while True:
            self.begin_tick()
            self.process_input_requests(self.recv_requests())
            self.waiting_queue.extend(self.disagg_prefill_bootstrap_queue.pop_bootstrapped()[0])
            batch = self.get_new_batch_prefill()
            counts = self.maybe_prepare_mlp_sync_batch(batch)
            if any(counts):
                self.process_batch_result_disagg_prefill(batch, self.run_batch(batch, counts))
            self.process_disagg_prefill_inflight_queue()

    def get_new_batch_prefill(self) -> list[Req]:
        """Return waiting requests that KV can be computed for now, in their order."""
        batch: list[Req] = []
        for req in self.waiting_queue:
            places = self.pool.alloc(len(req.origin_input_ids))
            if places is None:
                break
            req.kv = places
            batch.append(req)
        del self.waiting_queue[: len(batch)]
        return batch

    def process_batch_result_disagg_prefill(self, batch: list[Req], tokens: list[int]) -> None:
        """Start the transfer of every prompt in the batch."""
        for req, token in zip(batch, tokens, strict=True):
            req.output_ids.append(token)
            self.disagg_prefill_inflight_queue.append(req)
            self.send_kv_chunk(req)

    def send_kv_chunk(self, req: Req) -> None:
        """Fill the request's metadata row and queue its transfer."""
        self.disagg_metadata_buffers.set_buf(req.metadata_buffer_index, req.output_ids[0], req.bootstrap_room)
        sender_of(req).send(req.kv, req.metadata_buffer_index)

    def process_disagg_prefill_inflight_queue(self, rids_to_check: list[str] | None = None) -> list[Req]:
        """Return requests whose transfer has ended; they have left the queue and been answered."""
        if not self.disagg_prefill_inflight_queue:
            return []
        polls = poll_and_all_reduce_attn_cp_tp_group(
            [sender_of(req) for req in self.disagg_prefill_inflight_queue],
            self.attn_cp_cpu_group,
            self.attn_tp_cpu_group,
        )
        done: list[Req] = []
        undone: list[Req] = []
        for req, poll in zip(self.disagg_prefill_inflight_queue, polls, strict=False):
            if (rids_to_check is not None and req.rid not in rids_to_check) or poll not in (
                KVPoll.SUCCESS,
                KVPoll.FAILED,
            ):
                undone.append(req)
                continue
            if poll == KVPoll.SUCCESS:
                req.finished_reason = "length"
                sender_of(req).clear()
            else:
                req.abort(f"prefill transfer failed: {sender_of(req).failure_reason()}")
            done.append(req)
        undone.extend(self.disagg_prefill_inflight_queue[len(polls) :])
        for req in done:
            self.stream_output(req)
            self.release_kv(req)
            self.release_slot(req)
        self.disagg_prefill_inflight_queue = undone
        return done
