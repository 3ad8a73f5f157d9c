"""Puts together what was said of each room, and how each rank routes by its settings and its code. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdctl.probes.routing.model import FAKE, Look, RankView, ServerView, waits
from pdctl.protocol.model import EventKind
from pdctl.protocol.numbers import whole
from pdctl.protocol.requests import (
    ENTRY_CLEANUP,
    FORCE_QUERY,
    NOTES_CONFLICTS,
    QUERY_FORCED,
    REGISTERS_EVERY_ROOM,
    RoomEntry,
)

if TYPE_CHECKING:
    from pdctl.recording.reader import Event

ENTRY_CLEANUP_S = 120.0
FOLLOW = "follow_bootstrap_room"
CONFLICT = "follow_bootstrap_room conflict"
"""How the engine's own reason for failing a misrouted room begins (CommonKVSender, 0.5.11 and newer)."""

EVERY, CONFLICTING, NONE = "every room", "rooms that conflict with the formula only", "no room"


def forced(view: RankView) -> bool:
    """Return whether FORCE_QUERY is set in this rank and its code heeds it."""
    known = view.seams.get(QUERY_FORCED if view.identity.role == "decode" else NOTES_CONFLICTS, True)
    return known and is_set(view)


def is_set(view: RankView) -> bool:
    """Return whether FORCE_QUERY is set in this rank, as the engine reads it."""
    return forces_query(view.settings.env if view.settings is not None else None)


def forces_query(env: Mapping[str, str] | None) -> bool:
    """Return whether FORCE_QUERY is set among these environment variables, as the engine reads it; None: not known."""
    return (env or {}).get(FORCE_QUERY, "").lower() in ("true", "1", "yes", "y")


def dp_size(view: RankView) -> int:
    """Return the dp size by this rank's settings, else by its identity."""
    values = view.settings.values if view.settings is not None else {}
    return number(values.get("dp_size", ""), view.identity.dp_size)


def balance(view: RankView) -> str:
    """Return the load balancing by this rank's settings, "" unknown."""
    return view.settings.values.get("load_balance_method", "") if view.settings is not None else ""


def registers(view: RankView) -> str:
    """Return which rooms a prefill rank registers: EVERY, CONFLICTING or NONE; "" where that is not known."""
    if view.settings is None or not balance(view):
        return ""
    if dp_size(view) <= 1:
        return NONE
    if balance(view) != FOLLOW:
        return EVERY
    if not forced(view):
        return NONE
    every = view.seams.get(REGISTERS_EVERY_ROOM)
    return "" if every is None else EVERY if every else CONFLICTING


def way_out(view: RankView) -> str:
    """Return what helps rooms that were routed against the formula: FORCE_QUERY only where this prefill's code allows."""
    every, notes = view.seams.get(REGISTERS_EVERY_ROOM), view.seams.get(NOTES_CONFLICTS)
    if notes is False:
        return f"{ROUTE}. Prefill of SGLang 0.5.11 or newer fails such a room at once, this one lets it wait."
    if every:
        return f"{ROUTE}, or set {FORCE_QUERY}=1 on both sides and restart them."
    if every is False:
        return (
            f"{ROUTE}. Leave {FORCE_QUERY} unset: with it this prefill registers no other rooms than those that conflict, and"
            " all the others stay pending (PD124)."
        )
    return (
        f"{ROUTE}. {FORCE_QUERY} on both sides helps where prefill registers every room with it, as SGLang 0.5.23 does."
    )


ROUTE = "Let the router choose dp rank room % dp_size"


def cleanup_s(view: RankView) -> float:
    """Return after how many seconds the bootstrap server of this prefill rank drops a registration."""
    text = view.settings.env.get(ENTRY_CLEANUP, "") if view.settings is not None else ""
    try:
        return float(text)
    except ValueError:
        return ENTRY_CLEANUP_S


