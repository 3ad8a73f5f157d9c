"""Which requests of one side wait, whether they get any further, and what will end their wait. Pure."""

from __future__ import annotations

from collections.abc import Collection

from pdctl.probes.covers import NOTHING, Covers, Ends, attempts
from pdctl.probes.stuck import STUCK_S
from pdctl.probes.stuck.advice import AFTER_RETRACTED, BEHIND, FIRST, NO_SLOT, NOT_TOLD
from pdctl.probes.stuck.model import Place, SideSpace, Waiting
from pdctl.probes.stuck.peer import HERE, Peer, Peers, peer_of
from pdctl.probes.stuck.sides import HEARD, QUEUE_ORDER, Key, Seen, Side, holds
from pdctl.protocol.model import UNKNOWN, KVPoll, poll_name
from pdctl.protocol.requests import RoomEntry


def waiting_of(side: Side, mine: Peers, other: Peers, pause_s: float, full: SideSpace | None) -> list[Waiting]:
    """Return a side's requests. mine, other: the groups of its role, and of the other one.

    This runs ten thousand times in a second at most: what many share is looked up once.
    """
    answer = side.first_answer
    if answer is None:
        return []
    covers, lookups, recorded = Covers(answer.covers), answer.lookups, side.recorded
    progress = _Progress(side, pause_s)
    since, title, role, cluster, unseen_s = side.since, side.title, side.role, side.cluster, side.unseen_s
    alone = other[0] if len(other) == 1 else None
    there: Collection[int] = alone.rooms if alone is not None else ()
    found = []
    for key, seen in side.requests.items():
        if len(seen) == 1 and seen[0].entry.queue in QUEUE_ORDER:
            entry = seen[0].entry
            age_s = entry.age_s
        else:
            waiting = [each.entry for each in seen if each.entry.queue in QUEUE_ORDER]
            if not waiting:
                continue
            entry = min(waiting, key=_least)
            age_s = max(each.age_s for each in waiting)
        cover = covers.of(entry)
        if lookups and entry.queue == "decode.pending":
            cover = attempts(lookups.get(entry.bootstrap), entry.bootstrap) or cover
        if recorded and cover.name == "unknown":
            cover = _NOT_TOLD
        room, rid = key
        strangers = other.strangers(entry, side, mine)
        if alone is not None and room and room in there and not strangers:
            peer = Peer(alone.words(room), HERE)
        else:
            since_s = max(age_s, since.get(key, -1.0)) if since else age_s
            past = entry.queue in HEARD and role == "decode"
            peer = peer_of(room, side, other.behind(entry), since_s, past=past, strangers=strangers)
        found.append(
            Waiting(
                room=room,
                rid=rid,
                side=title,
                role=role,
                queue=entry.queue,
                state=_STATES[entry.state],
                age_s=age_s,
                ranks=tuple([_place(each) for each in seen]),
                peer=peer.words,
                peer_is=peer.kind,
                peer_ended_s=peer.ended_s,
                peer_without_s=peer.without_s,
                progress=progress.of(key, entry),
                cover=cover.name,
                limit_s=cover.limit_s,
                left_s=cover.left_s(entry),
                note=_behind(side, entry, full) or cover.note,
                holds=holds(entry.slot, entry.kv) if entry.locked <= 0 else _locks(entry),
                cluster=cluster,
                unseen_s=unseen_s,
            )
        )
    return found


def is_endless(one: Waiting) -> bool:
    """Return whether no time-out ends a long wait in which nothing moved, whether it is known to be stuck or not."""
    here = one.queue in HEARD or one.note in (FIRST, BEHIND, AFTER_RETRACTED, NO_SLOT)
    return one.cover == NOTHING and one.progress == "still" and one.age_s >= STUCK_S and not here


_NOT_TOLD = Ends("unknown", None, note=NOT_TOLD)
_STATES = [poll_name(state) for state in range(UNKNOWN + 1)]


def _least(entry: RoomEntry) -> tuple[int, float]:
    """Order a group's entries of one request: a group is where its least advanced rank is (MIN), the oldest of those."""
    return entry.state, -entry.age_s


def _place(seen: Seen) -> Place:
    entry = seen.entry
    return Place(seen.ranks, entry.queue, _STATES[entry.state], entry.age_s, entry.slot, entry.kv, entry.locked)


class _Progress:
    """Whether requests of one side got any further between the two looks."""

    def __init__(self, side: Side, pause_s: float) -> None:
        self._pause_s = pause_s
        self._watched, self._changed, self._left = side.watched, side.changed, side.left

    def of(self, key: Key, entry: RoomEntry) -> str:
        if 0 <= entry.age_s < self._pause_s:
            return "new"
        if not self._watched:
            return "unknown"
        return self._changed.get(key) or ("in line" if entry.queue in self._left else "still")


def _locks(entry: RoomEntry) -> str:
    held = holds(entry.slot, entry.kv)
    lock = f"a lock on {entry.locked} tokens of the prefix cache"
    return f"{held}, {lock}" if held else lock


def _behind(side: Side, entry: RoomEntry, full: SideSpace | None) -> str:
    """Return for what of its own side a request waits, "" where it waits for the other one."""
    if entry.queue == "prefill.bootstrap":
        waits = entry.state == KVPoll.WAITING_FOR_INPUT and entry.slot < 0
        space = side.first_answer.space if waits and side.first_answer is not None else None
        return NO_SLOT if space is not None and space.slots_free == 0 and side.slots_held >= space.slots else ""
    if side.retracted:
        return "" if entry.queue in HEARD else AFTER_RETRACTED
    if full is None or entry.queue != "decode.prealloc" or entry.slot >= 0:
        return ""
    return FIRST if entry.room == full.head else BEHIND
