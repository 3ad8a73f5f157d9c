"""What the other side of a request says of its room, and what it is a witness of. Pure.

A side is said not to have a request only where its loop took in requests after this one could have come. It is said never
to have had it only where its recordings tell of all that came since then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from pdctl.probes import turns
from pdctl.probes.routing.model import FAKE
from pdctl.probes.stuck.model import Last, RankLooks
from pdctl.probes.stuck.sides import Side
from pdctl.probes.turns import RECENT_S
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import OTHER
from pdctl.protocol.requests import RoomEntry
from pdctl.recording.witness import SAME_S, takers

HERE, ENDED, GONE, NEVER, LATER, ABSENT, UNREAD, SILENT, NOBODY = (
    "here", "ended", "gone", "never", "later", "absent", "unread", "silent", "",
)  # fmt: skip
"""What the other side says of a room. here: it has it. ended: it was over there. gone: it came, did not end, and is in no
queue. never: it never came. later: it never came to those that were there, and some began after the request could have come.
absent: it is not there now, and whether it ever came is not known. unread: the loop has not turned since the request could
have come. silent: a rank does not answer."""


class Peer(msgspec.Struct, frozen=True, gc=False):
    """What the other side says. words: for people. kind: one of the above.

    ended_s: seconds since it was over there. Of recordings, they count to the last turn of this side's loop, which can't
    have heard of what came later: negative where it was not over yet by then. without_s: for how long the other side is
    known to lack a request that this side has.
    """

    words: str
    kind: str
    ended_s: float | None = None
    without_s: float = 0.0


class Theirs(NamedTuple):
    """Requests of a decode group with one room: ids and bootstrap servers, and prefill groups that can have them, by id."""

    rids: frozenset[str]
    addresses: frozenset[str]
    behind: frozenset[int]


class Peers(list[Side]):
    """The groups of the other role in a cluster. What they say of rooms is looked up once, since rooms are many."""

    address = ""
    """Bootstrap server by which these are all that a request can be on, "" where they are all that there are."""

    @cached_property
    def having(self) -> dict[int, list[Side]]:
        """Room → groups that have it."""
        found: dict[int, list[Side]] = {}
        for peer in self:
            for room in peer.rooms:
                found.setdefault(room, []).append(peer)
        return found

    @cached_property
    def last(self) -> dict[int, list[tuple[Side, RankLooks, Last]]]:
        """Room → what recordings say of it last."""
        found: dict[int, list[tuple[Side, RankLooks, Last]]] = {}
        for peer in self:
            for look in peer.looks:
                for room, last in look.last.items():
                    found.setdefault(room, []).append((peer, look, last))
        return found

    @cached_property
    def several(self) -> bool:
        """Whether these are of several servers."""
        return len({_server(peer) for peer in self}) > 1

    @cached_property
    def _addresses(self) -> dict[tuple[str, str], set[str]]:
        """Server → addresses of its bootstrap server, as its requests name it."""
        found: dict[tuple[str, str], set[str]] = {_server(peer): set() for peer in self}
        for peer in self if self.several else ():
            for look in peer.looks:
                if look.second is not None:
                    found[_server(peer)].update(look.second.rooms.distinct("bootstrap"))
        return {
            server: {one for one in addresses if one and not one.startswith(FAKE)}
            for server, addresses in found.items()
        }

    @cached_property
    def _behind(self) -> dict[str, Peers]:
        found = {}
        for address in set().union(*self._addresses.values()):
            # One of which no address is known may be the one.
            those = {server for server, known in self._addresses.items() if address in known or not known}
            found[address] = Peers(peer for peer in self if _server(peer) in those)
            found[address].address = address
        return found

    @cached_property
    def rooms_before(self) -> frozenset[int]:
        """Rooms that any rank had at the first look."""
        return frozenset().union(*(peer.rooms_before for peer in self))

    def behind(self, entry: RoomEntry) -> Peers:
        """Return the groups that a request can be on: of decode's, those of the prefill server whose bootstrap server it names.

        All of them where none is known by that address.
        """
        named = entry.bootstrap and entry.queue.startswith("decode.")
        return self._behind.get(entry.bootstrap, self) if named else self

    def strangers(self, entry: RoomEntry, side: Side, mine: Peers) -> list[Side]:
        """Return the groups of decode that have a request's room for another one: theirs is on another prefill server.

        mine: the groups of prefill, ``side`` among them, which has the request.
        """
        if side.role != "prefill" or not mine.several:
            return []
        found = []
        for peer in self.having.get(entry.room, ()):
            theirs = mine.theirs(peer, entry.room)
            same_id = bool(entry.rid) and entry.rid in theirs.rids
            if not (entry.bootstrap in theirs.addresses or same_id or id(side) in theirs.behind):
                found.append(peer)
        return found

    def theirs(self, peer: Side, room: int) -> Theirs:
        """Return what a group of decode says of its requests with a room. They may be thousands: they are looked at once."""
        found = self._theirs.get((id(peer), room))
        if found is None:
            entries = [seen.entry for seen in peer.rooms[room]]
            servers = {(one.bootstrap, one.queue.startswith("decode.")): one for one in entries}
            found = self._theirs[id(peer), room] = Theirs(
                frozenset(one.rid for one in entries),
                frozenset(one.bootstrap for one in entries),
                frozenset(id(side) for one in servers.values() for side in self.behind(one)),
            )
        return found

    @cached_property
    def _theirs(self) -> dict[tuple[int, int], Theirs]:
        return {}

    @cached_property
    def _silent(self) -> list[RankLooks]:
        return [look for peer in self for look in peer.looks if look.silence]

    @cached_property
    def _living(self) -> bool:
        return any(look.second is not None for peer in self for look in peer.looks)

    def silent(self, came_s: float) -> RankLooks | None:
        """Return the first rank that does not answer and may have a request that came ``came_s`` seconds ago at most."""
        return next((look for look in self._silent if not (self._living and ended_before(look, came_s))), None)

    @cached_property
    def takers(self) -> list[tuple[list[RankLooks], RankLooks, float | None]]:
        """The ranks that take in the same requests, with the one of them that did so last, and how long ago that was."""
        found = []
        for looks in takers((look for peer in self for look in peer.looks), lambda look: look.identity):
            look, took_in_s = min(((each, _took_in_s(each)) for each in looks), key=lambda one: _late(one[1]))
            found.append((looks, look, took_in_s))
        return found


def peer_of(
    room: int, side: Side, other: Peers, since_s: float = -1.0, *, past: bool = False, strangers: Sequence[Side] = ()
) -> Peer:
    """Return what the other side says of a room.

    since_s: how long this side has had the request, -1.0 unknown. What ended before that was another one with this room.
    past: the request has all that it needs from there, however long ago that was. strangers: who has the room for another.
    """
    if not room:
        return Peer("no room: a request without disaggregation", NOBODY)
    if not other:
        return Peer(f"no {OTHER[side.role]} rank in sight", NOBODY)
    said = [peer.words(room) for peer in other.having.get(room, ()) if peer not in strangers]
    if said:
        return Peer("; ".join(said), HERE)
    last = [one for one in other.last.get(room, ()) if one[0] not in strangers]
    came = [one for one in last if one[2].came]
    this = [one for one in came if past or since_s < 0 or one[2].age_s - side.unseen_s <= since_s + SAME_S]
    if this:
        return _seen(room, side, this)
    if past:
        return Peer(f"it waits for nothing from {OTHER[side.role]}", NOBODY)
    silent = other.silent(since_s + side.unseen_s if since_s >= 0 else -1.0)
    if silent is not None:
        return Peer(f"not known: {silent.identity.label}: {silent.silence}", SILENT)
    before = room in other.rooms_before and any(room in peer.rooms_before for peer in other if peer not in strangers)
    return _without(side, other, since_s, last, before=before)


def _seen(room: int, side: Side, this: Sequence[tuple[Side, RankLooks, Last]]) -> Peer:
    """Return what became of a request that came to the other side, and is in no queue there."""
    ended = [one for one in this if one[2].ended]
    peer, look, one = min(ended or this, key=lambda each: each[2].age_s)
    where, ago = peer.rank(look), seconds(one.age_s)
    if one.ended:
        because = f": {_quoted(one.reason)}" if one.reason and one.what != "Success" else ""
        unseen = ", when this side was no longer seen" if one.age_s < side.unseen_s else ""
        if not unseen and side.stood_s and one.age_s - side.unseen_s < side.stood_s:
            unseen = f"; this side's loop has not turned for {seconds(side.stood_s)}, and can't have heard"
        words = f"{where} had {one.what} {ago} ago{because}, and has let it go{unseen}"
        return Peer(words, ENDED, one.age_s - side.unseen_s - side.stood_s)
    if peer.recorded:
        return Peer(f"{where} had it {ago} ago: {one.what}; what it computes is not in recordings", UNREAD)
    if look.silence:
        return Peer(f"not known: {where} had it {ago} ago: {one.what}; {look.identity.label}: {look.silence}", SILENT)
    took_in_s = _took_in_s(look)
    computing = any(each.turn is not None and each.turn.computing for each in peer.looks)
    if took_in_s is None or took_in_s > one.age_s - SAME_S or computing or room in peer.rooms_before:
        return Peer(f"{where} had it {ago} ago: {one.what}; {_busy(look, 'it')}", UNREAD)
    return Peer(f"{where} has it no more; last seen {ago} ago: {one.what}", GONE, without_s=one.age_s - took_in_s)


def _without(
    side: Side, other: Peers, since_s: float, last: Sequence[tuple[Side, RankLooks, Last]], *, before: bool
) -> Peer:
    """Return what can be said of a request that no rank of the other side has, or is known to have had.

    before: some rank had it at the first look.
    """
    role = OTHER[side.role]
    came_s = since_s + side.unseen_s  # to the end of the recordings, as the other side's times are
    without_s, partly = float("inf"), ""
    began: dict[str, float] = {}
    gone: dict[str, None] = {}
    for looks, look, took_in_s in other.takers:
        if other.silent(-1.0) is not None and all(ended_before(each, came_s) for each in looks):
            gone[look.identity.service] = None
            continue
        if took_in_s is None or took_in_s > came_s - SAME_S or before:
            return Peer(f"not known: {_busy(look, look.identity.label)}", UNREAD)
        without_s = min(without_s, came_s - took_in_s)
        if any(each.whole_s is not None and each.whole_s >= came_s + SAME_S for each in looks):
            continue
        up_s = [each.up_s for each in looks if each.up_s is not None]
        if len(up_s) == len(looks) and max(up_s) < came_s - SAME_S:
            began[look.identity.service] = max(up_s)
        else:
            partly = partly or _limit(look)
    earlier = _earlier([one for one in last if one[2].came])
    if partly:
        words = f"no {role} rank has it now; whether one ever had it is not known: {partly}"
        return Peer(f"{words}{earlier}", ABSENT, without_s=without_s)
    if began:
        servers = ", ".join(f"{service} began {seconds(up_s)} ago" for service, up_s in began.items())
        words = f"no {role} rank has it: {servers}, after this request came"
        return Peer(f"{words}{earlier}", LATER, without_s=without_s)
    told = [one for one in last if not one[2].came]
    ended = f"; {', '.join(gone)} had ended before" if gone else ""
    where = f"the {role} server behind {other.address}" if other.address else role
    return Peer(f"it never came to {where}{_told(told)}{earlier}{ended}", NEVER, without_s=without_s)


def ended_before(look: RankLooks, came_s: float) -> bool:
    """Return whether a rank's process had ended when a request came, ``came_s`` seconds ago at most: it can't have it."""
    ended = look.second is None and look.turn is not None and look.turn.state == turns.ENDED
    return ended and came_s >= 0 and look.took_in_s is not None and look.took_in_s > came_s + SAME_S


def _server(side: Side) -> tuple[str, str]:
    one = side.looks[0].identity
    return one.service, one.instance


def _took_in_s(look: RankLooks) -> float | None:
    """Return how long ago a rank took in new requests, at most; None unknown."""
    known = [look.took_in_s] if look.took_in_s is not None else []
    if look.first is not None and look.second is not None and look.second.ticks - look.first.ticks > 1:
        known.append((look.second.mono_ns - look.first.mono_ns) / 1e9)  # a whole turn lies between the looks
    return min(known, default=None)


def _late(took_in_s: float | None) -> float:
    return float("inf") if took_in_s is None else took_in_s


def _busy(look: RankLooks, who: str) -> str:
    """Return why a rank, called ``who``, may not have taken in a request yet."""
    turn = look.turn
    if turn is None or turn.age_s is None or turn.age_s < RECENT_S or not turn.doing:
        took_in_s = _took_in_s(look)
        if took_in_s is None and turn is not None and turn.computing:
            return f"{who} is in {turn.doing}"
        if took_in_s is None:
            return f"when {who} last took in requests can't be seen"
        return f"{who} last took in requests {seconds(took_in_s)} ago"
    return f"{who} has been in {turn.doing} for {seconds(turn.age_s)}"


def _limit(look: RankLooks) -> str:
    """Return from when on a rank's recording tells of every request, in words."""
    if look.whole_s is None:
        return f"{look.identity.label}: {look.whole_why}"
    return f"{look.identity.label}'s recording goes back {seconds(look.whole_s)}: {look.whole_why}"


def _told(told: Sequence[tuple[Side, RankLooks, Last]]) -> str:
    """Return what only a message of this side says of the room over there."""
    if not told:
        return ""
    peer, look, one = max(told, key=lambda each: each[2].age_s)
    sent = "decode's addresses" if peer.role == "prefill" else "a message of prefill"
    return f" ({peer.rank(look)} only got {sent} for it {seconds(one.age_s)} ago)"


def _earlier(last: Sequence[tuple[Side, RankLooks, Last]]) -> str:
    if not last:
        return ""
    peer, look, one = min(last, key=lambda each: each[2].age_s)
    where = peer.rank(look)
    return f" (an earlier request with this room: {one.what} on {where} {seconds(one.age_s)} ago)"


def _quoted(reason: str) -> str:
    """Return an engine's words as such; recordings keep the beginning of long ones."""
    return f'"{reason}{"…" if reason.count("(") > reason.count(")") else ""}"'
