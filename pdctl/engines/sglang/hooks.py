"""The hooks in an SGLang rank's scheduler: rounds of the four polled queues, commits, and events of single requests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pdctl.agent.tap import QueueTap
from pdctl.engines.base import Hooks, Maker, before
from pdctl.engines.landing import Landings
from pdctl.engines.polls import PollHooks
from pdctl.engines.reductions import ByRoom
from pdctl.engines.sglang import events, reductions, seams
from pdctl.engines.sglang.queues import QueueReader
from pdctl.engines.shared import LEAVES, failure
from pdctl.protocol.model import SPARE_QUEUES, EventKind, Seam
from pdctl.protocol.notes import EVERY_REQUEST

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder
    from pdctl.engines.sites import PollSites


class SchedulerHooks:
    """Installs the hooks that write to the recording. Afterwards ``seams`` lists the seams, found or not.

    before: the hooks of the role that this rank had before.
    """

    def __init__(
        self,
        scheduler: Any,
        hooks: Hooks,
        reader: QueueReader,
        recorder: Recorder,
        landings: Landings,
        group_number: Callable[[Any], int],
        sites: PollSites | None = None,
        before: SchedulerHooks | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._hooks = hooks
        self._reader = reader
        self._recorder = recorder
        self._landings = landings
        self._polls = PollHooks(hooks, group_number, sites)
        self.taps: dict[str, QueueTap] = {}
        # What was recorded in an earlier role goes on: a recording has few streams, and each is one queue's.
        self._streams: Iterator[int] = itertools.count() if before is None else before._streams
        self._earlier: dict[str, QueueTap] = {} if before is None else {**before._earlier, **before.taps}
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
        found = reductions.callers(role)  # before any of them is hooked
        self._poll_methods(role, owners)
        self._poll_functions()
        self._reductions(found)
        if role == "decode":
            self._gate()
            self._commit(owners["DecodeTransferQueue"])
            self._entering("decode.prealloc", owners["DecodePreallocQueue"], "add", "queue")
            self._entering("decode.pending", owners["DecodePreallocQueue"], "add", "pending_reqs")
            self._entering("decode.transfer", owners["DecodeTransferQueue"], "extend", "queue")
        elif role == "prefill":
            self._entering("prefill.bootstrap", owners["PrefillBootstrapQueue"], "add", "queue")
        self._states()
        if role == "decode":
            self._checksums(owners["Scheduler"])
        self._aborts(owners["Scheduler"])
        self._routing(role)

    def _say(self, name: str, present: bool, detail: str) -> None:
        self.seams.append(Seam(name, present, detail))

    def _hook(self, owner: Any, method: str, name: str, detail: str, make: Maker, site: str = "") -> None:
        """Hook a method of ``owner``, which may be None, and say whether it is there. site: ``name`` where not given."""
        self._say(name, self._hooks.wrap(owner, method, site or name, make), detail)

    # ---- rounds ------------------------------------------------------------------------------------------------------

    def _tap(self, queue: str) -> QueueTap:
        if queue not in self.taps:
            self.taps[queue] = self._earlier.get(queue) or QueueTap(
                queue, self._reader, self._recorder, self._next_stream, LEAVES[queue], self._polls.room_failed
            )
            self.taps[queue].reads(self._reader)
        return self.taps[queue]

    def _next_stream(self) -> int:
        return next(self._streams)

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

    def _reductions(self, found: list[reductions.Caller]) -> None:
        """Hook what reduces besides: each function has a name of its own, under which its rounds are recorded."""
        named, left = reductions.name(found)
        torches = {one.caller.module: self._polls.torch_of(one.caller.module) for one in named if one.caller.direct}
        for one in named:
            tap = self._earlier.get(one.queue) or QueueTap(one.queue, ByRoom(), self._recorder, self._next_stream, ())
            self.taps[one.queue] = tap
            there = self._polls.reductions.caller(
                one.caller.owner, one.caller.name, f"rounds.{one.queue}", tap, one.entries, steady=one.steady,
                module=one.caller.module, torch=torches.get(one.caller.module) if one.caller.direct else None,
            )  # fmt: skip
            self._say(f"rounds.{one.queue}", there, one.caller.title)
            if one.queue in SPARE_QUEUES:
                self._recorder.event(EventKind.NOTE, text=f"{one.queue} is {one.caller.title}")
        if left:
            self._say("rounds.others", False, f"not recorded: {', '.join(left)}")

    def _gate(self) -> None:
        utils = seams.module(seams.UTILS)
        there = utils is not None and self._polls.gate_function(utils, seams.GATE, events.held(self._landings))
        self._say(
            "gate", there, f"disaggregation/utils.py {seams.GATE}" if there else f"no {seams.GATE}: no metadata gate"
        )

    def _commit(self, owner: Any) -> None:
        def aborted(req: Any) -> bool:
            return type(req.finished_reason).__name__ == "FINISH_ABORT"

        make = events.commits(self._reader, self._landings, self._tap("decode.transfer"), aborted)
        self._hook(owner, "_commit_transfer_to_req", "commit", "DecodeTransferQueue._commit_transfer_to_req", make)

    # ---- events ------------------------------------------------------------------------------------------------------

    def _entering(self, queue: str, owner: Any, method: str, attribute: str) -> None:
        make = events.entering(queue, attribute, self._reader, self._recorder.event)
        self._hook(owner, method, f"events.{queue}", method, make)

    def _states(self) -> None:
        event = self._recorder.event
        owner = seams.common("CommonKVManager")
        self._hook(owner, "update_status", "events.state", "CommonKVManager.update_status", events.states(event))
        self._hook(owner, "record_failure", "events.failure", "CommonKVManager.record_failure", failure(event))

    def _checksums(self, owner: Any) -> None:
        """Record each request whose KV is not what prefill sent, where the engine compares checksums (since 0.5.23)."""
        event = self._recorder.event

        def drops(_: object, req: Any, msg: str, *__: Any, **___: Any) -> None:
            event(EventKind.FAILURE, room=seams.room_of(req), text=str(msg))

        method = "_handle_kv_checksum_mismatch"
        self._hook(owner, method, "events.checksum", f"Scheduler.{method}", before(drops))

    def _aborts(self, owner: Any) -> None:
        event = self._recorder.event

        def aborts(_: object, recv_req: Any, *__: Any, **___: Any) -> None:
            every = getattr(recv_req, "abort_all", False)
            event(EventKind.ABORT, text=EVERY_REQUEST if every else str(recv_req.rid))

        self._hook(owner, "abort_request", "events.abort", "Scheduler.abort_request", before(aborts))

    def _routing(self, role: str) -> None:
        event, site = self._recorder.event, "events.routing"
        for name, kind, method, make in (
            ("events.register", "CommonKVSender", "_register_prefill_dp_rank", events.registers(event)),
            ("events.query", "CommonKVReceiver", "query_prefill_dp_ranks", events.queries(event)),
        ):
            self._hook(seams.common(kind), method, name, f"{kind}.{method}", make, site)
        if role == "decode":
            manager, method = "CommonKVManager", "try_ensure_parallel_info"
            self._hook(seams.common(manager), method, "events.lookup", f"{manager}.{method}", events.lookups(event))
