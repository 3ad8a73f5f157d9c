"""One rank of the embedded cluster as the agent uses it. Hooks the same seams as in SGLang, under the same names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pdctl.agent.tap import QueueTap
from pdctl.engines import request_tables as room_reader
from pdctl.engines import sites, stages
from pdctl.engines.base import Hooks, Site
from pdctl.engines.lab import metadata_rows, request_tables
from pdctl.engines.lab.events import Events
from pdctl.engines.lab.identity import KINDS, identify
from pdctl.engines.lab.late import install as install_metadata_site
from pdctl.engines.lab.reader import QueueReader
from pdctl.engines.landing import Landings
from pdctl.engines.metadata_rows import MetadataReader, holders
from pdctl.engines.polls import PollHooks
from pdctl.engines.sglang import events as engine_events
from pdctl.engines.sglang import steps
from pdctl.engines.sglang.backends.nixl import DEADLY
from pdctl.engines.sglang.seams import kv_manager
from pdctl.engines.shared import LEAVES, ending
from pdctl.engines.sites import PollSites
from pdctl.engines.threads import BOOTSTRAP, ServiceThreads
from pdctl.faults.kinds import ABORT
from pdctl.faults.table import FaultTable
from pdctl.protocol.metadata import Metadata, Wanted
from pdctl.protocol.model import Frame, Identity, QueueEntry, Seam, ServiceThread, SlotEntry
from pdctl.protocol.requests import Rooms, Settings

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder

_ENGINE = "pdctl.lab.engine."
_STEPS = {
    **steps.STEPS,
    "_pp_decode_rids": "poll for the next pipeline stage",
    "_pp_consensus": "agreement of the pipeline stages",
    "_pp_pass_on": "agreement of the pipeline stages",
    "_pp_recv_requests": "recv_requests",
    "get_new_batch_prefill": "scheduling",
}
"""Names of the lab's own functions beside those that it has from SGLang."""


def _answered(original: Callable[[str], bool], site: Site, beats: stages.Heartbeats) -> Callable[[str], bool]:
    def is_answered(address: str) -> bool:
        if beats.table.any and site.on:
            with site:
                if beats.silent(address):
                    return False
        return original(address)

    return is_answered


def _module(name: str) -> Any:
    return sys.modules[_ENGINE + name]


