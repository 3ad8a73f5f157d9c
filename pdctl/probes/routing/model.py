"""What ``verify-routing`` takes and gives: what ranks and bootstrap servers said, and rooms with their four beliefs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from pdctl.protocol.documents import Document
from pdctl.protocol.model import EventKind, Identity, KVPoll
from pdctl.protocol.requests import MAX_LOOKUPS, RoomEntry, Rooms, Settings
from pdctl.report.findings import Finding

if TYPE_CHECKING:
    from pdctl.recording.reader import Event

FAKE_HOST = "2.2.2.2"
"""SGLang's ``FAKE_BOOTSTRAP_HOST``: a warm-up request that is transferred to nobody."""
FAKE = f"{FAKE_HOST}:"
"""How its address begins."""

WAITING = frozenset(("prefill.bootstrap", "decode.pending", "decode.prealloc"))
"""Queues of requests for which routing still matters."""


class Fault(str, Enum):
    """What a bootstrap server does that does not answer. OTHER: it could not be asked, or it is something else."""

    NONE = ""
    REFUSES = "refuses connections"
    UNREACHABLE = "can't be reached"
    UNRESOLVED = "has a name that can't be resolved from here"
    SILENT = "does not answer"
    OTHER = "other"


Place = tuple[int, int, int, int]
"""dp, cp, tp, pp of a prefill rank, in the order in which ``/route`` takes them."""


RECENT_S = 600.0
"""So long what decode gave up on is told of, after its last attempt."""


@dataclass
class Misses:
    """What a decode rank's recording has of asking a server in vain. times: in a row. since_s, last_s: ago, None: unknown."""

    times: int
    since_s: float | None
    last_s: float | None
    last_ns: int


@dataclass(frozen=True)
class RankView:
    """All that could be had of one rank. silence: why it gave no live answer, "" when it did.

    seams: name → present, of the seams of routing. events: of the rooms that are looked at; events_off: why there are
    none. network: name of the network namespace its process is in, "" where that can't be seen from here.
    problems: what in its recording can't be trusted, where that is all there is of it. up_s: seconds since its process began;
    None unknown. failures: why and when its engine failed rooms, and aborts, where a bootstrap server gives no answer.
    """

    identity: Identity
    state: str
    silence: str = ""
    rooms: Rooms | None = None
    settings: Settings | None = None
    seams: Mapping[str, bool] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    events_off: str = ""
    network: str = ""
    problems: tuple[str, ...] = ()
    up_s: float | None = None
    failures: tuple[Event, ...] = ()

    def age_s(self, mono_ns: int) -> float | None:
        """Return how long ago a moment on this rank's clock was, None where it does not answer."""
        return None if self.rooms is None else max(0.0, (self.rooms.mono_ns - mono_ns) / 1e9)

    @cached_property
    def named(self) -> frozenset[str]:
        """The bootstrap servers that its requests name, without brackets."""
        return (
            frozenset(map(plain_of, self.rooms.rooms.distinct("bootstrap"))) if self.rooms is not None else frozenset()
        )

    @cached_property
    def missed(self) -> Mapping[str, Misses]:
        """Address → what a decode rank's recording has of bootstrap servers whose last answer is still awaited."""
        found: dict[str, Misses] = {}
        for event in self.events:
            if event.kind != EventKind.LOOKUP or not event.text or event.text.startswith(FAKE):
                continue
            if event.a <= 0:
                found.pop(event.text, None)
                continue
            ago = self.age_s(event.mono_ns)
            known = found.get(event.text)
            since = known.since_s if known is not None else ago if event.a == 1 else None
            found[event.text] = Misses(event.a, since, ago, event.mono_ns)
        recent = {address: one for address, one in found.items() if one.last_s is not None and one.last_s <= RECENT_S}
        return dict(sorted(recent.items(), key=lambda one: -one[1].last_ns)[:MAX_LOOKUPS])


@dataclass(frozen=True)
class ServerView:
    """What one bootstrap server said. silence: why it said nothing, "" when it answered. fault: of what kind that is.

    info: facts of its prefill server (:data:`pdctl.protocol.requests.PREFILL_FACTS`), as text; None, and why in
    info_off. dp_ranks: registered dp rank of each room in ``asked`` that has one; asked_off: why rooms are not in it.
    routes: port it sends decode to for each prefill rank it was asked for, -1 where it knows none. way: how it was
    asked, "" directly. hurried: it had less time than decode gives it, so that its silence says nothing of it.
    """

    address: str
    network: str = ""
    silence: str = ""
    fault: Fault = Fault.NONE
    info: Mapping[str, str] | None = None
    info_off: str = ""
    dp_ranks: Mapping[int, int] = field(default_factory=dict)
    asked: frozenset[int] = frozenset()
    asked_off: str = ""
    routes: Mapping[Place, int] = field(default_factory=dict)
    way: str = ""
    hurried: bool = False

    @property
    def usable(self) -> bool:
        """Whether it answered, and knows all of its prefill ranks."""
        return not self.silence and not self.info_off


