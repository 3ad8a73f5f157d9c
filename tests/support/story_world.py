"""A prefill rank and decode ranks of other hosts, each with a clock of its own, recorded by the real recorder.

Time is the world's: everything that happens is noted with the true moment, so that a test can hold a story against it.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pdctl.agent import tap as tap_module
from pdctl.agent.tap import QueueTap
from pdctl.probes.story.model import RankPast
from pdctl.protocol.model import QUEUES, Action, EventKind, GroupInfo, Identity
from pdctl.recording import format as f
from pdctl.recording.reader import parse
from pdctl.recording.writer import RecordingWriter
from tests.support.identities import identity

MS = 10**6
WALL = 1_790_000_000 * 10**9


@dataclass(eq=False)
class Request:
    room: int
    rid: str
    slot: int = -1
    poll: int = 1
    there: bool = False
    poller: object = field(default_factory=object)


class Rank:
    """One rank of the world. offset: its monotonic clock minus the world's; wall_error: of its wall clock."""

    def __init__(self, world: World, who: Identity, offset: int, wall_error: int, size: int) -> None:
        self.world, self.identity, self.offset, self.wall_error = world, who, offset, wall_error
        path = world.folder / f"{who.label.replace(' ', '-')}-{who.instance}.pdrec"
        self.writer = RecordingWriter.create(path, msgspec.json.encode(who), size=size)
        self.path = path
        self.queues: dict[str, list[Request]] = {}
        self.taps: dict[str, QueueTap] = {}
        self._streams = itertools.count()

    def describe(self, entry: Request) -> tuple[int, int]:
        return entry.room, entry.slot

    def found(self, slots: Any) -> list[int]:
        held = {r.slot: r.room for q in self.queues.values() for r in q if r.there}
        return [held.get(slot, 0) for slot in slots]

    def now(self) -> int:
        return self.world.now + self.offset

    def event(self, kind: EventKind, queue: str = "", **what: Any) -> None:
        code = QUEUES.index(queue) if queue else f.NO_QUEUE
        self.writer.event(kind, mono_ns=self.now(), queue=code, **what)

    def enter(self, queue: str, request: Request) -> None:
        self.queues.setdefault(queue, []).append(request)
        self.event(EventKind.ENQUEUE, queue, room=request.room, slot=request.slot, text=request.rid)

    def tap(self, queue: str) -> QueueTap:
        if queue not in self.taps:
            self.taps[queue] = QueueTap(queue, self, self.writer, lambda: next(self._streams))
        return self.taps[queue]


class World:
    """Makes recordings. ``past`` reads them back."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.now = 5_000 * MS
        self.ranks: list[Rank] = []
        self._acting: Rank | None = None
        monkeypatch.setattr(tap_module, "_now", lambda: self._acting.now() if self._acting else self.now)

    def rank(
        self, role: str, tp: int = 0, *, tp_size: int = 1, offset: int = 0, wall_error: int = 0, size: int = f.MIN_SIZE,
        **who: Any,
    ) -> Rank:  # fmt: skip
        group = GroupInfo("attn-tp", tuple(range(tp_size)), f"world of {role}")
        given = {
            "role": role, "tp": tp, "tp_size": tp_size, "world_rank": tp, "groups": (group,), "host": f"{role}-{tp}",
            "service": f"{role} {role}:30000", "instance": f"{role} 1", "cluster": "c", "started_wall_ns": WALL, **who,
        }  # fmt: skip
        rank = Rank(self, identity(**given), offset, wall_error, size)
        self.ranks.append(rank)
        return rank

    def wait(self, ms: float) -> None:
        self.now += int(ms * MS)

    def round(
        self,
        queue: str,
        ranks: list[Rank],
        *,
        reduced: int,
        leaves: Action | None = None,
        gate: bool = False,
        skew: float = 0.3,
    ) -> None:
        """One round of ``queue``: each rank enters a little later, leaves after all have entered, and decides."""
        for rank in ranks:
            self._acting = rank
            entries = rank.queues.setdefault(queue, [])
            tap = rank.tap(queue)
            tap.visit(entries)
            tap.polled([r.poller for r in entries])
            local = [r.poll for r in entries]
            tap.raw(local)
            gated = [3 if gate and r.poll == 4 and not r.there else r.poll for r in entries]
            tap.entering(0, bytes(gated), 1)
            self.wait(skew)
        for rank in reversed(ranks):
            self._acting = rank
            entries, tap = rank.queues[queue], rank.tap(queue)
            tap.left(0, bytes([reduced] * len(entries)), 1)
            if leaves is not None:
                for request in entries:
                    tap.decided(request, leaves, request.room if request.there else 0)
                entries = entries if leaves is Action.KEPT else []
            tap.leave(entries)
            rank.queues[queue] = entries
            self.wait(skew)
        self._acting = None

    def data(self, rank: Rank) -> bytes:
        """The recording as its host would have it: its start on that host's two clocks."""
        data = bytearray(rank.path.read_bytes())
        began = 1_000 * MS
        struct.pack_into("<qq", data, 24, WALL + began + rank.wall_error, began + rank.offset)
        return bytes(data)

    def past(self, rank: Rank, data: bytes | None = None, state: str = "recorded") -> RankPast:
        return RankPast(rank.identity, state, parse(self.data(rank) if data is None else data, rank.path.name))

    def pasts(self) -> list[RankPast]:
        return [self.past(rank) for rank in self.ranks]


