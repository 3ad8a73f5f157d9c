"""The groups of ranks that have the same requests, where they have them, and their memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import msgspec

from pdctl.probes.queues.formatting import names
from pdctl.probes.stuck.model import Earlier, RankLooks, SideSpace
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import OTHER, UNKNOWN, poll_name
from pdctl.protocol.requests import RoomEntry, Rooms, RoomTable, Space
from pdctl.targets.servers import told_apart

COMPUTED = ("waiting", "running")
_RETRACTED = "decode.retracted"
_BEHIND = ("decode.pending", "decode.prealloc", "decode.transfer")
HEARD = ("waiting", _RETRACTED)
"""Queues of requests that wait for nothing from the other side: they wait to be computed, or for space."""
WAITING_IN = (
    "decode.pending",
    "decode.prealloc",
    "decode.retracted",
    "decode.transfer",
    "prefill.bootstrap",
    "prefill.inflight",
    "waiting",
)
"""Queues in which a request waits."""
QUEUE_ORDER = {queue: place for place, queue in enumerate(WAITING_IN)}


Key = tuple[int, str]
"""Room and rid: a request."""
Where = tuple[tuple[str, ...], str, int]
"""Ranks, queue and state."""

_REQUEST = attrgetter("room", "rid")
_PLACE = ("queue", "room", "rid", "slot", "state", "dp", "kv")


class Seen(msgspec.Struct, frozen=True, gc=False):
    """A request in a queue, on one rank or on several that say the same of it."""

    ranks: tuple[str, ...]
    entry: RoomEntry


@dataclass(eq=False)
class Side:
    """The ranks of one group: those that have the same requests.

    Most of them say the same of every request; that is compared as a whole, and only who differs is looked at by itself.
    """

    place: str
    role: str
    cluster: str
    looks: list[RankLooks] = field(default_factory=list)
    server: str = ""
    """What tells its server from others that have a group at this place, "" where none has."""
    _words: dict[tuple[Where, ...], str] = field(default_factory=dict)
    _places: dict[int, tuple[Where, ...]] = field(default_factory=dict)

    @cached_property
    def title(self) -> str:
        """What it is called."""
        return f"{self.place} of {self.server}" if self.server else self.place

    def rank(self, look: RankLooks) -> str:
        """Return what one of its ranks is called."""
        return f"{self.place} tp{look.identity.tp}" + (f" of {self.server}" if self.server else "")

    @property
    def key(self) -> tuple[str, str]:
        """Cluster and role."""
        return self.cluster, self.role

    @property
    def unit(self) -> str:
        """Its data-parallel rank, with its server."""
        return self.looks[0].identity.unit

    @cached_property
    def parts(self) -> list[tuple[tuple[str, ...], RankLooks]]:
        """Ranks that answered, those together that say the same, and the first of each lot."""
        lots: list[tuple[list[str], RankLooks, tuple[object, ...]]] = []
        for look in self.looks:
            if look.second is None:
                continue
            name, said = f"tp{look.identity.tp}", look.second.rooms.key(*_PLACE)
            lot = next((lot for lot in lots if lot[2] == said), None)
            if lot is None:
                lots.append(([name], look, said))
            else:
                lot[0].append(name)
        return [(tuple(ranks), look) for ranks, look, _ in lots]

    @cached_property
    def requests(self) -> dict[Key, list[Seen]]:
        """Every request with where it is; one that is in two queues of a rank (pending, prealloc) is in the first."""
        found: dict[Key, list[Seen]] = {}
        for ranks, look in self.parts:
            assert look.second is not None
            entries = list(look.second.rooms)
            keys = list(map(_REQUEST, entries))
            first = dict(zip(keys, entries, strict=True))
            if len(first) < len(keys):
                in_order = sorted(zip(keys, entries, strict=True), key=_in_order, reverse=True)
                first = dict(in_order)  # of several, the last one stays
            if not found:
                found = {key: [Seen(ranks, entry)] for key, entry in first.items()}
                continue
            for key, entry in first.items():
                found.setdefault(key, []).append(Seen(ranks, entry))
        return found

    @cached_property
    def rooms(self) -> dict[int, list[Seen]]:
        """Every room with where it is."""
        found: dict[int, list[Seen]] = {}
        several: set[int] = set()
        for (room, _), seen in self.requests.items():
            have = found.setdefault(room, seen)
            if have is seen:
                continue
            if room in several:
                have += seen
            else:
                several.add(room)
                found[room] = have + seen
        return found

    def places(self, room: int) -> tuple[Where, ...]:
        """Return where a room is, each place once: it may have many requests."""
        found = self._places.get(room)
        if found is None:
            found = self._places[room] = _where(self.rooms.get(room, ()))
        return found

    @cached_property
    def _steps(self) -> list[tuple[RoomTable, RoomTable]]:
        """What ranks said at the first and at the second look, where the two differ in more than ages."""
        pairs = [(look.first.rooms, look.second.rooms) for _, look in self.parts if look.first and look.second]
        return [(then, now) for then, now in pairs if then.key(*_PLACE) != now.key(*_PLACE)]

    @cached_property
    def changed(self) -> dict[Key, str]:
        """Requests that were elsewhere, in another state, or not here at the first look: ``moving`` or ``new``."""
        found: dict[Key, str] = {}
        for then, now in self._steps:
            known = set(then.rows("room", "rid"))
            for change in set(now.rows(*_PLACE)) - set(then.rows(*_PLACE)):
                key = change[1], change[2]
                found[key] = "moving" if key in known else "new"
        return found

    @cached_property
    def left(self) -> frozenset[str]:
        """Queues that a request has left between the two looks."""
        gone: set[str] = set()
        for then, now in self._steps:
            gone |= {queue for queue, _ in set(then.rows("queue", "rid")) - set(now.rows("queue", "rid"))}
        return frozenset(gone)

    def words(self, room: int) -> str:
        """Return where this side has a room, in words."""
        return self._said(self.places(room))

    def words_of(self, have: Sequence[Seen]) -> str:
        """Return where this side has a request, in words."""
        return self._said(_where(have))

    def _said(self, where: tuple[Where, ...]) -> str:
        """Return places in words; many rooms are in few places."""
        words = self._words.get(where)
        if words is None:
            words = self._words[where] = _there(self, where)
        return words

    @cached_property
    def since(self) -> dict[Key, float]:
        """How long requests have been here, seconds, of those that came before they came into the queue they are in."""
        found: dict[Key, float] = {}
        for look in self.looks:
            for key, since_s in look.since.items():
                found[key] = max(since_s, found.get(key, -1.0))
        return found

    @cached_property
    def unseen_s(self) -> float:
        """How long before the end of the recordings some rank of it was last seen, 0.0 of live ranks."""
        return max((look.unseen_s for look in self.looks), default=0.0)

    @cached_property
    def stood_s(self) -> float:
        """For how long the loop of some rank of it had not turned when it was last seen, 0.0 of live ranks."""
        return max((look.stood_s for look in self.looks), default=0.0)

    @cached_property
    def recorded(self) -> bool:
        """Whether recordings are all there is of it: what it computes is not in them."""
        return all(look.state == "recorded" for look in self.looks)

    @cached_property
    def retracted(self) -> list[Seen]:
        """Requests that wait for space since they were put out of the batch, nothing where some look found none.

        While there are any, decode takes nothing else on: it polls neither transfers nor what waits before them.
        """
        queues = [rooms.rooms.distinct("queue") for look in self.looks for rooms in (look.first, look.second) if rooms]
        if not queues or not all(_RETRACTED in those for those in queues):
            return []
        return [seen[0] for seen in self.requests.values() if seen[0].entry.queue == _RETRACTED]

    @cached_property
    def slots_held(self) -> int:
        """How many metadata slots its requests hold on the first rank that answered."""
        answer = self.first_answer
        return 0 if answer is None else sum(slot >= 0 for slot in answer.rooms.column("slot"))

    @cached_property
    def watched(self) -> bool:
        """Whether some rank answered both looks."""
        return any(look.first is not None and look.second is not None for look in self.looks)

    @cached_property
    def requests_before(self) -> frozenset[Key]:
        """Every request that any rank had at the first look."""
        return frozenset(key for look in self.looks if look.first for key in look.first.rooms.rows("room", "rid"))

    @cached_property
    def earlier(self) -> dict[int, Earlier]:
        """Rooms of waiting requests that another request had before."""
        return {room: earlier for look in self.looks for room, earlier in look.earlier.items()}

    @cached_property
    def rooms_before(self) -> frozenset[int]:
        """Every room that any rank had at the first look."""
        return frozenset(room for look in self.looks if look.first for room in look.first.rooms.column("room"))

    @cached_property
    def answered(self) -> bool:
        """Whether every rank of it answered."""
        return all(look.second is not None for look in self.looks)

    @cached_property
    def first_answer(self) -> Rooms | None:
        """What the first rank that answered said."""
        return next((look.second for look in self.looks if look.second is not None), None)


def _where(have: Iterable[Seen]) -> tuple[Where, ...]:
    return tuple(dict.fromkeys([(seen.ranks, seen.entry.queue, seen.entry.state) for seen in have]))


def _in_order(one: tuple[Key, RoomEntry]) -> int:
    return QUEUE_ORDER.get(one[1].queue, len(QUEUE_ORDER))


def sides_of(looks: Iterable[RankLooks]) -> list[Side]:
    """Return the groups of prefill and decode ranks, in the order of their first rank."""
    sides: dict[tuple[str, str, str, int, int, int], Side] = {}
    for look in looks:
        i = look.identity
        if i.role not in OTHER:
            continue
        key = (i.cluster, i.service, i.role, i.dp, i.pp, i.cp)
        place = f"{i.role} dp{i.dp} pp{i.pp}" + (f" cp{i.cp}" if i.cp_size > 1 else "")
        sides.setdefault(key, Side(place, i.role, i.cluster)).looks.append(look)
    found = list(sides.values())
    apart = told_apart([side.looks[0].identity for side in found], [f"{side.place} {side.cluster}" for side in found])
    for side, server in zip(found, apart, strict=True):
        side.server = server
    return found


def _there(peer: Side, where: Iterable[Where]) -> str:
    states: dict[str, list[str]] = {}
    for ranks, queue, state in where:
        words = queue.partition(".")[2] or queue
        if state != UNKNOWN and queue not in COMPUTED:
            words += f" {poll_name(state)}"
        states.setdefault(words, []).extend(ranks)
    if len(states) == 1:
        return f"{peer.title} has it in {next(iter(states))}"
    return f"{peer.title} has it in " + ", ".join(
        f"{words} ({names(dict.fromkeys(ranks))})" for words, ranks in states.items()
    )


def holds(slot: int, kv: int) -> str:
    """Return the metadata slot and the KV space that a request holds, in words, "" for none."""
    place = f"slot {slot}" if slot >= 0 else ""
    space = f"{kv} KV tokens" if kv > 0 else ""
    return f"{place}, {space}" if place and space else place or space


# ---- space -----------------------------------------------------------------------------------------------------------


def space_of(side: Side) -> SideSpace | None:
    """Return the memory of the rank of a group that is full, else of the one that has least, None where no rank answered."""
    known = [(look.identity, look.second.space) for look in side.looks if look.second is not None]
    if not known:
        return None
    identity, space = min(
        known, key=lambda each: (not _full(each[1]), each[1].kv_free + each[1].evictable - each[1].reserved)
    )
    return SideSpace(
        side=side.title,
        rank=f"tp{identity.tp}",
        head=space.head,
        needs=space.needs,
        kv=space.kv,
        kv_free=space.kv_free + space.evictable,
        reserved=space.reserved,
        slots=space.slots,
        slots_free=space.slots_free,
        full=_retracted(side) or _full(space),
    )


def _retracted(side: Side) -> str:
    if not side.retracted or not any(seen[0].entry.queue in _BEHIND for seen in side.requests.values()):
        return ""
    oldest = max(side.retracted, key=lambda seen: seen.entry.age_s).entry
    many = f"{len(side.retracted)} retracted request{'s' * (len(side.retracted) > 1)}"
    since = f" for {seconds(oldest.age_s)}" if oldest.age_s >= 0 else ""
    verb, them = ("waits", "it") if len(side.retracted) == 1 else ("wait", "them")
    return f"{many} {verb} for space, room {oldest.room}{since}, and nothing else is taken on before {them}"


def _full(space: Space) -> str:
    if not space.head:
        return ""
    reasons = []
    free = space.kv_free + space.evictable - space.reserved
    if space.kv_free >= 0 and space.needs > free:
        kept = f" ({space.reserved} more kept back for requests ahead)" if space.reserved else ""
        reasons.append(
            f"room {space.head} is first in line and needs {space.needs} KV tokens, {max(0, free)} free{kept}"
        )
    if space.slots_free == 0:
        reasons.append(f"all {space.slots} metadata slots are taken")
    if space.requests_free == 0:
        reasons.append(f"all {space.requests} rows for running requests are taken")
    return "; ".join(reasons)