def number(text: str, otherwise: int) -> int:
    """Return ``text`` as a number, ``otherwise`` where it is none."""
    found = whole(text)
    return otherwise if found is None else found


def believed(view: RankView, address: str) -> Mapping[str, str]:
    """Return what a decode rank was told of the prefill server behind ``address``; {} before it was."""
    return view.rooms.prefills.get(address, {}) if view.rooms is not None else {}


def asks(view: RankView, entry: RoomEntry) -> bool | None:
    """Return whether a decode rank asks the bootstrap server for this room; None before it knows that itself."""
    told = believed(view, entry.bootstrap)
    if not told:
        return None
    if entry.pinned >= 0 or number(told.get("dp_size", ""), 1) <= 1:
        return False
    return told.get(FOLLOW) != "True" or forced(view)


@dataclass(frozen=True)
class Ranks:
    """Ranks of one group that say the same of every room, so that they are looked at once. places: ``tp0``, ``tp1``."""

    views: tuple[RankView, ...]
    labels: tuple[str, ...]
    places: tuple[str, ...]

    @property
    def first(self) -> RankView:
        """The one that stands for all."""
        return self.views[0]

    @property
    def dp(self) -> int:
        """Their own dp rank."""
        return self.views[0].identity.dp


@dataclass(slots=True)
class Decoding:
    """A room on decode ranks that say the same of it."""

    ranks: Ranks
    entries: list[RoomEntry]

    @property
    def view(self) -> RankView:
        """The rank that stands for all."""
        return self.ranks.views[0]

    @property
    def dp(self) -> int | None:
        """Prefill dp rank these ranks take the room to be on, None while unknown."""
        for entry in self.entries:
            if entry.dp >= 0:
                return entry.dp
        return None

    @property
    def queues(self) -> tuple[str, ...]:
        """Queues that have the room here."""
        return tuple([entry.queue for entry in self.entries])

    @property
    def pending(self) -> bool:
        """Whether it waits to be told where the room is."""
        return self.dp is None and "decode.pending" in self.queues

    @property
    def enqueued(self) -> bool:
        """Whether it is in a queue whose polls are reduced."""
        return "decode.prealloc" in self.queues or "decode.transfer" in self.queues


