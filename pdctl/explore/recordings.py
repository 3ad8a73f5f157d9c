"""Writes a counterexample as recordings, one file a rank, through the recorder that ranks use.

The files look like recordings of ranks that went through this schedule and then hung, aborted or went on, within the model:
polls, gates, slots, decisions, and their events. Times are those of the writing, a few milliseconds a round: the model has
rounds, no time.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pdctl import __version__
from pdctl.agent.tap import QueueTap
from pdctl.explore.policies import Policy, Split
from pdctl.explore.rules import FOREIGN, OWN, Entry, Outcome, run
from pdctl.explore.space import Schedule
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import QUEUES, Action, EventKind, GroupInfo, Identity, KVPoll
from pdctl.recording import format as f
from pdctl.recording.writer import RecordingWriter

FORMER = 6001
"""Room of the former owner of the first request's slot; the others count on."""
_ROUND_S = 0.002
_AFTER = 3
"""Turns that ranks go on where nothing holds them."""


@dataclass(eq=False)
class _Request:
    number: int
    room: int
    slot: int
    poll: int = -1
    success_ns: int = 0
    poller: object = field(default_factory=object)


class _Rank:
    def __init__(self, policy: Policy, schedule: Schedule, number: int, folder: Path, world: str) -> None:
        self.policy, self.number = policy, number
        self.cells = schedule.cells[number]
        self.requests = [_Request(n, room, n) for n, room in enumerate(schedule.rooms)]
        self.slots = {n: FORMER + n if cell.flag else 0 for n, cell in enumerate(self.cells)}
        self.queue: list[_Request] = []
        identity = _identity(policy, schedule.ranks, number, world)
        path = folder / f"{identity.selector.replace(':', '-')}.pdrec"
        self.writer = RecordingWriter.create(path, msgspec.json.encode(identity), size=f.MIN_SIZE)
        streams = itertools.count()
        self.tap = QueueTap(policy.queue, self, self.writer, lambda: next(streams))
        self.event(EventKind.NOTE, text=f"a schedule of the explorer, policy {policy.name}")
        for n, cell in enumerate(self.cells):
            if policy.machine == "transfer" and cell.flag:
                for kind in (EventKind.SLOT_ALLOC, EventKind.SLOT_FREE):
                    self.event(kind, room=FORMER + n, slot=n)

    # How the tap reads a queue (pdctl.agent.sinks.QueueView).
    def describe(self, entry: _Request) -> tuple[int, int]:
        return entry.room, entry.slot if self.policy.machine == "transfer" else -1

    def found(self, slots: Sequence[int]) -> list[int]:
        return [self.slots[slot] for slot in slots]

    def event(self, kind: EventKind, queue: str = "", **what: int | str) -> None:
        self.writer.event(kind, queue=QUEUES.index(queue) if queue else f.NO_QUEUE, **what)  # type: ignore[arg-type]

    def enters(self, queue: str, request: _Request) -> None:
        slot = request.slot if queue == "decode.transfer" else -1
        if slot >= 0:
            self.event(EventKind.SLOT_ALLOC, room=request.room, slot=slot)
        self.event(EventKind.ENQUEUE, queue, room=request.room, slot=slot, text=f"request-{request.number}")

    def arrive(self, schedule: Schedule, now: int) -> None:
        """What happens before this rank's poll of round ``now``, as its part of the schedule says."""
        for request, cell, at in zip(self.requests, self.cells, schedule.arrivals, strict=True):
            late = self.policy.machine == "receiver" and not self.policy.early
            if at == now:
                if self.policy.machine == "receiver":
                    self.enters("decode.pending", request)
                    self.event(EventKind.DP_QUERY, room=request.room, text="bootstrap server")
                if not late:
                    self.enters(self.policy.queue, request)
            if late and now == max(at, cell.first):
                self.event(EventKind.DP_ANSWER, room=request.room, a=0)
                self.event(EventKind.DEQUEUE, "decode.pending", room=request.room, a=int(Action.MOVED))
                self.enters(self.policy.queue, request)
            elif late and at <= now < cell.first:
                self.event(EventKind.DP_ANSWER, room=request.room, a=-1)
            if self.policy.machine == "transfer" and now == cell.second:
                self.land(request)

    def land(self, request: _Request) -> None:
        held = self.slots[request.slot]
        self.slots[request.slot] = request.room
        if request.success_ns and held == 0:
            waited = time.monotonic_ns() - request.success_ns
            self.event(EventKind.LANDED, room=request.room, slot=request.slot, a=waited, b=request.room)

    def enter(self, entries: list[Entry]) -> None:
        """Poll: visit the queue and, unless it is empty, start the collective."""
        self.queue = [self.requests[entry.request] for entry in entries]
        self.tap.visit(self.queue)
        if not entries:
            return
        for request, entry in zip(self.queue, entries, strict=True):
            if request.poll != entry.local:
                request.poll = entry.local
                self.event(EventKind.STATE, self.policy.queue, room=request.room, a=entry.local)
                if entry.local == KVPoll.SUCCESS:
                    request.success_ns = time.monotonic_ns()
        self.tap.polled([request.poller for request in self.queue])
        if self.policy.gate != "none":
            self.tap.raw([entry.local for entry in entries])
        self.tap.entering(0, [entry.gated for entry in entries], 1)

    def apply(self, entries: list[Entry]) -> None:
        """Come back from the collective and act."""
        if not entries:
            return
        self.tap.left(0, [entry.reduced for entry in entries], 1)
        stays = []
        for request, entry in zip(self.queue, entries, strict=True):
            if entry.found is not None and entry.reduced == KVPoll.SUCCESS:
                found = {OWN: request.room, FOREIGN: FORMER + request.number}.get(entry.found, 0)
                self.tap.decided(request, int(entry.action), found)
            elif entry.action is Action.FAILED:
                self.tap.decided(request, int(entry.action), None)
            if entry.action is Action.KEPT:
                stays.append(request)
                continue
            self.event(EventKind.DEQUEUE, self.policy.queue, room=request.room, slot=request.slot, a=int(entry.action))
            if self.policy.machine == "transfer":
                self.event(EventKind.SLOT_FREE, room=request.room, slot=request.slot)
                self.slots[request.slot] = 0 if self.policy.zeroed else self.slots[request.slot]
        self.queue = stays
        self.tap.leave(stays)