class LabAdapter:
    """Reads and hooks the rank that ``scheduler`` (a constructed ``pdctl.lab.engine.scheduler.Scheduler``) runs in."""

    def __init__(self, scheduler: Any) -> None:
        self.hooks = Hooks()
        self._scheduler = scheduler
        self._identity, self._groups = identify(scheduler)
        self._reader = QueueReader(scheduler)
        self._taps: dict[str, QueueTap] = {}
        self._landings: Landings | None = None
        self._threads: ServiceThreads | None = None
        self._streams = 0
        self._seams: list[Seam] = []
        self._taken: dict[int, int] = {}
        self._rows = MetadataReader(lambda: metadata_rows.buffers(scheduler, self._taken))

    def identity(self) -> Identity:
        """Return who this rank is."""
        return self._identity

    def install(self, recorder: Recorder, faults: FaultTable) -> None:
        """Put the hooks in: rounds, decisions, events, and on prefill the site of the metadata fault."""
        scheduler = self._scheduler
        polls = PollHooks(self.hooks, self._number, PollSites(faults) if faults.armed else None)
        polled = "poll_and_all_reduce and the methods that call it"
        self._seams += sites.seams([kind for kind in sites.POLL_KINDS if kind != ABORT], True, polled)
        takes = scheduler.config.has("aborts")
        self._seams += sites.seams([ABORT], takes, polled if takes else f"left out: aborts. {DEADLY}")
        if scheduler.role == "prefill":
            bootstrap = scheduler.disagg_prefill_bootstrap_queue
            self._polled(polls, recorder, "prefill.bootstrap", bootstrap, "pop_bootstrapped")
            self._polled(polls, recorder, "prefill.inflight", scheduler, "process_disagg_prefill_inflight_queue")
            self._seams += install_metadata_site(self.hooks, scheduler, recorder, faults)
        else:
            self._landings = Landings(self._reader, recorder)
            prealloc, transfer = scheduler.disagg_decode_prealloc_queue, scheduler.disagg_decode_transfer_queue
            self._polled(polls, recorder, "decode.prealloc", prealloc, "_update_handshake_waiters", "pop_preallocated")
            self._polled(polls, recorder, "decode.transfer", transfer, "pop_transferred")
            polls.gate_function(_module("utils"), "_apply_metadata_gate", engine_events.held(self._landings))
            tap = self._taps["decode.transfer"]
            commits = engine_events.commits(self._reader, self._landings, tap, lambda req: bool(req.is_aborted))
            self.hooks.wrap(type(transfer), "_commit_transfer_to_req", "commit", commits)
            self._seams.append(Seam("gate", transfer.gate, "_apply_metadata_gate" if transfer.gate else "left out"))
            self._seams.append(Seam("slots.zeroed", transfer.zero_on_free, "pop_transferred zeroes freed slots"))
            self._seams.append(Seam("commit", True, "DecodeTransferQueue._commit_transfer_to_req"))
        if scheduler.groups.pp_size > 1:
            polls.picking_method(type(scheduler), "get_rids", "rounds.get_rids", self._picked)
        for name in ("poll_and_all_reduce", "poll_and_all_reduce_attn_cp_tp_group"):
            group_at = 2 if name.endswith("group") else 1
            for module in (
                _module("utils"),
                _module("decode"),
                _module("prealloc"),
                _module("prefill"),
                _module("pipeline"),
            ):
                polls.poll_function(
                    module, name, lambda pollers, *_: list(pollers), lambda *args, at=group_at: args[at]
                )
        polls.collective(_module("utils"))
        events = Events(scheduler, self.hooks, self._reader, recorder)
        self._seams += [Seam(name, True, "lab") for name in events.install()]  # last: around the hooks of the rounds
        self._taken = events.taken
        self.hooks.wrap(sys, "excepthook", "ending", ending(recorder.event))
        owed = BOOTSTRAP if scheduler.role == "prefill" else ""
        self._threads = ServiceThreads(lambda: kv_manager(scheduler), recorder.event, owed)
        self._seams.append(
            Seam("threads", self._threads.install(self.hooks), f"of {type(kv_manager(scheduler)).__name__}")
        )
        self._rows.prepare()
        self._routing(events, faults)
        self._stage(faults)
        self._seams.append(Seam("poll", True, "poll_and_all_reduce, poll_and_all_reduce_attn_cp_tp_group"))

    def _routing(self, events: Events, faults: FaultTable) -> None:
        """Hook registration and query of dp ranks: the events show what is registered, and what this rank is told."""
        sender, receiver = _module("sender").KVSender, _module("receiver").KVReceiver
        prefill = self._scheduler.role == "prefill"
        if faults.armed and not prefill:
            self.hooks.wrap(receiver, "query_prefill_dp_ranks", "query", sites.query(faults))
        events.routing(sender, receiver)
        if faults.armed and prefill:
            self.hooks.wrap(sender, "_register_prefill_dp_rank", "registration", sites.registration(faults))
        kinds = sites.REGISTRATION_KINDS if prefill else sites.QUERY_KINDS
        where = "KVSender._register_prefill_dp_rank" if prefill else "KVReceiver.query_prefill_dp_ranks"
        self._seams += sites.seams(kinds, True, where)

    def _stage(self, faults: FaultTable) -> None:
        """Hook the way of new requests into this stage, and a decode rank's heartbeats."""
        scheduler, role = self._scheduler, self._scheduler.role
        prefill = role == "prefill"
        owner = scheduler.disagg_prefill_bootstrap_queue if prefill else scheduler.disagg_decode_prealloc_queue
        if faults.armed:
            self.hooks.wrap(owner, "add", "entry", stages.entry(faults, lambda: stages.rooms(role, self._reader.queue)))
        self._seams += sites.seams(stages.ENTRY_KINDS, True, f"{type(owner).__name__}.add")
        if prefill:
            return
        if faults.armed:
            beats, manager = stages.Heartbeats(faults), kv_manager(scheduler)
            self.hooks.wrap(manager, "is_answered", "heartbeat", lambda f, site: _answered(f, site, beats))
        self._seams += sites.seams(stages.HEARTBEAT_KINDS, True, "DecodeKVManager.is_answered")

    def _number(self, group: Any) -> int:
        number = self._groups[id(group)]
        info = self._identity.groups[number]
        return number if info.size > 1 or info.kind == "attn-tp" else -1  # with itself alone nobody is out of step

    def _picked(self, _: Any, queue: list[Any], *__: Any) -> tuple[QueueTap | None, list[Any]]:
        """Return the tap of the queue that a pipeline stage polls for the others."""
        names = (name for name in self._taps if self._reader.queue(name) is queue)
        return next((self._taps[name] for name in names), None), queue

    def _next_stream(self) -> int:
        self._streams += 1
        return self._streams - 1

    def _polled(
        self, polls: PollHooks, recorder: Recorder, queue: str, owner: Any, method: str, leave: str = ""
    ) -> None:
        tap = self._taps[queue] = QueueTap(
            queue, self._reader, recorder, self._next_stream, LEAVES[queue], polls.room_failed
        )
        reader = self._reader
        cls = type(owner)
        site = f"rounds.{queue}"
        polls.poll_method(cls, method, site, tap, lambda _: reader.queue(queue), leaves=not leave)
        if leave:
            polls.leave_method(cls, leave, site, tap, lambda _: reader.queue(queue))
        self._seams.append(Seam(site, True, f"{cls.__name__}.{method}"))

    # ---- answers ----------------------------------------------------------------------------------------------------

    def seams(self) -> tuple[Seam, ...]:
        """Return what this rank's engine has: queues, rounds, fixes."""
        config = self._scheduler.config
        fixes = [Seam(f"fix.{name}", False, "left out with --without") for name in config.without]
        return (*self._reader.seams(), *self._seams, *request_tables.routing_seams(self._scheduler), *fixes)

    def ticks(self) -> tuple[int, int]:
        """Return (turns of the scheduler so far, monotonic ns of the last)."""
        return self._scheduler.ticks, self._scheduler.tick_mono_ns

    def ordinals(self) -> dict[str, int]:
        """Return ``queue/group kind`` → ordinal of the last round entered."""
        return {
            f"{name}/{KINDS[number]}": ordinal
            for name, tap in list(self._taps.items())
            for number, ordinal in tap.ordinals().items()
        }

    def queues(self) -> tuple[dict[str, list[QueueEntry]], dict[str, str]]:
        """Return the queues as they are now and why the others can't be read."""
        return self._reader.read()

    def slots(self) -> list[SlotEntry]:
        """Return the metadata slots that belong to a request now."""
        return self._reader.slots()

    def rooms(self) -> Rooms:
        """Return what the rank knows of its rooms beyond its queues."""
        return room_reader.read(
            request_tables.places(self._scheduler, self._reader), *self.queues(), self._scheduler.ticks
        )

    def metadata(self, wanted: Wanted) -> Metadata:
        """Return the metadata slots asked for, and every request of this rank."""
        return self._rows.read(wanted, holders(self._reader.read()[0]), self._scheduler.ticks)

    def settings(self) -> Settings:
        """Return the settings that both sides must agree on, under the engine's names."""
        return request_tables.settings(self._scheduler)

    def threads(self) -> tuple[ServiceThread, ...]:
        """Return the threads that the engine runs beside its scheduler for transfers."""
        return () if self._threads is None else self._threads.state()

    def step_of(self, stack: tuple[Frame, ...]) -> str:
        """Return the engine's step the stack is in, "" when it can't be told."""
        return steps.step_of(stack, _STEPS)

    def group_kind(self, group: Any) -> str:
        """Return GroupInfo.kind of a torch process group of this rank, "" for an unknown one."""
        number = self._groups.get(id(group))
        return "" if number is None else KINDS[number]

    def poll_awaited(self) -> bool:
        """Look for metadata that came late, and for threads that have ended; returns whether metadata is still awaited."""
        if self._threads is not None:
            self._threads.look()
        return self._landings is not None and self._landings.look()

    def transfer_address(self) -> str:
        """Return the session under which a prefill's transfers know this rank, "" on prefill."""
        return self._scheduler.transport.session_id if self._identity.role == "decode" else ""