@dataclass(slots=True)
class RoomFacts:
    """Everything that was said of one room in one cluster. decoders: every decode rank of the cluster.

    size, follows, registered, plain: as the methods ``find_…`` find them, once everything is said. pairs: of servers, kept by
    :func:`pdctl.probes.routing.pairs.pairs`.
    """

    cluster: str
    room: int
    prefill: list[tuple[Ranks, RoomEntry]] = field(default_factory=list)
    decode: list[Decoding] = field(default_factory=list)
    servers: tuple[ServerView, ...] = ()
    address: str = ""
    events: tuple[tuple[RankView, Event], ...] = ()
    decoders: Sequence[RankView] = ()
    size: int | None = None
    follows: bool | None = None
    registered: int | None = None
    plain: bool = False
    pairs: list[RoomFacts] | None = field(default=None, init=False)

    def find_plain(self) -> bool:
        """Return whether both sides, and the registration where there is one, name one dp rank for one request."""
        if self.events or len(self.prefill) != 1 or not self.decode:
            return False
        ranks, held = self.prefill[0]
        for decoding in self.decode:
            taken = decoding.entries[0]
            if len(decoding.entries) > 1 or taken.dp != ranks.dp or taken.rid != held.rid:
                return False
        return self.registered in (None, ranks.dp)

    @property
    def forced(self) -> bool:
        """Whether decode asks for the room because of FORCE_QUERY, or would if it had the room."""
        return any(map(forced, self.decoders if not self.decode else [decoding.view for decoding in self.decode]))

    @property
    def holders(self) -> list[tuple[Ranks, RoomEntry]]:
        """Prefill ranks that wait for decode's addresses."""
        return [(ranks, entry) for ranks, entry in self.prefill if entry.queue == "prefill.bootstrap"]

    @property
    def prefill_dps(self) -> list[int]:
        """Prefill dp ranks that have the room, in whatever queue."""
        return sorted({ranks.dp for ranks, _ in self.prefill})

    @property
    def decode_dps(self) -> list[int]:
        """Prefill dp ranks that decode ranks take the room to be on."""
        return sorted({d.dp for d in self.decode if d.dp is not None})

    @property
    def answered(self) -> bool:
        """Whether some bootstrap server answered for this room."""
        return any(self.room in server.asked for server in self.servers)

    def find_registered(self) -> int | None:
        """Return the dp rank that a bootstrap server has for the room, None without one."""
        for server in self.servers:
            if self.room in server.dp_ranks:
                return server.dp_ranks[self.room]
        return None

    def find_size(self) -> tuple[int | None, bool | None]:
        """Return the dp size that decode goes by and whether rooms follow it.

        Else as the bootstrap server or prefill has them; None unknown.
        """
        told = list(self._told())
        own = [ranks.first for ranks, _ in self.prefill]
        sizes = [size for facts in told if (size := whole(facts.get("dp_size", ""))) is not None]
        follow = [facts[FOLLOW] == "True" for facts in told if FOLLOW in facts]
        return (
            next(iter([*sizes, *map(dp_size, own)]), None),
            next(iter([*follow, *(balance(view) == FOLLOW for view in own if balance(view))]), None),
        )

    def _told(self) -> Iterable[Mapping[str, str]]:
        for decoding in self.decode:
            yield believed(decoding.view, self.address)
        for server in self.servers:
            if server.info:
                yield server.info

    @property
    def implied(self) -> int | None:
        """``room % dp_size``, None where the size is not known."""
        return None if self.size is None else self.room % max(1, self.size)

    def event(self, kind: EventKind, ranks: Ranks | None = None) -> tuple[RankView, Event] | None:
        """Return the newest event of a kind, of some ranks or of any."""
        found = [
            (view, event)
            for view, event in self.events
            if event.kind == kind and (ranks is None or any(view is one for one in ranks.views))
        ]
        return found[-1] if found else None

    @property
    def registration(self) -> tuple[float | None, int] | None:
        """When prefill last registered the room (seconds ago, None unknown) and as which dp rank; None if it is not seen."""
        found = self.event(EventKind.DP_REGISTER)
        return None if found is None else (found[0].age_s(found[1].mono_ns), found[1].a)

    @property
    def refusal(self) -> tuple[RankView, float | None] | None:
        """The prefill rank whose engine failed the room because of its routing, and how many seconds ago."""
        for view, event in reversed(self.events):
            if event.kind == EventKind.FAILURE and event.text.startswith(CONFLICT) and view.identity.role == "prefill":
                return view, view.age_s(event.mono_ns)
        return None


# ---- gathering -------------------------------------------------------------------------------------------------------