def _identity(policy: Policy, ranks: int, number: int, world: str) -> Identity:
    stages = policy.machine == "pipeline"
    role = "prefill" if stages else "decode"
    kinds = [("attn-tp", (number,)), ("pp", tuple(range(ranks)))] if stages else [("attn-tp", tuple(range(ranks)))]
    return Identity(
        engine="model",
        engine_version=policy.name,
        pdctl_version=__version__,
        role=role,
        host="explorer",
        pid=os.getpid(),
        proc_start=number + 1,
        started_wall_ns=time.time_ns(),
        started_mono_ns=time.monotonic_ns(),
        instance=f"explored {policy.name}",
        service=f"explored {policy.name}",
        cluster="explorer",
        world=world,
        world_rank=number,
        tp=0 if stages else number,
        tp_size=1 if stages else ranks,
        pp=number if stages else 0,
        pp_size=ranks if stages else 1,
        lacks=("gate",) if policy.machine == "transfer" and policy.gate == "none" else (),
        groups=tuple(GroupInfo(kind, members, world) for kind, members in kinds),
    )


def write(policy: Policy, schedule: Schedule, folder: Path) -> Outcome:
    """Write the recordings of ``schedule``'s ranks into the new directory ``folder`` and return what they show.

    Raises PdctlError (USAGE) where that directory exists or can't be made, or there is no room in it.
    """
    world = f"explored {policy.name} {os.getpid()} {time.time_ns()}"
    try:
        folder.mkdir(mode=0o700, parents=True)
        ranks = [_Rank(policy, schedule, number, folder, world) for number in range(schedule.ranks)]
    except FileExistsError:
        raise PdctlError(f"{folder} exists", "Name a directory that does not exist yet.", Exit.USAGE) from None
    except OSError as error:
        raise PdctlError(
            f"{folder} can't be written: {error.strerror}", "Name another directory.", Exit.USAGE
        ) from None
    outcome = run(policy, schedule)
    for now, done in enumerate(outcome.rounds):
        hangs = bool({Split.LISTS, Split.SKIPPED} & done.splits.keys())
        for rank, entries in zip(ranks, done.lists, strict=True):
            rank.arrive(schedule, now)
            rank.enter(entries)
        time.sleep(_ROUND_S)
        if not hangs:
            for rank, entries in zip(ranks, done.lists, strict=True):
                rank.apply(entries)
    _after(policy, ranks, outcome)
    for rank in ranks:
        rank.writer.stop()
    return outcome


def _after(policy: Policy, ranks: list[_Rank], outcome: Outcome) -> None:
    """The turns after the ranks parted: whoever has a request waits in the next round, whoever has none goes on."""
    splits = outcome.splits
    if not splits:
        return
    last = len(outcome.rounds)
    if policy.machine == "pipeline":  # nothing waits: the stages go on, one of them with what it never gets rid of
        for _ in range(_AFTER):
            for rank in ranks:
                entries = [Entry(r.number, r.poll, r.poll, r.poll) for r in rank.queue]
                rank.enter(entries)
                rank.apply(entries)
            time.sleep(_ROUND_S)
        return
    if policy.machine == "transfer":
        for rank in ranks:
            entries = [_polled(policy, rank, request) for request in rank.queue]
            rank.enter(entries)
    time.sleep(_ROUND_S)
    for rank in ranks:
        if not rank.queue:
            for _ in range(_AFTER):
                rank.tap.visit([])
        if policy.machine == "transfer":
            # What was late lands while the ranks hang: a look at the slots afterwards shows nothing any more.
            for request, cell in zip(rank.requests, rank.cells, strict=True):
                if cell.second >= last and request in rank.queue:
                    rank.land(request)


def _polled(policy: Policy, rank: _Rank, request: _Request) -> Entry:
    filled = rank.slots[request.slot]
    waits = {"none": False, "zero": not filled, "expected": filled != request.room}[policy.gate]
    gated = KVPoll.TRANSFERRING if waits and request.poll == KVPoll.SUCCESS else request.poll
    return Entry(request.number, request.poll, int(gated))
