"""Puts together what was said of each room, and how each rank routes by its settings and its code. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pdctl.model import EventKind
from pdctl.probes.routing.model import FAKE_HOST, Look, RankView, ServerView, waits
from pdctl.rooms import ENTRY_CLEANUP, FORCE_QUERY, NOTES_CONFLICTS, QUERY_FORCED, REGISTERS_EVERY_ROOM, RoomEntry

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
    env = view.settings.env if view.settings is not None else {}
    return env.get(FORCE_QUERY, "").lower() in ("true", "1", "yes", "y")


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


def cleanup_s(view: RankView) -> float:
    """Return after how many seconds the bootstrap server of this prefill rank drops a registration."""
    text = view.settings.env.get(ENTRY_CLEANUP, "") if view.settings is not None else ""
    try:
        return float(text)
    except ValueError:
        return ENTRY_CLEANUP_S


def number(text: str, otherwise: int) -> int:
    """Return ``text`` as a number, ``otherwise`` where it is none."""
    return int(text) if text.isdecimal() else otherwise


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


@dataclass
class Decoding:
    """A room on one decode rank. dp: prefill dp rank it takes it to be on, None while unknown."""

    view: RankView
    entries: list[RoomEntry]

    @property
    def dp(self) -> int | None:
        """Prefill dp rank this rank takes the room to be on, None while unknown."""
        return next((entry.dp for entry in self.entries if entry.dp >= 0), None)

    @property
    def queues(self) -> tuple[str, ...]:
        """Queues that have the room here."""
        return tuple(entry.queue for entry in self.entries)

    @property
    def pending(self) -> bool:
        """Whether it waits to be told where the room is."""
        return self.dp is None and "decode.pending" in self.queues

    @property
    def enqueued(self) -> bool:
        """Whether it is in a queue whose polls are reduced."""
        return "decode.prealloc" in self.queues or "decode.transfer" in self.queues

    @property
    def place(self) -> str:
        """``tp1``, with its dp and pp rank where there are several."""
        i = self.view.identity
        dp, pp = f"dp{i.dp} " if i.dp_size > 1 else "", f"pp{i.pp} " if i.pp_size > 1 else ""
        return f"{dp}{pp}tp{i.tp}"


@dataclass
class RoomFacts:
    """Everything that was said of one room in one cluster."""

    cluster: str
    room: int
    prefill: list[tuple[RankView, RoomEntry]] = field(default_factory=list)
    decode: list[Decoding] = field(default_factory=list)
    servers: list[ServerView] = field(default_factory=list)
    address: str = ""
    events: list[tuple[RankView, Event]] = field(default_factory=list)

    @cached_property
    def holders(self) -> list[tuple[RankView, RoomEntry]]:
        """Prefill ranks that wait for decode's addresses."""
        return [(view, entry) for view, entry in self.prefill if entry.queue == "prefill.bootstrap"]

    @cached_property
    def prefill_dps(self) -> list[int]:
        """Prefill dp ranks that have the room, in whatever queue."""
        return sorted({view.identity.dp for view, _ in self.prefill})

    @cached_property
    def decode_dps(self) -> list[int]:
        """Prefill dp ranks that decode ranks take the room to be on."""
        return sorted({d.dp for d in self.decode if d.dp is not None})

    @cached_property
    def answered(self) -> bool:
        """Whether some bootstrap server answered for this room."""
        return any(self.room in server.asked for server in self.servers)

    @cached_property
    def registered(self) -> int | None:
        """Dp rank that a bootstrap server has for the room, None without one."""
        return next((s.dp_ranks[self.room] for s in self.servers if self.room in s.dp_ranks), None)

    @cached_property
    def size(self) -> int | None:
        """The dp size that decode goes by, else as the bootstrap server or prefill has it; None unknown."""
        for facts in self._told():
            if facts.get("dp_size", "").isdecimal():
                return int(facts["dp_size"])
        return next((dp_size(view) for view, _ in self.prefill if view.settings is not None), None)

    @cached_property
    def follows(self) -> bool | None:
        """Whether rooms follow ``room % dp_size``, by the same sources; None unknown."""
        for facts in self._told():
            if FOLLOW in facts:
                return facts[FOLLOW] == "True"
        return next((balance(view) == FOLLOW for view, _ in self.prefill if balance(view)), None)

    def _told(self) -> Iterable[Mapping[str, str]]:
        yield from (believed(d.view, self.address) for d in self.decode)
        yield from (server.info for server in self.servers if server.info)

    @property
    def implied(self) -> int | None:
        """``room % dp_size``, None where the size is not known."""
        return None if self.size is None else self.room % max(1, self.size)

    def event(self, kind: EventKind, view: RankView | None = None) -> tuple[RankView, Event] | None:
        """Return the newest event of a kind, of one rank or of any."""
        found = [(v, e) for v, e in self.events if e.kind == kind and (view is None or v is view)]
        return found[-1] if found else None

    @cached_property
    def registration(self) -> tuple[float | None, int] | None:
        """When prefill last registered the room (seconds ago, None unknown) and as which dp rank; None if it is not seen."""
        found = self.event(EventKind.DP_REGISTER)
        return None if found is None else (found[0].age_s(found[1].mono_ns), found[1].a)

    @cached_property
    def refusal(self) -> tuple[RankView, float | None] | None:
        """The prefill rank whose engine failed the room because of its routing, and how many seconds ago."""
        for view, event in reversed(self.events):
            if event.kind == EventKind.FAILURE and event.text.startswith(CONFLICT) and view.identity.role == "prefill":
                return view, view.age_s(event.mono_ns)
        return None