def gather(look: Look) -> list[RoomFacts]:
    """Return the facts of every room that waits somewhere and of those that were named and are known, by number."""
    named = set(look.named)
    groups = [(ranks, list(ranks.first.rooms.rooms) if ranks.first.rooms else []) for ranks in fold(look.views)]
    wanted = {
        (ranks.first.identity.cluster, entry.room): None
        for ranks, entries in groups
        for entry in entries
        if waits(entry) or entry.room in named
    }
    for view in look.views if named else ():
        wanted.update({(view.identity.cluster, e.room): None for e in view.events if e.room in named})
    known = {room for _, room in wanted} if named else set()
    for server in look.servers.values():  # no rank has it, and its registration is still there
        clusters = [v.identity.cluster for v in look.views if v.network == server.network or look.instead]
        left = [room for room in look.named if room in server.dp_ranks and room not in known]
        wanted.update({(clusters[0] if clusters else "", room): None for room in left})
    found = {key: RoomFacts(*key) for key in sorted(wanted)}
    for ranks, entries in groups:
        _add(ranks, entries, found, look)
    decoders: dict[str, list[RankView]] = {}
    events: dict[int, tuple[RoomFacts, list[tuple[RankView, Event]]]] = {}
    for view in look.views:
        if view.identity.role == "decode":
            decoders.setdefault(view.identity.cluster, []).append(view)
        for event in view.events:
            facts = found.get((view.identity.cluster, event.room))
            if facts is not None:
                events.setdefault(id(facts), (facts, []))[1].append((view, event))
    for facts, seen in events.values():
        facts.events = tuple(seen)
    sizes: dict[tuple[object, ...], tuple[int | None, bool | None]] = {}
    for facts in found.values():
        facts.decoders = decoders.get(facts.cluster, ())
        if not facts.servers and (look.instead or not facts.address):
            facts.servers = tuple(s for s in look.servers.values() if facts.room in s.asked or s.silence or s.asked_off)
        # The same ranks and servers say the same of the size, whatever the room.
        said = [*(ranks for ranks, _ in facts.prefill), *(d.ranks for d in facts.decode), *facts.servers]
        key = (facts.address, *map(id, said))
        if key not in sizes:
            sizes[key] = facts.find_size()
        facts.size, facts.follows = sizes[key]
        facts.registered = facts.find_registered()
        facts.plain = facts.find_plain()
    return list(found.values())


def fold(views: Sequence[RankView]) -> list[Ranks]:
    """Return the ranks, those of one group that say the same of their rooms as one: with many, most do."""
    groups: dict[tuple[object, ...], list[tuple[list[RankView], tuple[object, ...]]]] = {}
    for view in views:
        i = view.identity
        alike = groups.setdefault((i.cluster, i.role, i.service, i.instance, i.dp, i.pp, i.cp), [])
        said = _said(view)
        members = next((members for members, same in alike if same == said), None)
        if members is None:
            alike.append(([view], said))
        else:
            members.append(view)
    return [
        Ranks(tuple(found), tuple(v.identity.label for v in found), tuple(map(short_place, found)))
        for alike in groups.values()
        for found, _ in alike
    ]


def _said(view: RankView) -> tuple[object, ...]:
    """Return what two ranks must agree on to be looked at as one."""
    if view.rooms is None:
        return (None,)
    shared = view.rooms.rooms.key("room", "queue", "dp")  # a group shares requests
    return (view.network, view.rooms.prefills, is_set(view), view.seams, shared)


def short_place(view: RankView) -> str:
    """Return ``tp1``, with its dp and pp rank where there are several."""
    i = view.identity
    dp, pp = f"dp{i.dp} " if i.dp_size > 1 else "", f"pp{i.pp} " if i.pp_size > 1 else ""
    return f"{dp}{pp}tp{i.tp}"


def _add(ranks: Ranks, entries: Sequence[RoomEntry], found: Mapping[tuple[str, int], RoomFacts], look: Look) -> None:
    view = ranks.first
    cluster, prefilling = view.identity.cluster, view.identity.role == "prefill"
    here: dict[int, Decoding] = {}
    servers: dict[str, ServerView | None] = {}
    for entry in entries:
        facts = found.get((cluster, entry.room))
        if facts is None or entry.bootstrap.startswith(FAKE):
            continue
        if prefilling:
            facts.prefill.append((ranks, entry))
        elif entry.room in here:
            here[entry.room].entries.append(entry)
        else:
            here[entry.room] = Decoding(ranks, [entry])
            facts.decode.append(here[entry.room])
        if entry.bootstrap not in servers:
            servers[entry.bootstrap] = look.server(view, entry.bootstrap)
        server = servers[entry.bootstrap]
        if entry.bootstrap and (not prefilling or not facts.address):
            facts.address = entry.bootstrap
        if server is not None and all(known is not server for known in facts.servers):
            facts.servers = (*facts.servers, server)
