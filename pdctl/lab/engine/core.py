"""The parts common to ranks of both roles: requests, answers, memory, batches (SGLang: ``managers/scheduler.py``)."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist
import zmq

from pdctl.lab import messages
from pdctl.lab.config import LabConfig
from pdctl.lab.engine.groups import Groups, broadcast_pyobj
from pdctl.lab.engine.memory import KVPool, ReqToTokenPool
from pdctl.lab.engine.model_runner import ModelRunner
from pdctl.lab.engine.request import Req
from pdctl.lab.engine.transport import Transport
from pdctl.lab.engine.utils import MetadataBuffers, ReqToMetadataIdxAllocator

if TYPE_CHECKING:
    from pdctl.lab.engine.decode import DecodeTransferQueue
    from pdctl.lab.engine.prealloc import DecodePreallocQueue
    from pdctl.lab.engine.prefill import PrefillBootstrapQueue
    from pdctl.lab.engine.receiver import DecodeKVManager
    from pdctl.lab.engine.sender import PrefillKVManager

log = logging.getLogger(__name__)

IDLE_WAIT_MS = 100
BUSY_WAIT_MS = 2
STUCK_WAIT_MS = 20
STUCK_AFTER_TURNS = 50
"""Turns in which no queue has another length; from then on the longer wait: a request that waits for good fills no core."""
CLIENTS = 16
"""Connections to clients that are kept open: each client has an address of its own, and descriptors are few."""


class SchedulerCore:
    """A rank's memory, sockets and batches. ticks and tick_mono_ns: turns so far and when the last began."""

    prefill_manager: PrefillKVManager
    disagg_prefill_bootstrap_queue: PrefillBootstrapQueue
    disagg_prefill_inflight_queue: list[Req]
    decode_manager: DecodeKVManager
    disagg_decode_prealloc_queue: DecodePreallocQueue
    disagg_decode_transfer_queue: DecodeTransferQueue

    def __init__(
        self,
        config: LabConfig,
        role: str,
        dp_rank: int,
        groups: Groups,
        transport: Transport,
        request_endpoint: str,
    ) -> None:
        self.config = config
        self.role = role
        self.dp_rank = dp_rank
        self.groups = groups
        self.transport = transport
        self.attn_tp_cpu_group = groups.attn_tp_cpu
        self.attn_cp_cpu_group = groups.attn_cp_cpu
        self.ticks = 0
        self.tick_mono_ns = 0
        shape = config.shape(role)
        layers = config.layers // shape.pp
        self.pool = KVPool(layers, groups.pp_rank * layers, config.kv_tokens)
        self.req_to_token_pool = ReqToTokenPool(config.max_running)
        self.disagg_metadata_buffers = MetadataBuffers(config.slots, device=config.metadata_device)
        self.req_to_metadata_buffer_idx_allocator = ReqToMetadataIdxAllocator(config.slots)
        self.model_runner = ModelRunner(self.pool, groups, config.step_s(role))
        self.waiting_queue: list[Req] = []
        self.running_batch: list[Req] = []
        self.cur_batch: list[Req] = []
        self.context: zmq.Context[Any] = zmq.Context()
        self._outputs: dict[str, Any] = {}
        self._requests: Any = None
        self._lengths: list[int] = []
        self._still = 0  # turns since a queue had another length
        # Of the last turns, what is not taken out of batches yet: the last stage hears of an abort that many turns later.
        self._aborts: list[list[str]] = [[] for _ in range(groups.pp_size - 1 - groups.pp_rank)]
        self._others_busy = False  # whether a dp rank that shares this rank's forwards has requests
        if groups.pp_first and groups.tp_rank == 0:
            self._requests = self.context.socket(zmq.PULL)
            self._requests.setsockopt(zmq.MAXMSGSIZE, messages.MAX_MESSAGE)
            self._requests.bind(request_endpoint)

    def begin_tick(self) -> None:
        """Count a turn of the loop."""
        self.ticks += 1
        self.tick_mono_ns = time.monotonic_ns()

    # ---- requests in, answers out ---------------------------------------------------------------------------------

    def recv_requests(self) -> list[dict[str, Any]]:
        """Return new messages: rank 0 takes them from its socket and broadcasts them over the attention-TP group."""
        groups = self.groups
        received: list[dict[str, Any]] = []
        if self._requests is not None:
            if not self.running_batch:  # an idle rank waits here, all others in the broadcast
                self._requests.poll(self.wait_ms())
            while True:
                try:
                    received.append(messages.decode(self._requests.recv(zmq.NOBLOCK)))
                except zmq.Again:
                    break
                except ValueError as error:
                    log.warning("a message that is no request was dropped: %s", error)
        if groups.tp_size > 1:
            first = groups.tp_rank == 0
            received = broadcast_pyobj(received, first, self.attn_tp_cpu_group, groups.members["attn-tp"][0])
        return received

    def wait_ms(self) -> int:
        """Return how long this turn may wait for a message."""
        lengths = self.queue_lengths()
        self._still = self._still + 1 if lengths == self._lengths else 0
        self._lengths = lengths
        if not any(lengths):
            return BUSY_WAIT_MS if self._others_busy else IDLE_WAIT_MS
        return BUSY_WAIT_MS if self._still < STUCK_AFTER_TURNS else STUCK_WAIT_MS

    def queue_lengths(self) -> list[int]:
        """Return how many requests each queue of this rank has."""
        queues: list[list[Any]] = [self.waiting_queue, self.running_batch]
        if self.role == "prefill":
            queues += [self.disagg_prefill_bootstrap_queue.queue, self.disagg_prefill_inflight_queue]
        else:
            prealloc = self.disagg_decode_prealloc_queue
            queues += [prealloc.queue, prealloc.pending_reqs, prealloc.retracted_queue]
            queues.append(self.disagg_decode_transfer_queue.queue)
        return [len(queue) for queue in queues]

    def process_input_requests(self, received: list[dict[str, Any]]) -> None:
        """Enqueue new requests and carry out aborts. Raises RuntimeError where this rank is told to."""
        self._aborts.append([message["rid"] for message in received if message["op"] == "abort"])
        for rid in self._aborts.pop(0):
            self.abort_in_batches(rid)
        for message in received:
            if message["op"] == "abort":
                self.abort_request(message["rid"])
            elif message["op"] == "lose":
                if message["tp"] == self.groups.tp_rank:
                    self.lose_request(message["rid"])
            elif message["op"] == "crash":
                if (message["pp"], message["tp"]) == (self.groups.pp_rank, self.groups.tp_rank):
                    raise RuntimeError("this scheduler was told to fail (pdctl lab crash)")
            elif self.role == "prefill":
                self.disagg_prefill_bootstrap_queue.add(_request(message))
            else:
                self.disagg_decode_prealloc_queue.add(_request(message))

    def lose_request(self, rid: str) -> None:
        """Take a request off this rank's decode queues alone, as a rank-local time-out or abort does (issue 37909).

        No engine has this operation. It simulates a rank-local failure: the other ranks go on with the request.
        """
        prealloc, transfer = self.disagg_decode_prealloc_queue, self.disagg_decode_transfer_queue
        prealloc.pending_reqs[:] = [entry for entry in prealloc.pending_reqs if entry.req.rid != rid]
        prealloc.queue = [entry for entry in prealloc.queue if entry.req.rid != rid]
        transfer.queue = [entry for entry in transfer.queue if entry.req.rid != rid]

    def abort_in_batches(self, rid: str) -> None:
        """Abort a request that waits for a batch or is in one, on all stages in the same turn: their batches stay alike."""
        for req in [req for req in self.waiting_queue if req.rid == rid]:
            self.waiting_queue.remove(req)
            req.abort("Aborted by AbortReq.")
            self.stream_output(req)
            self.release_kv(req)
            if self.role == "prefill":
                if req.disagg_kv_sender is not None:
                    req.disagg_kv_sender.abort()
                self.release_slot(req)
        for req in self.running_batch:
            if req.rid == rid:
                req.abort("Aborted by AbortReq.")
        if self.role == "prefill":
            return
        prealloc = self.disagg_decode_prealloc_queue
        for req in [req for req in prealloc.retracted_queue if req.rid == rid]:
            prealloc.retracted_queue.remove(req)
            req.abort("Aborted by AbortReq.")
            self.stream_output(req)

    def abort_request(self, rid: str) -> None:
        """Abort a request in the queues that are polled (SGLang: ``Scheduler.abort_request``)."""
        if self.role == "prefill":
            for req in [*self.disagg_prefill_bootstrap_queue.queue, *self.disagg_prefill_inflight_queue]:
                if req.rid == rid and req.disagg_kv_sender is not None:
                    req.disagg_kv_sender.abort()
            return
        prealloc = self.disagg_decode_prealloc_queue
        for entry in [*prealloc.queue, *self.disagg_decode_transfer_queue.queue]:
            if entry.req.rid == rid and entry.kv_receiver is not None:
                entry.kv_receiver.abort()
        for entry in [e for e in prealloc.pending_reqs if e.req.rid == rid and e.kv_receiver is None]:
            prealloc.pending_reqs.remove(entry)
            entry.req.abort("Aborted by AbortReq.")
            self.stream_output(entry.req)

    def stream_output(self, req: Req) -> None:
        """Answer a request that has ended; only one rank of a server's dp rank does."""
        if self.groups.tp_rank != 0 or not self.groups.pp_first or not req.reply:
            return
        output = self._outputs.pop(req.reply, None)
        if output is None:
            output = self.context.socket(zmq.PUSH)
            output.setsockopt(zmq.LINGER, 0)
            output.connect(req.reply)
        self._outputs[req.reply] = output  # the newest comes last
        if len(self._outputs) > CLIENTS:
            self._outputs.pop(next(iter(self._outputs))).close(linger=1000)
        answer = {
            "rid": req.rid,
            "tag": req.tag,
            "role": self.role,
            "tokens": req.output_ids if self.role == "decode" else [],
            "error": req.finished_reason if req.is_aborted else "",
        }
        try:
            output.send(msgspec.msgpack.encode(answer), zmq.NOBLOCK)
        except zmq.Again:
            log.warning("nobody takes the answer to %s", req.rid)

    def handle_bootstrap_failure(self, req: Req) -> None:
        """Answer a request that failed before its transfer."""
        assert req.disagg_kv_sender is not None
        req.abort(f"prefill bootstrap failed: {req.disagg_kv_sender.failure_reason()}")
        self.release_slot(req)
        self.stream_output(req)

    # ---- memory ---------------------------------------------------------------------------------------------------

    def allocatable_tokens(self) -> int:
        """Return KV places that a new request may have: the next step of all that are ahead of it must still fit."""
        grow = len(self.running_batch) + len(self.waiting_queue) + len(self.disagg_decode_transfer_queue.queue)
        return self.pool.available_size() - grow

    def release_kv(self, req: Req) -> None:
        """Give back a request's KV places and its row."""
        self.pool.free(req.kv)
        req.kv = []
        self.req_to_token_pool.free(req)

    def release_slot(self, req: Req) -> None:
        """Give back a prefill request's metadata slot."""
        if req.metadata_buffer_index >= 0:
            self.req_to_metadata_buffer_idx_allocator.free(req.metadata_buffer_index)
            req.metadata_buffer_index = -1

    # ---- batches --------------------------------------------------------------------------------------------------

    def maybe_prepare_mlp_sync_batch(self, batch: list[Req]) -> list[int]:
        """Return the size of each dp rank's batch. With dp attention all dp ranks of the server meet here, each turn.

        SGLang: ``scheduler_components/dp_attn.py``. A dp rank without a batch takes part in the forward of the others.
        """
        groups = self.groups
        if groups.dp_size == 1:
            return [len(batch)]
        local = torch.tensor([len(batch), any(self.queue_lengths())], dtype=torch.int64)
        gathered = torch.empty(len(local) * groups.dp_size * groups.tp_size, dtype=torch.int64)
        dist.all_gather_into_tensor(gathered, local, group=groups.tp)
        of_each = gathered.view(-1, len(local))[:: groups.tp_size].tolist()
        self._others_busy = any(busy for _, busy in of_each)
        return [size for size, _ in of_each]

    def run_batch(self, batch: list[Req], counts: list[int] | None = None) -> list[int]:
        """Return the next token of every request in the batch. counts: of :meth:`maybe_prepare_mlp_sync_batch`."""
        for req in batch:
            if self.role == "prefill":
                self.pool.fill(req.kv, req.origin_input_ids, 0)
            elif len(req.kv) < len(req.origin_input_ids) + len(req.output_ids):
                place = self.pool.alloc(1)
                assert place is not None
                self.pool.fill(place, req.output_ids[-1:], len(req.kv))
                req.kv += place
        self.cur_batch = batch
        tokens = self.model_runner.forward(batch, counts or [len(batch)])
        self.cur_batch = []
        return tokens

    def process_batch_result(self, batch: list[Req], tokens: list[int]) -> None:
        """Append the tokens of a decode batch and end requests that are complete."""
        for req, token in zip(batch, tokens, strict=True):
            req.output_ids.append(token)
        self.finish_requests()

    def finish_requests(self) -> None:
        """Take requests that are complete or aborted out of the running batch and answer them."""
        done = [req for req in self.running_batch if req.is_aborted or len(req.output_ids) >= req.max_new_tokens]
        if not done:
            return
        self.running_batch = [req for req in self.running_batch if req not in done]
        for req in done:
            req.finished_reason = req.finished_reason or "length"
            self.stream_output(req)
            self.release_kv(req)


def _request(message: dict[str, Any]) -> Req:
    return Req(
        message["rid"], message["room"], list(message["prompt"]), message["max_new_tokens"], message["reply"],
        bootstrap_host=message["bootstrap_host"], bootstrap_port=message["bootstrap_port"], tag=message["tag"],
    )  # fmt: skip
