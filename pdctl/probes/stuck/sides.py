"""The groups of ranks that have the same requests, what one says of the other's rooms, and their memory. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pdctl.model import UNKNOWN, Identity, poll_name
from pdctl.probes.queues.words import seconds
from pdctl.probes.stuck.model import RankLooks, SideSpace
from pdctl.rooms import RoomEntry, Rooms, Space

OTHER = {"prefill": "decode", "decode": "prefill"}
COMPUTED = ("waiting", "running")


@dataclass
class Side:
    """The ranks of one group: those that have the same requests."""

    title: str
    role: str
    cluster: str
    looks: list[RankLooks] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str]:
        """Cluster and role."""
        return self.cluster, self.role


def sides_of(looks: Iterable[RankLooks]) -> list[Side]:
    """Return the groups of prefill and decode ranks, in the order of their first rank."""
    sides: dict[tuple[str, str, str, int, int, int], Side] = {}
    for look in looks:
        i = look.identity
        if i.role not in OTHER:
            continue
        key = (i.cluster, i.service, i.role, i.dp, i.pp, i.cp)
        title = f"{i.role} dp{i.dp} pp{i.pp}" + (f" cp{i.cp}" if i.cp_size > 1 else "")
        sides.setdefault(key, Side(title, i.role, i.cluster)).looks.append(look)
    return list(sides.values())


# ---- the other side --------------------------------------------------------------------------------------------------


def peer_words(room: int, side: Side, other: Sequence[Side]) -> tuple[str, float | None]:
    """Return what the other side says of a room, and seconds since it was over there."""
    if not room:
        return "no room: a request without disaggregation", None
    if not other:
        return f"no {OTHER[side.role]} rank in sight", None
    said: list[str] = []
    for peer in other:
        have = [(look.identity, entry) for look in peer.looks if look.second for entry in _every(look.second, room)]
        if have:
            said.append(_there(peer, have))
    if said:
        return "; ".join(said), None
    last = [(peer, look, look.last[room]) for peer in other for look in peer.looks if room in look.last]
    if last:
        ended = [one for one in last if one[2].ended]
        peer, look, one = min(ended or last, key=lambda each: each[2].age_s)
        because = f": {one.reason}" if one.reason and one.what != "Success" else ""
        where = f"{peer.title} tp{look.identity.tp}"
        if one.ended:
            return f"{where} had {one.what} {seconds(one.age_s)} ago{because}, and has let it go", one.age_s
        return f"{where} has it no more; last seen {seconds(one.age_s)} ago: {one.what}", None
    silent = [look for peer in other for look in peer.looks if look.silence]
    if silent:
        return f"not known: {silent[0].identity.label} {silent[0].silence}", None
    forgot = all(look.recorded for peer in other for look in peer.looks)
    return f"no {OTHER[side.role]} rank has it{'' if forgot else ' now'}", None


def _every(rooms: Rooms, room: int) -> list[RoomEntry]:
    return [entry for entry in rooms.rooms if entry.room == room]


def _there(peer: Side, have: Sequence[tuple[Identity, RoomEntry]]) -> str:
    states: dict[str, list[str]] = defaultdict(list)
    for identity, entry in have:
        name = entry.queue.partition(".")[2] or entry.queue
        state = f" {poll_name(entry.state)}" if entry.state != UNKNOWN and entry.queue not in COMPUTED else ""
        states[f"{name}{state}"].append(f"tp{identity.tp}")
    whole = len(states) == 1
    words = [text if whole else f"{'+'.join(dict.fromkeys(ranks))} {text}" for text, ranks in states.items()]
    return f"{peer.title} has it in {', '.join(words)}"


# ---- space -----------------------------------------------------------------------------------------------------------


def space_of(side: Side) -> SideSpace | None:
    """Return the memory of the rank of a group that has least, None where no rank answered."""
    known = [(look.identity, look.second.space) for look in side.looks if look.second is not None]
    if not known:
        return None
    identity, space = min(known, key=lambda each: each[1].kv_free + each[1].evictable - each[1].reserved)
    return SideSpace(
        side=side.title,
        rank=f"tp{identity.tp}",
        head=space.head,
        needs=space.needs,
        kv_free=space.kv_free + space.evictable,
        reserved=space.reserved,
        slots=space.slots,
        slots_free=space.slots_free,
        full=_full(space),
    )


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