def gather(look: Look) -> list[RoomFacts]:
    """Return the facts of every room that waits somewhere and of those that were named and are known, by number."""
    wanted: set[tuple[str, int]] = set()
    for view in look.views:
        cluster = view.identity.cluster
        if view.rooms is not None:
            wanted.update((cluster, e.room) for e in view.rooms.rooms if waits(e) or e.room in look.named)
        wanted.update((cluster, event.room) for event in view.events if event.room in look.named)
    known = {room for _, room in wanted}
    for server in look.servers.values():  # no rank has it, and its registration is still there
        clusters = [v.identity.cluster for v in look.views if v.network == server.network or look.instead]
        wanted.update(
            (clusters[0] if clusters else "", r) for r in look.named if r in server.dp_ranks and r not in known
        )
    found = {key: RoomFacts(*key) for key in wanted}
    for view in look.views:
        _add(view, found, look)
    for facts in found.values():
        if not facts.servers and (look.instead or not facts.address):
            facts.servers = [s for s in look.servers.values() if facts.room in s.asked or s.silence or s.asked_off]
    return [found[key] for key in sorted(found, key=lambda key: (key[0], key[1]))]


def _add(view: RankView, found: Mapping[tuple[str, int], RoomFacts], look: Look) -> None:
    cluster = view.identity.cluster
    here: dict[int, Decoding] = {}
    for entry in view.rooms.rooms if view.rooms is not None else ():
        facts = found.get((cluster, entry.room))
        if facts is None or entry.bootstrap.startswith(f"{FAKE_HOST}:"):
            continue
        if view.identity.role == "prefill":
            facts.prefill.append((view, entry))
        elif entry.room in here:
            here[entry.room].entries.append(entry)
        else:
            here[entry.room] = Decoding(view, [entry])
            facts.decode.append(here[entry.room])
        server = look.server(view, entry.bootstrap)
        if entry.bootstrap and (view.identity.role == "decode" or not facts.address):
            facts.address = entry.bootstrap
        if server is not None and all(known is not server for known in facts.servers):
            facts.servers.append(server)
    for event in view.events:
        facts = found.get((cluster, event.room))
        if facts is not None:
            facts.events.append((view, event))
