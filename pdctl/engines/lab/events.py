"""Hooks of a lab rank that write events: what enters queues, states, slots, dp ranks, aborts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pdctl.engines.base import Hooks, Maker, Site
from pdctl.engines.lab.reader import QueueReader, manager_of
from pdctl.engines.shared import failure
from pdctl.engines.slots import SlotWatch
from pdctl.protocol.model import QUEUES, Action, EventKind

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder

_MAX_ANSWERS = 4096


def after(then: Callable[..., None]) -> Maker:
    """Return a maker of a hook that calls ``then(result, *arguments)`` after the engine's function."""

    def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if site.on:
                try:
                    then(result, *args, **kwargs)
                except Exception as error:  # counted: the rank goes on
                    site.failed(error)
            return result

        return hooked

    return make


class Events:
    """Installs the hooks. The reader tells what is in a slot."""

    def __init__(self, scheduler: Any, hooks: Hooks, reader: QueueReader, recorder: Recorder) -> None:
        self._scheduler = scheduler
        self._hooks = hooks
        self._reader = reader
        self._event = recorder.event
        self._answers: dict[int, int] = {}
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
        hooks.wrap(manager_of(scheduler), "update_status", "events.state", self._states)
        hooks.wrap(manager_of(scheduler), "record_failure", "events.failure", failure(self._event))
        hooks.wrap(scheduler, "abort_request", "events.abort", after(self._aborted))
        self._slots.install(hooks, scheduler.slots)
        return ["events.enqueue", "events.state", "events.failure", "events.abort", "events.slots"]

    def routing(self, sender: Any, receiver: Any) -> None:
        """Hook the classes that register and ask for dp ranks."""
        if self._scheduler.role == "prefill":
            self._hooks.wrap(sender, "_register_prefill_dp_rank", "events.routing", after(self._registered))
        else:
            self._hooks.wrap(receiver, "query_prefill_dp_ranks", "events.routing", self._queries)

    def _entering(self, queue: str, owner: Any, method: str, attribute: str) -> None:
        code = QUEUES.index(queue)

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def enters(*args: Any, **kwargs: Any) -> Any:
                before = len(getattr(owner, attribute))
                result = original(*args, **kwargs)
                if site.on:
                    try:
                        for entry in getattr(owner, attribute)[before:]:
                            room, slot = self._reader.describe(entry)
                            rid = getattr(entry, "req", entry).rid
                            self._event(EventKind.ENQUEUE, queue=code, room=room, slot=slot, text=rid)
                    except Exception as error:
                        site.failed(error)
                return result

            return enters

        self._hooks.wrap(owner, method, f"events.{queue}", make)

    def _leaving(self, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        code = QUEUES.index("decode.transfer")

        def leaves(*args: Any, **kwargs: Any) -> Any:
            before = list(self._reader.queue("decode.transfer"))
            result = original(*args, **kwargs)
            if site.on and before:
                try:
                    kept = set(map(id, self._reader.queue("decode.transfer")))
                    for entry in before:
                        if id(entry) not in kept:
                            action = Action.ABORTED if entry.req.is_aborted else Action.COMMITTED
                            slot = entry.metadata_buffer_index
                            self._event(
                                EventKind.DEQUEUE, queue=code, room=entry.req.bootstrap_room, slot=slot, a=action
                            )
                except Exception as error:
                    site.failed(error)
            return result

        return leaves

    def _states(self, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        status = manager_of(self._scheduler).request_status

        def updates(bootstrap_room: int, value: Any) -> Any:
            before = status.get(bootstrap_room)
            result = original(bootstrap_room, value)
            if site.on:
                try:
                    now = status.get(bootstrap_room)
                    if now is not None and now != before:
                        self._event(EventKind.STATE, room=bootstrap_room, a=int(now))
                except Exception as error:
                    site.failed(error)
            return result

        return updates

    def _aborted(self, _result: Any, rid: str) -> None:
        self._event(EventKind.ABORT, text=rid)

    def _registered(self, _result: Any, sender: Any) -> None:
        self._event(EventKind.DP_REGISTER, room=sender.bootstrap_room, a=sender.kv_mgr.kv_args.dp_rank)

    def _queries(self, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        answers = self._answers

        def queries(bootstrap_addr: str, bootstrap_rooms: list[int]) -> Any:
            result = original(bootstrap_addr, bootstrap_rooms)
            if site.on:
                try:
                    if len(answers) > _MAX_ANSWERS:
                        answers.clear()
                    for room in bootstrap_rooms:  # asked every turn while unknown: only what is new is an event
                        if room not in answers:
                            self._event(EventKind.DP_QUERY, room=room, text=bootstrap_addr)
                        answer = int(result.get(str(room), -1))
                        if answers.get(room) != answer:
                            answers[room] = answer
                            self._event(EventKind.DP_ANSWER, room=room, a=answer)
                except Exception as error:
                    site.failed(error)
            return result

        return queries