def served(
    world: World, prefill: Rank, decode: list[Rank], room: int, rid: str, slot: int = 3, late_ms: float = 0.0
) -> None:
    """One room from arrival to commit, the way an engine with the gate does it; late_ms: metadata of the last decode rank."""
    sent = Request(room, rid)
    prefill.event(EventKind.STATE, room=room, a=1)
    prefill.event(EventKind.DP_REGISTER, room=room, a=0)
    prefill.enter("prefill.bootstrap", sent)
    world.wait(2)
    wanted = [Request(room, rid) for _ in decode]
    for rank, request in zip(decode, wanted, strict=True):
        rank.event(EventKind.STATE, room=room, a=1)
        rank.enter("decode.prealloc", request)
        rank.event(EventKind.DP_QUERY, room=room, text="10.0.0.1:8998")
        world.wait(0.5)
        rank.event(EventKind.DP_ANSWER, room=room, a=0)
        rank.event(EventKind.STATE, room=room, a=2)
        request.poll = 2
    world.round("prefill.bootstrap", [prefill], reduced=1)
    for request in wanted:
        request.slot = slot
    for rank in decode:
        rank.event(EventKind.SLOT_ALLOC, slot=slot)
    world.round("decode.prealloc", decode, reduced=2, leaves=Action.MOVED)
    for rank, request in zip(decode, wanted, strict=True):
        rank.enter("decode.transfer", request)
    world.wait(1)
    prefill.event(EventKind.STATE, room=room, a=2)
    sent.poll = 2
    world.round("prefill.bootstrap", [prefill], reduced=2, leaves=Action.MOVED)
    prefill.queues["prefill.inflight"] = [sent]
    for _ in range(3):
        world.round("decode.transfer", decode, reduced=2)
        world.round("prefill.inflight", [prefill], reduced=2)
    for n, (rank, request) in enumerate(zip(decode, wanted, strict=True)):
        last = n == len(decode) - 1
        if last and late_ms:
            prefill.event(EventKind.FAULT_FIRED, room=room, a=1, b=n, text="delay-metadata")
            continue
        prefill.event(EventKind.META_SENT, room=room, slot=slot, a=n, b=0)
        request.there = True
        del rank
        world.wait(0.4)
    prefill.event(EventKind.STATE, room=room, a=4)
    sent.poll = 4
    world.wait(0.6)
    for rank, request in zip(decode, wanted, strict=True):
        rank.event(EventKind.STATE, room=room, a=4)
        request.poll = 4
    world.round("prefill.inflight", [prefill], reduced=4, leaves=Action.COMMITTED)
    if late_ms:
        for _ in range(50):
            world.round("decode.transfer", decode, reduced=3, gate=True)
            world.wait(late_ms / 50)
        wanted[-1].there = True
        prefill.event(EventKind.META_SENT, room=room, slot=slot, a=len(decode) - 1, b=0)
        world.wait(0.2)
        decode[-1].event(EventKind.LANDED, "decode.transfer", room=room, slot=slot, a=int(late_ms * MS), b=room)
    world.round("decode.transfer", decode, reduced=4, leaves=Action.COMMITTED)
    for rank in decode:
        rank.event(EventKind.SLOT_FREE, slot=slot, room=room)
    world.wait(1)
