"""What the leak judge takes and gives: several looks at every rank in, what stayed without an owner out."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from pdctl.probes.routing.addresses import is_named, means_itself
from pdctl.probes.routing.model import plain_of
from pdctl.protocol.documents import Document
from pdctl.protocol.metadata import Metadata, SlotRow
from pdctl.protocol.model import Identity, KVPoll
from pdctl.protocol.requests import RoomEntry, Rooms, Space
from pdctl.report.findings import Finding

BOOTSTRAP = "prefill.bootstrap"


@dataclass(frozen=True)
class Look:
    """One rank at one moment, and no more than is judged: ranks are many, and so are requests.

    rooms: of all its requests, wherever they are; requests: how many. ownerless: slot → allocation, of slots that are
    taken and that no request has; lost: the rows of those. failed: failed requests in the bootstrap queue, by room. named:
    rooms by the bootstrap server that their requests name, "" where that tells of none.
    """

    mono_ns: int
    ticks: int
    space: Space
    rooms: frozenset[int]
    requests: int
    ownerless: dict[int, int]
    lost: dict[int, SlotRow]
    failed: dict[int, RoomEntry]
    tables: dict[str, list[int]]
    lingers: dict[str, float]
    named: dict[str, frozenset[int]]


def look(rooms: Rooms, slots: Metadata) -> Look:
    """Return what counts of a rank's two answers; its rooms were read first, its slots right after."""
    owned = {h.slot for h in slots.holders}
    owned.update(rooms.rooms.column("slot"))
    bootstrapping = BOOTSTRAP in rooms.rooms.names
    lost = {row.slot: row for row in slots.rows if row.held_s != 0.0 and row.slot not in owned}
    servers = {address: _server(address) for address in rooms.rooms.distinct("bootstrap")}
    named: dict[str, set[int]] = {"": {h.room for h in slots.holders} - set(rooms.rooms.column("room"))}
    for room, address in rooms.rooms.rows("room", "bootstrap"):
        named.setdefault(servers[address], set()).add(room)
    return Look(
        mono_ns=rooms.mono_ns,
        ticks=rooms.ticks,
        space=rooms.space,
        rooms=frozenset([*rooms.rooms.column("room"), *(h.room for h in slots.holders)]),
        requests=len(rooms.rooms) + len(slots.holders),
        ownerless={slot: row.allocation for slot, row in lost.items()},
        lost=lost,
        failed={e.room: e for e in rooms.rooms if e.queue == BOOTSTRAP and e.state == KVPoll.FAILED}
        if bootstrapping
        else {},
        tables=rooms.tables,
        lingers=rooms.lingers,
        named={address: frozenset(those) for address, those in named.items()},
    )


def _server(address: str) -> str:
    """Return the bootstrap server of an address as both sides write it, "" where the address means another one on each host."""
    host = address.rpartition(":")[0].strip("[]")
    return plain_of(address) if is_named(address) and not means_itself(host) else ""


@dataclass(frozen=True)
class RankWatch:
    """One rank over the watch. looks: oldest first, fewer than the watch had where it did not answer every time.

    idle: its main thread waits for requests, so that its loop need not turn. computing: its main thread is in a forward, so
    that its loop can't turn. turned: a turn began after the last look. Neither of a rank that is read from outside, whose
    turns nobody sees.
    failed: room → seconds since it was seen to fail here, by the recording.
    """

    identity: Identity
    state: str
    silence: str = ""
    looks: tuple[Look, ...] = ()
    idle: bool = False
    computing: bool = False
    turned: bool = False
    failed: dict[int, float] = field(default_factory=dict)


class SlotLeak(msgspec.Struct, frozen=True):
    """A slot without an owner. held_s: since it was taken, at least as long as the watch; room: what is written in it.

    service, instance: as of :class:`RankLeaks`, here and in the others.
    """

    rank: str
    slot: int
    held_s: float
    room: int
    service: str = ""
    instance: str = ""


class Orphan(msgspec.Struct, frozen=True):
    """A failed request that only a later pipeline stage still has. Ages in seconds, None where unknown."""

    rank: str
    room: int
    rid: str
    age_s: float | None
    failed_s: float | None
    service: str = ""
    instance: str = ""


class SpaceLeak(msgspec.Struct, frozen=True):
    """KV tokens that are neither free nor cached on a rank without requests."""

    rank: str
    tokens: int
    pool: int
    service: str = ""
    instance: str = ""


class Leftover(msgspec.Struct, frozen=True):
    """Rooms in a table of a KV manager that nobody has. new: of them, those that came during the watch."""

    rank: str
    table: str
    count: int
    new: int
    rooms: tuple[int, ...]
    service: str = ""
    instance: str = ""


class RankLeaks(msgspec.Struct, frozen=True, kw_only=True):
    """One rank in the answer. judged: whether its slots and space could be judged, and if not, why.

    service, instance: its server, and the start of it. server: what tells that from others that have a rank of this name, ""
    where none has.
    """

    rank: str
    judged: bool
    why: str = ""
    looks: int = 0
    slots: int = -1
    slots_free: int = -1
    slots_lost: int = 0
    kv_lost: int = 0
    orphans: int = 0
    leftovers: int = 0
    service: str = ""
    instance: str = ""
    server: str = ""

    @property
    def name(self) -> str:
        """The rank, with its server where several have one of this name."""
        return f"{self.rank} of {self.server}" if self.server else self.rank


class LeaksDocument(Document, frozen=True, kw_only=True, tag="pdctl.leaks"):
    """Answer of ``pdctl dump leaks``. watch_s: how long was watched."""

    watch_s: float
    ranks: tuple[RankLeaks, ...]
    slots: tuple[SlotLeak, ...] = ()
    space: tuple[SpaceLeak, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    findings: tuple[Finding, ...] = ()
    partial: bool = False
    problems: tuple[str, ...] = ()
