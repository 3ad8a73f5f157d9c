"""The agent's adapter for one SGLang scheduler process: identity, queues, rounds, fault sites."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pdctl.agent.tap import QueueTap
from pdctl.engines import peers
from pdctl.engines import request_tables as room_reader
from pdctl.engines.base import MAX_ERRORS, Hooks, Site
from pdctl.engines.landing import Landings
from pdctl.engines.metadata_rows import MetadataReader, holders
from pdctl.engines.sglang import faults as fault_sites
from pdctl.engines.sglang import metadata_rows, request_tables, revert, routing, seams, steps
from pdctl.engines.sglang.backends import backend_of
from pdctl.engines.sglang.hooks import SchedulerHooks
from pdctl.engines.sglang.identity import identify
from pdctl.engines.sglang.queues import QueueReader
from pdctl.engines.shared import ending
from pdctl.engines.sites import PollSites
from pdctl.engines.slots import SlotWatch
from pdctl.engines.threads import ServiceThreads
from pdctl.faults.table import FaultTable
from pdctl.protocol.metadata import Metadata, Wanted
from pdctl.protocol.model import EventKind, Frame, Identity, QueueEntry, Seam, ServiceThread, SlotEntry
from pdctl.protocol.notes import ROLE_CHANGED
from pdctl.protocol.requests import Rooms, Settings

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder


class SGLangAdapter:
    """Reads and hooks the rank whose constructed ``sglang.srt.managers.scheduler.Scheduler`` it is given."""

    def __init__(self, scheduler: Any) -> None:
        self.hooks = Hooks()
        self._scheduler = scheduler
        self._installed: SchedulerHooks | None = None
        self._ticks = 0
        self._tick_ns = 0
        self._look()

    def _look(self) -> None:
        """Find out who the rank is, and where its role keeps what is read."""
        scheduler = self._scheduler
        self._mode = getattr(scheduler, "disaggregation_mode", None)
        self._identity, self._groups = identify(scheduler)
        self._reader = QueueReader(scheduler, self._identity.role)
        self._landings: Landings | None = None
        self._threads: ServiceThreads | None = None
        self._more_seams: list[Seam] = seams.zeroes_slots() if self._identity.role == "decode" else []
        if self._identity.role != seams.UNIFIED:
            self._more_seams += routing.routing_seams(self._identity.role)
        self._facts = metadata_rows.facts(scheduler, self._identity.role, self._identity.lacks)
        self._taken: dict[int, int] = {}
        self._rows = MetadataReader(lambda: metadata_rows.buffers(scheduler, self._facts, self._taken))

    def identity(self) -> Identity:
        """Return who this rank is. Another object once the engine has given it another role."""
        return self._identity

    def install(self, recorder: Recorder, faults: FaultTable) -> None:
        """Install the hooks. A rank without disaggregation gets only the pulse of its loop."""
        self._loop(recorder, faults)
        if self._identity.role == seams.UNIFIED:
            return
        role = self._identity.role
        if role == "decode":
            self._more_seams += revert.revert(self.hooks)  # first: what is recorded is the engine without it
            self._more_seams += fault_sites.install_query(self.hooks, faults)
        self._landings = Landings(self._reader, recorder)
        polls = PollSites(faults) if faults.armed else None
        self._installed = SchedulerHooks(
            self._scheduler,
            self.hooks,
            self._reader,
            recorder,
            self._landings,
            self._groups.number,
            polls,
            self._installed,
        )
        self._installed.install(role)
        backend = backend_of(self._scheduler)
        self._more_seams += backend.install(self.hooks, recorder, faults, role)
        self._more_seams += fault_sites.install(self.hooks, role, backend, faults)
        self._more_seams += fault_sites.install_entry(self.hooks, role, self._scheduler, self._reader.queue, faults)
        self._slots(recorder)
        self._threads = ServiceThreads(lambda: seams.kv_manager(self._scheduler), recorder.event, backend.owed(role))
        there = self._threads.install(self.hooks)
        self._more_seams.append(Seam("threads", there, f"of {type(backend.manager).__name__}"))
        self._rows.prepare()

    def _slots(self, recorder: Recorder) -> None:
        allocator = getattr(self._scheduler, "req_to_metadata_buffer_idx_allocator", None)
        watch = SlotWatch(recorder, self._reader.owners)
        there = allocator is not None and watch.install(self.hooks, allocator)
        self._taken = watch.taken
        self._more_seams.append(Seam("events.slots", there, "ReqToMetadataIdxAllocator.alloc, free"))

    def _switched(self, recorder: Recorder, faults: FaultTable, site: Site) -> None:
        """Follow the rank to its new role: its queues, buffers and managers are others, and so are the hooks.

        Runs on the scheduler's thread at the end of the turn in which the engine made them; it is idle then.
        """
        before = self._identity.role
        try:
            faults.heal(why=f"{ROLE_CHANGED} from {before}")
            self.hooks.remove_all()
            self._look()
            self.install(recorder, faults)
            recorder.event(EventKind.NOTE, text=f"{ROLE_CHANGED}: {before} to {self._identity.role}")
        except Exception:  # it was not understood: the engine goes on, without hooks
            self.hooks.remove_all()
            for _ in range(MAX_ERRORS):
                site.failed()

    def _loop(self, recorder: Recorder, faults: FaultTable) -> None:
        mode = self._mode

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            # Two stores, and a look at an attribute that was there: none of them can fail.
            pulse, clock = recorder.pulse, time.monotonic_ns

            def process_input_requests(self_: Any, *args: Any, **kwargs: Any) -> Any:
                self._ticks += 1
                self._tick_ns = now = clock()
                pulse(self._ticks, now)
                result = original(self_, *args, **kwargs)
                if mode is not None and self_ is self._scheduler and self_.disaggregation_mode is not mode:
                    self._switched(recorder, faults, site)
                return result

            return process_input_requests

        there = self.hooks.wrap(type(self._scheduler), "process_input_requests", "tick", make)
        self._more_seams.append(Seam("tick", there, "Scheduler.process_input_requests"))
        there = self.hooks.wrap(seams.module(seams.SCHEDULER), seams.ENDING, "ending", ending(recorder.event))
        self._more_seams.append(Seam("events.ending", there, seams.ENDING))

    def seams(self) -> tuple[Seam, ...]:
        """Return what was looked for in this rank's code, and whether it is there."""
        groups = ", ".join(f"{info.kind} {info.size}" for info in self._identity.groups)
        found = [Seam("groups", bool(groups), groups or "no process group on the scheduler"), *self._reader.seams()]
        if self._installed is not None:
            found += self._installed.seams
        return tuple(found + self._more_seams)

    def _taps(self) -> dict[str, QueueTap]:
        return {} if self._installed is None else self._installed.taps

    def ticks(self) -> tuple[int, int]:
        """Return (turns of the scheduler so far, monotonic ns of the last)."""
        return self._ticks, self._tick_ns

    def ordinals(self) -> dict[str, int]:
        """Return ``queue/group kind`` → ordinal of the last round entered."""
        infos = self._groups.infos
        return {
            f"{name}/{infos[number].kind}": ordinal
            for name, tap in list(self._taps().items())
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
        where = request_tables.places(self._scheduler, self._identity.role, self._reader)
        return room_reader.read(where, *self._reader.read(), self._ticks)

    def metadata(self, wanted: Wanted) -> Metadata:
        """Return the metadata slots asked for, and every request of this rank."""
        held = holders(self._reader.read()[0], metadata_rows.elsewhere(self._scheduler))
        return self._rows.read(wanted, held, self._ticks)

    def settings(self) -> Settings:
        """Return the settings that both sides must agree on, and the engine's environment variables that are set."""
        return request_tables.settings(self._scheduler)

    def threads(self) -> tuple[ServiceThread, ...]:
        """Return the threads that the engine runs beside its scheduler for transfers."""
        return () if self._threads is None else self._threads.state()

    def step_of(self, stack: tuple[Frame, ...]) -> str:
        """Return the engine's step the stack is in, "" when it can't be told."""
        return steps.step_of(stack)

    def group_kind(self, group: Any) -> str:
        """Return GroupInfo.kind of a torch process group of this rank, "" for an unknown one."""
        return self._groups.kind(group)

    def poll_awaited(self) -> bool:
        """Look for metadata that came late, and for threads that have ended; returns whether metadata is still awaited."""
        if self._threads is not None:
            self._threads.look()
        return self._landings is not None and self._landings.look()

    def transfer_address(self) -> str:
        """Return the name under which a prefill's transfers know this rank (session id, name of the agent), "" unknown."""
        if self._identity.role != "decode":
            return ""
        manager = seams.kv_manager(self._scheduler)
        get = getattr(manager, "get_session_id", None)
        return str(get()) if get is not None else peers.session(manager)
