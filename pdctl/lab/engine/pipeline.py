"""Loops of servers with pipeline stages (SGLang: ``managers/scheduler_pp_mixin.py``), one microbatch at a time.

A turn has two passes round the ring of stages: first each stage adds its own polls to what the stage before it found
(rids that all have, rids that any has failed), then the last stage's result is carried out by the first, which passes
on *what it did*, and so on. The first stage carries it out as many turns later as there are stages, as SGLang's
microbatches do, and new requests and aborts reach a stage one turn after the stage before it. What polls say may have
changed by then: a request that a later stage fails meanwhile is taken on by the first one (issue 30476).

Stages of a decode server agree on transfers that ended, well or not, and only then ask for the metadata. So the first one
puts into its batch what a later one fails, or keeps because its metadata is not there yet.

Messages go over the world's group, as in SGLang. What the model passes on has the group of the stages.
"""

from __future__ import annotations

from typing import Any

from pdctl.lab.engine.decode import SchedulerDisaggregationDecodeMixin
from pdctl.lab.engine.groups import recv_pyobj, send_pyobj
from pdctl.lab.engine.prefill import SchedulerDisaggregationPrefillMixin
from pdctl.lab.engine.utils import poll_and_all_reduce_attn_cp_tp_group
from pdctl.protocol.model import KVPoll

Rids = tuple[list[str], list[str], list[str]]
"""Rids to move on, to fail, to release."""


