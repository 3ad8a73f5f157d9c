"""Hooks of a lab rank that write events: what enters queues, states, slots, dp ranks, aborts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pdctl.engines.base import Hooks, Site, after
from pdctl.engines.lab.reader import QueueReader
from pdctl.engines.sglang import events
from pdctl.engines.sglang.seams import kv_manager
from pdctl.engines.shared import failure
from pdctl.engines.slots import SlotWatch
from pdctl.protocol.model import QUEUES, Action, EventKind

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder


class Events:
    """Installs the hooks. The reader tells what is in a slot."""

    def __init__(self, scheduler: Any, hooks: Hooks, reader: QueueReader, recorder: Recorder) -> None:
        self._scheduler = scheduler
        self._hooks = hooks
        self._reader = reader
        self._event = recorder.event
        self._slots = SlotWatch(recorder, reader.owners)
        self.taken = self._slots.taken

    def install(self) -> list[str]:
        """Put the hooks in; returns their names."""
        scheduler, hooks = self._scheduler, self._hooks
        if scheduler.role == "prefill":
            self._entering("prefill.bootstrap", scheduler.disagg_prefill_bootstrap_queue, "add", "queue")
        else:
            prealloc, transfer = scheduler.disagg_decode_prealloc_queue, scheduler.disagg_decode_transfer_queue
            self._entering("decode.prealloc", prealloc, "_create_receiver_and_enqueue", "queue")
            self._entering("decode.pending", prealloc, "add", "pending_reqs")
            self._entering("decode.transfer", transfer, "extend", "queue")
            hooks.wrap(transfer, "pop_transferred", "events.leave", self._leaving)
        manager = type(kv_manager(scheduler))
        if scheduler.role != "prefill":
            hooks.wrap(manager, "try_ensure_parallel_info", "events.lookup", events.lookups(self._event))
        hooks.wrap(manager, "update_status", "events.state", events.states(self._event))
        hooks.wrap(manager, "record_failure", "events.failure", failure(self._event))
        hooks.wrap(scheduler, "abort_request", "events.abort", after(self._aborts))
        self._slots.install(hooks, scheduler.req_to_metadata_buffer_idx_allocator)
        return ["events.enqueue", "events.state", "events.failure", "events.abort", "events.slots"]

    def routing(self, sender: Any, receiver: Any) -> None:
        """Hook the classes that register and ask for dp ranks."""
        if self._scheduler.role == "prefill":
            self._hooks.wrap(sender, "_register_prefill_dp_rank", "events.routing", events.registers(self._event))
        else:
            self._hooks.wrap(receiver, "query_prefill_dp_ranks", "events.routing", events.queries(self._event))

    def _entering(self, queue: str, owner: Any, method: str, attribute: str) -> None:
        make = events.entering(queue, attribute, self._reader, self._event)
        self._hooks.wrap(type(owner), method, f"events.{queue}", make)

    def _leaving(self, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        code = QUEUES.index("decode.transfer")

        def leaves(*args: Any, **kwargs: Any) -> Any:
            before = list(self._reader.queue("decode.transfer"))
            result = original(*args, **kwargs)
            if site.on and before:
                with site:
                    kept = set(map(id, self._reader.queue("decode.transfer")))
                    for entry in before:
                        if id(entry) not in kept:
                            action = Action.ABORTED if entry.req.is_aborted else Action.COMMITTED
                            slot = entry.metadata_buffer_index
                            self._event(
                                EventKind.DEQUEUE, queue=code, room=entry.req.bootstrap_room, slot=slot, a=action
                            )
            return result

        return leaves

    def _aborts(self, _: object, rid: str) -> None:
        self._event(EventKind.ABORT, text=rid)
