"""The hooks in an SGLang rank's scheduler: rounds of the four polled queues, commits, and events of single requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pdctl.agent.tap import QueueTap
from pdctl.engines.base import Hooks, Site
from pdctl.engines.landing import Landings
from pdctl.engines.polls import PollHooks
from pdctl.engines.sglang import seams
from pdctl.engines.sglang.queues import QueueReader
from pdctl.engines.shared import LEAVES, failure
from pdctl.protocol.model import QUEUES, Action, EventKind, Seam

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder
    from pdctl.engines.sites import PollSites

_MAX_ANSWERS = 4096


class SchedulerHooks:
    """Installs the hooks that write to the recording. Afterwards ``seams`` lists the seams, found or not."""

    def __init__(
        self,
        scheduler: Any,
        hooks: Hooks,
        reader: QueueReader,
        recorder: Recorder,
        landings: Landings,
        group_number: Callable[[Any], int],
        sites: PollSites | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._hooks = hooks
        self._reader = reader
        self._recorder = recorder
        self._landings = landings
        self._polls = PollHooks(hooks, group_number, sites)
        self._streams = 0
        self.taps: dict[str, QueueTap] = {}
        self.seams: list[Seam] = []

    def install(self, role: str) -> None:
        """Install the hooks for the rank's role."""
        decode, prefill = seams.module(seams.DECODE), seams.module(seams.PREFILL)
        owners: dict[str, Any] = {"Scheduler": type(self._scheduler)}
        for name, home in (
            ("DecodeTransferQueue", decode),
            ("DecodePreallocQueue", decode),
            ("PrefillBootstrapQueue", prefill),
        ):
            owners[name] = getattr(home, name, None)
        self._poll_methods(role, owners)
        self._poll_functions()
        if role == "decode":
            self._gate()
            self._commit(owners["DecodeTransferQueue"])
            self._entering("decode.prealloc", owners["DecodePreallocQueue"], "add", "queue")
            self._entering("decode.pending", owners["DecodePreallocQueue"], "add", "pending_reqs")
            self._entering("decode.transfer", owners["DecodeTransferQueue"], "extend", "queue")
        elif role == "prefill":
            self._entering("prefill.bootstrap", owners["PrefillBootstrapQueue"], "add", "queue")
        self._states()
        self._aborts(owners["Scheduler"])
        self._routing()

    def _say(self, name: str, present: bool, detail: str) -> None:
        self.seams.append(Seam(name, present, detail))

    # ---- rounds ------------------------------------------------------------------------------------------------------

    def _tap(self, queue: str) -> QueueTap:
        if queue not in self.taps:
            self.taps[queue] = QueueTap(
                queue, self._reader, self._recorder, self._next_stream, LEAVES[queue], self._polls.room_failed
            )
        return self.taps[queue]

    def _next_stream(self) -> int:
        self._streams += 1
        return self._streams - 1

    def _queue_of(self, name: str) -> Callable[[Any], list[Any]]:
        """Return a function from the object with the poll method to the polled list."""
        here: Callable[[Any], list[Any]] = seams.own_list(name)
        # With priorities the engine sorts the list in place between the poll and the removal.
        sorts = name == "decode.prealloc" and getattr(self._scheduler, "enable_priority_scheduling", False)
        return (lambda owner: list(here(owner))) if sorts else here

    def _poll_methods(self, role: str, owners: dict[str, Any]) -> None:
        for spec in seams.POLL_METHODS:
            owner = owners.get(spec.owner)
            if owner is None or not hasattr(owner, spec.method):
                if spec.queue.startswith(role) and spec.queue not in self.taps:
                    self._say(f"rounds.{spec.queue}", False, f"no {spec.owner}.{spec.method}")
                continue
            if spec.picks:
                self._polls.picking_method(owner, spec.method, f"rounds.{spec.method}", self._picked)
                continue
            if not spec.queue.startswith(role):
                continue
            known, name = spec.queue in self.taps, spec.queue
            tap = self._tap(name)
            site = f"rounds.{name}"
            self._polls.poll_method(owner, spec.method, site, tap, self._queue_of(name), leaves=not spec.leave)
            if spec.leave:
                self._polls.leave_method(owner, spec.leave, site, tap, seams.own_list(name))
            if not known:
                self._say(site, True, f"{spec.owner}.{spec.method}")

    def _picked(self, _scheduler: Any, queue: Any, *_: Any, **__: Any) -> tuple[QueueTap | None, list[Any]]:
        for name in LEAVES:
            try:
                if self._reader.queue(name) is queue:
                    return self._tap(name), queue
            except KeyError:
                continue
        return None, queue

    def _poll_functions(self) -> None:
        found = []
        for name, (pollers_of, group_of) in seams.POLL_FUNCTIONS.items():
            for owner, attribute in list(seams.importers(name)):
                if self._polls.poll_function(owner, attribute, pollers_of, group_of) and attribute not in found:
                    found.append(attribute)
        self._say("poll", bool(found), ", ".join(found) or "no poll function in disaggregation/utils.py")
        utils = seams.module(seams.UTILS)
        there = utils is not None and self._polls.collective(utils)
        self._say("collective", there, "disaggregation/utils.py dist.all_reduce")

    def _gate(self) -> None:
        utils = seams.module(seams.UTILS)
        there = utils is not None and self._polls.gate_function(utils, seams.GATE, self._held)
        self._say(
            "gate", there, f"disaggregation/utils.py {seams.GATE}" if there else f"no {seams.GATE}: no metadata gate"
        )

    def _held(self, before: list[int], after: list[int], entries: Any) -> None:
        for index, entry in enumerate(entries):
            if before[index] != after[index]:
                self._landings.expect(seams.slot_of(entry), seams.room_of(entry.req))

    def _commit(self, owner: Any) -> None:
        reader, landings, tap = self._reader, self._landings, self._tap("decode.transfer")

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def commits(self_: Any, decode_req: Any, *args: Any, **kwargs: Any) -> Any:
                if not site.on:
                    return original(self_, decode_req, *args, **kwargs)
                slot, found = -1, None
                try:
                    slot = seams.slot_of(decode_req)
                    found = reader.room_in(slot)
                except Exception as error:
                    site.failed(error)
                result = original(self_, decode_req, *args, **kwargs)
                try:
                    # Up to 0.5.12.post1 False means: the slot read 0, the request stays.
                    if result is False:
                        tap.decided(decode_req, Action.KEPT, 0)
                        landings.expect(slot, seams.room_of(decode_req.req))
                        return result
                    if not found:
                        found = reader.room_in(slot)  # it landed between the two looks
                    aborted = type(decode_req.req.finished_reason).__name__ == "FINISH_ABORT"
                    tap.decided(decode_req, Action.ABORTED if aborted else Action.COMMITTED, found)
                    landings.seen(slot, found or 0)
                except Exception as error:
                    site.failed(error)
                return result

            return commits

        there = owner is not None and self._hooks.wrap(owner, "_commit_transfer_to_req", "commit", make)
        self._say("commit", there, "DecodeTransferQueue._commit_transfer_to_req")

    # ---- events ------------------------------------------------------------------------------------------------------

    def _entering(self, queue: str, owner: Any, method: str, attribute: str) -> None:
        code, event, describe = QUEUES.index(queue), self._recorder.event, self._reader.describe

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def enters(self_: Any, *args: Any, **kwargs: Any) -> Any:
                before = len(getattr(self_, attribute, ()))
                result = original(self_, *args, **kwargs)
                if site.on:
                    try:
                        for entry in getattr(self_, attribute)[before:]:
                            room, slot = describe(entry)
                            event(
                                EventKind.ENQUEUE,
                                queue=code,
                                room=room,
                                slot=slot,
                                text=getattr(entry, "req", entry).rid,
                            )
                    except Exception as error:
                        site.failed(error)
                return result

            return enters

        there = owner is not None and self._hooks.wrap(owner, method, f"events.{queue}", make)
        self._say(f"events.{queue}", there, method)

    def _states(self) -> None:
        event = self._recorder.event

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def updates(self_: Any, bootstrap_room: int, status: Any, *args: Any, **kwargs: Any) -> Any:
                before = self_.request_status.get(bootstrap_room)
                result = original(self_, bootstrap_room, status, *args, **kwargs)
                if site.on:
                    try:
                        after = self_.request_status.get(bootstrap_room)
                        if after is not None and after != before:
                            event(EventKind.STATE, room=bootstrap_room, a=int(after))
                    except Exception as error:
                        site.failed(error)
                return result

            return updates

        owner = getattr(seams.module(seams.COMMON), "CommonKVManager", None)
        there = owner is not None and self._hooks.wrap(owner, "update_status", "events.state", make)
        self._say("events.state", there, "CommonKVManager.update_status")
        there = owner is not None and self._hooks.wrap(owner, "record_failure", "events.failure", failure(event))
        self._say("events.failure", there, "CommonKVManager.record_failure")

    def _aborts(self, owner: Any) -> None:
        event = self._recorder.event

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def aborts(self_: Any, recv_req: Any, *args: Any, **kwargs: Any) -> Any:
                if site.on:
                    try:
                        every = getattr(recv_req, "abort_all", False)
                        event(EventKind.ABORT, text="all requests" if every else str(recv_req.rid))
                    except Exception as error:
                        site.failed(error)
                return original(self_, recv_req, *args, **kwargs)

            return aborts

        self._say(
            "events.abort", self._hooks.wrap(owner, "abort_request", "events.abort", make), "Scheduler.abort_request"
        )

    def _routing(self) -> None:
        event = self._recorder.event
        answers: dict[int, int] = {}

        def make_register(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def registers(self_: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(self_, *args, **kwargs)
                if site.on:
                    try:
                        event(EventKind.DP_REGISTER, room=self_.bootstrap_room, a=int(self_.kv_mgr.attn_dp_rank))
                    except Exception as error:
                        site.failed(error)
                return result

            return registers

        def make_query(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def queries(bootstrap_addr: str, bootstrap_rooms: list[int], *args: Any, **kwargs: Any) -> Any:
                result = original(bootstrap_addr, bootstrap_rooms, *args, **kwargs)
                if site.on:
                    try:
                        if len(answers) > _MAX_ANSWERS:
                            answers.clear()
                        for room in bootstrap_rooms:  # asked every turn while unknown: only what is new is an event
                            if room not in answers:
                                event(EventKind.DP_QUERY, room=room, text=str(bootstrap_addr))
                            answer = int(result.get(str(room), -1))
                            if answers.get(room) != answer:
                                answers[room] = answer
                                event(EventKind.DP_ANSWER, room=room, a=answer)
                    except Exception as error:
                        site.failed(error)
                return result

            return queries

        common = seams.module(seams.COMMON)
        sender, receiver = getattr(common, "CommonKVSender", None), getattr(common, "CommonKVReceiver", None)
        there = sender is not None and self._hooks.wrap(
            sender, "_register_prefill_dp_rank", "events.routing", make_register
        )
        self._say("events.register", there, "CommonKVSender._register_prefill_dp_rank")
        there = receiver is not None and self._hooks.wrap(
            receiver, "query_prefill_dp_ranks", "events.routing", make_query
        )
        self._say("events.query", there, "CommonKVReceiver.query_prefill_dp_ranks")