class SchedulerPPMixin(SchedulerDisaggregationDecodeMixin, SchedulerDisaggregationPrefillMixin):
    """Loops and ring passes of a pipeline stage."""

    held_requests: list[dict[str, Any]] = []  # noqa: RUF012  # replaced, never changed
    agreed: tuple[Rids, ...] = ()
    """What was agreed in the last turns and is not carried out yet."""

    def event_loop_pp_disagg_prefill(self) -> None:
        """Serve for ever as one stage of a prefill server."""
        while True:
            self.begin_tick()
            self.process_input_requests(self._pp_recv_requests())
            good, bad, released = self._pp_later(self._pp_consensus(*self._pp_prefill_rids()))
            good_reqs, failed_reqs = self.disagg_prefill_bootstrap_queue.pop_bootstrapped(good + bad)
            # The next stage hears of what this one has done, not of what was agreed.
            self._pp_pass_on([req.rid for req in good_reqs], [req.rid for req in failed_reqs], released)
            self.waiting_queue.extend(good_reqs)
            batch = self.get_new_batch_prefill()
            if batch:
                self.process_batch_result_disagg_prefill(batch, self.run_batch(batch))
            self.process_disagg_prefill_inflight_queue(released)

    def event_loop_pp_disagg_decode(self) -> None:
        """Serve for ever as one stage of a decode server."""
        while True:
            self.begin_tick()
            self.process_input_requests(self._pp_recv_requests())
            self.waiting_queue.extend(self.disagg_decode_prealloc_queue.resume_retracted_reqs())
            good, bad, released = self._pp_later(self._pp_consensus(*self._pp_decode_rids()))
            req_conns, failed = self.disagg_decode_prealloc_queue.pop_preallocated(good + bad)
            self.disagg_decode_transfer_queue.extend(req_conns)
            transfers = self.disagg_decode_transfer_queue
            before = [entry.req.rid for entry in transfers.queue]
            done = transfers.pop_transferred(released)
            kept = {entry.req.rid for entry in transfers.queue}
            drained = self.config.has("transfer-drain")
            ended = [rid for rid in before if rid not in kept] if drained else [req.rid for req in done]
            self._pp_pass_on([one.req.rid for one in req_conns], [one.req.rid for one in failed], ended)
            self.waiting_queue.extend(done)
            batch = self.get_next_disagg_decode_batch_to_run()
            if batch:
                self.process_batch_result(batch, self.run_batch(batch))

    # ---- ring passes ----------------------------------------------------------------------------------------------

    def _pp_recv_requests(self) -> list[dict[str, Any]]:
        """Return new messages. The next stage gets them a turn later, so it lags behind by a turn."""
        groups = self.groups
        stages, rank = groups.members["pp"], groups.pp_rank
        received: list[dict[str, Any]] = (
            self.recv_requests() if groups.pp_first else recv_pyobj(groups.world, stages[rank - 1])
        )
        if not groups.pp_last:
            send_pyobj(self.held_requests, groups.world, stages[rank + 1])
        self.held_requests = received
        return received

    def _pp_consensus(self, good: list[str], bad: list[str], released: list[str]) -> Rids:
        """Return rids to move on, rids to fail and rids to release, as this stage is told to."""
        groups = self.groups
        stages, rank = groups.members["pp"], groups.pp_rank
        if not groups.pp_first:
            prev_good, prev_bad, prev_released = recv_pyobj(groups.world, stages[rank - 1])
            good = [rid for rid in prev_good if rid in good]
            bad = prev_bad + [rid for rid in bad if rid not in prev_bad]
            released = [rid for rid in prev_released if rid in released]
        if not groups.pp_last:
            send_pyobj((good, bad, released), groups.world, stages[rank + 1])
        else:
            send_pyobj((good, bad, released), groups.world, stages[0])
        good, bad, released = recv_pyobj(groups.world, stages[rank - 1])  # of the first stage: the last one
        return good, bad, released

    def _pp_later(self, agreed: Rids) -> Rids:
        """Return what the first stage carries out in this turn; a later one does at once what it is told.

        Without ``orphan-drain`` the first one does, too: a later stage then hears of an abort after that.
        """
        if not self.groups.pp_first or not self.config.has("orphan-drain"):
            return agreed
        self.agreed = (*self.agreed, agreed)
        if len(self.agreed) <= self.groups.pp_size:
            return [], [], []
        now, *later = self.agreed
        self.agreed = tuple(later)
        return now

    def _pp_pass_on(self, good: list[str], bad: list[str], released: list[str]) -> None:
        groups = self.groups
        if not groups.pp_last:
            send_pyobj((good, bad, released), groups.world, groups.members["pp"][groups.pp_rank + 1])

    # ---- what this stage polls ------------------------------------------------------------------------------------

    def get_rids(self, queue: list[Any], is_send: bool, *wanted: tuple[KVPoll, ...]) -> list[list[str]]:
        """Return, for each set of polls, the rids that are in it on all ranks of this stage. Polls empty lists too."""
        polls = poll_and_all_reduce_attn_cp_tp_group(
            [entry.disagg_kv_sender if is_send else entry.kv_receiver for entry in queue],
            self.attn_cp_cpu_group,
            self.attn_tp_cpu_group,
        )
        rids = [entry.rid if is_send else entry.req.rid for entry in queue]
        return [[rid for rid, poll in zip(rids, polls, strict=False) if poll in states] for states in wanted]

    def _pp_prefill_rids(self) -> tuple[list[str], list[str], list[str]]:
        queue = self.disagg_prefill_bootstrap_queue.queue
        good, bad = self.get_rids(queue, True, (KVPoll.WAITING_FOR_INPUT,), (KVPoll.FAILED,))
        (released,) = self.get_rids(self.disagg_prefill_inflight_queue, True, (KVPoll.SUCCESS, KVPoll.FAILED))
        return good, bad, released

    def _pp_decode_rids(self) -> tuple[list[str], list[str], list[str]]:
        prealloc = self.disagg_decode_prealloc_queue
        prealloc._resolve_pending_reqs()  # a request in pending can't be in the handshake
        good, bad = self.get_rids(prealloc.queue, False, (KVPoll.WAITING_FOR_INPUT,), (KVPoll.FAILED,))
        (released,) = self.get_rids(self.disagg_decode_transfer_queue.queue, False, (KVPoll.SUCCESS, KVPoll.FAILED))
        return good, bad, released