@dataclass(frozen=True)
class Look:
    """One look at everything. servers: by (network namespace, address). named: rooms the user asked for.

    instead: addresses to take for every rank's own, as the user said. taken_s: when, on this process's monotonic clock.
    """

    views: tuple[RankView, ...]
    servers: Mapping[tuple[str, str], ServerView] = field(default_factory=dict)
    named: tuple[int, ...] = ()
    instead: tuple[str, ...] = ()
    taken_s: float = 0.0

    @cached_property
    def answering(self) -> frozenset[tuple[str, str]]:
        """Cluster and role of ranks that answer."""
        return frozenset((v.identity.cluster, v.identity.role) for v in self.views if v.rooms is not None)

    @cached_property
    def silent(self) -> frozenset[tuple[str, str]]:
        """Cluster and role of ranks that do not."""
        return frozenset((v.identity.cluster, v.identity.role) for v in self.views if v.rooms is None)

    @cached_property
    def mates(self) -> Mapping[tuple[str, str], Sequence[RankView]]:
        """Role and instance → the ranks of that server."""
        found: dict[tuple[str, str], list[RankView]] = {}
        for view in self.views:
            found.setdefault((view.identity.role, view.identity.instance), []).append(view)
        return found

    def server(self, view: RankView, address: str) -> ServerView | None:
        """Return what the bootstrap server said that this rank calls ``address``, None when it was not asked."""
        if self.instead:
            return self.servers.get(("", self.instead[0])) if len(self.instead) == 1 else None
        return self.servers.get((view.network, address))


class Holder(msgspec.Struct, frozen=True, gc=False):
    """Prefill ranks that hold a room and say the same of it. dp: their own dp rank. age_s: since then, None unknown."""

    ranks: tuple[str, ...]
    dp: int
    queue: str
    state: str
    age_s: float | None = None


class Asker(msgspec.Struct, frozen=True, gc=False):
    """Decode ranks that have a room and say the same of it. dp: prefill dp rank they take it to be on, None while unknown.

    places: ``tp0``, ``tp1``. queues: where they have it (``decode.pending`` and ``decode.prealloc`` at once: enqueued, and
    still waiting to be told). pinned: the dp rank came with the request. asked_s: since the first of them asked the
    bootstrap server, None unknown.
    """

    ranks: tuple[str, ...]
    places: tuple[str, ...]
    dp: int | None
    queues: tuple[str, ...]
    state: str
    age_s: float | None = None
    pinned: bool = False
    asked_s: float | None = None


class RoomRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One room and who takes it to be where. All are prefill dp ranks; None: unknown, or does not apply.

    formula: ``room % dp_size`` where the decode ranks follow it, formula_note says why they do not; implied: the number
    whether they do or not. bootstrap: as registered, bootstrap_note: ``not registered``, ``missing: reason``, "". address:
    of the bootstrap server. registered_s: since prefill registered it. prefill, decode: ranks that have it.
    verdict: AGREE, WAITS, CONFLICT, UNREGISTERED, SPLIT, REFUSED, DUPLICATE, EXPIRES, REPLACED, SHARED, UNHEARD, DONE, GONE or
    UNKNOWN; text says more.
    """

    room: int
    rids: tuple[str, ...]
    verdict: str
    text: str
    formula: int | None = None
    formula_note: str = ""
    implied: int | None = None
    bootstrap: int | None = None
    bootstrap_note: str = ""
    address: str = ""
    registered_s: float | None = None
    prefill: tuple[Holder, ...] = ()
    decode: tuple[Asker, ...] = ()
    cluster: str = ""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """How one server routes, by its own ranks. dp_size and balance: -1 and "" where unknown or without meaning.

    force_query: whether the variable is set and this code heeds it. registers: on prefill, which rooms it registers;
    on decode, which rooms it asks for. believes: on decode, address of a bootstrap server → what it was told there.
    """

    role: str
    service: str
    cluster: str = ""
    ranks: int = 0
    answered: int = 0
    dp_size: int = -1
    balance: str = ""
    force_query: bool = False
    registers: str = ""
    believes: dict[str, dict[str, str]] = {}
    addresses: tuple[str, ...] = ()


class ServerRow(msgspec.Struct, frozen=True):
    """One bootstrap server. silence: why it said nothing. info: of its prefill server, {} with the reason in info_off."""

    address: str
    silence: str = ""
    info: dict[str, str] = {}
    info_off: str = ""
    rooms_asked: int = 0
    rooms_registered: int = 0
    way: str = ""


class UnknownRoom(msgspec.Struct, frozen=True):
    """A room that was asked for and that nobody knows. nearest: rooms that are there and look like it."""

    room: int
    nearest: tuple[int, ...] = ()


class RoutingDocument(Document, frozen=True, kw_only=True, tag="pdctl.routing"):
    """Answer of ``pdctl verify-routing``. partial: something could not be judged; problems say what.

    young: differences that may be skew, since they have not been there for long enough; no findings. notes: what is known
    less well than it could be.
    """

    rooms: tuple[RoomRow, ...]
    sides: tuple[Side, ...] = ()
    servers: tuple[ServerRow, ...] = ()
    findings: tuple[Finding, ...] = ()
    unknown: tuple[UnknownRoom, ...] = ()
    notes: tuple[str, ...] = ()
    young: int = 0
    partial: bool = False
    problems: tuple[str, ...] = ()


def plain_of(address: str) -> str:
    """Return an address without the brackets of IPv6, which only decode writes."""
    return address.replace("[", "").replace("]", "")


def place_of(view: RankView) -> Place:
    """Return the place of a rank in its server."""
    i = view.identity
    return i.dp, i.cp, i.tp, i.pp


def waits(entry: RoomEntry) -> bool:
    """Return whether an entry waits to be routed, or for the side it was routed to; warm-ups do not count."""
    there = entry.queue in WAITING or (entry.queue == "decode.transfer" and entry.state <= _TRANSFERS)
    return there and entry.room != 0 and not entry.bootstrap.startswith(FAKE)


_TRANSFERS = int(KVPoll.WAITING_FOR_INPUT)
