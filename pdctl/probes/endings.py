"""Finds servers that have ended: which rank went first, when and how, and what waits for it. Pure.

A server that was restarted, or that another has replaced, and one that ended in good order without a request is none. Where no
request is known to be lost, the server may be about to come back, as in a rolling restart: that is a warning, not an error.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property

from pdctl.probes.covers import NOTHING, Covers
from pdctl.probes.routing.addresses import is_named, means_itself
from pdctl.probes.routing.model import plain_of
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import OTHER, WAITS_FOR_OTHER, Identity, KVPoll
from pdctl.protocol.requests import RoomEntry, Rooms
from pdctl.report.findings import Finding, Level, finding
from pdctl.targets import nodeset

Request = tuple[int, str, str]
"""A room, its bootstrap server, and the host that means this one by it, "" where all do."""
CLOSED = "closed"
MOST_ROOMS, MOST_FIRST = 8, 4
TURN_NS = 200_000_000
"""Last signs that are nearer than this tell no order: ranks in step write once a turn."""
GAP_S = 30.0
"""For so long requests that came since a server ended may wait for it without being stuck: it may come back."""
NO_TIME_OUT, NOT_KNOWN = "no time-out", "what ends it is not known"


@dataclass(frozen=True)
class Ending:
    """A rank whose process has ended.

    last_ns: its last sign on the clock of the wall, 0 unknown. age_s: seconds since then, None unknown. recorded: the state of
    its recording, "" without one. raised: what its recording says of the exception that ended its scheduler, "" without one.
    status: exit status as waitpid gives it, 0 unknown or good. logged: the status is from the engine's log. service:
    another process of its server for whose loss it was ended, by that log, "" none; service_status: of that one. held: rooms in
    its polled queues at the end. known: all rooms that its recording tells of.
    """

    identity: Identity
    last_ns: int = 0
    age_s: float | None = None
    recorded: str = ""
    raised: str = ""
    status: int = 0
    logged: bool = False
    service: str = ""
    service_status: int = 0
    held: frozenset[int] = frozenset()
    known: frozenset[int] = frozenset()

    @property
    def in_order(self) -> bool:
        """Whether it ended as a process does that is told to: its recording was closed, and no exception is in it."""
        return self.recorded == CLOSED and not self.raised and not self.status


@dataclass(frozen=True)
class Endings:
    """The ranks that have ended, those that have not, and what the latter say of their rooms."""

    ended: Sequence[Ending] = ()
    living: Sequence[Identity] = ()
    rooms: Mapping[int, Rooms] = field(default_factory=dict)
    """By number among ``living``."""

    @cached_property
    def names(self) -> Mapping[nodeset.Server, str]:
        """What each server is called."""
        return nodeset.server_names([one.identity for one in self.ended] + list(self.living))

    @cached_property
    def running(self) -> Mapping[str, Sequence[tuple[nodeset.Server, Identity]]]:
        """Cluster → its ranks that have not ended, each with its server."""
        found: dict[str, list[tuple[nodeset.Server, Identity]]] = {}
        for one in self.living:
            found.setdefault(one.cluster, []).append((nodeset.server(one), one))
        return found

    @cached_property
    def knew(self) -> Mapping[tuple[str, str, int], AbstractSet[nodeset.Server]]:
        """Cluster, role and room → the servers with a rank that has ended and knew the room."""
        found: dict[tuple[str, str, int], set[nodeset.Server]] = {}
        for one in self.ended:
            for room in one.known:
                found.setdefault((one.identity.cluster, one.identity.role, room), set()).add(
                    nodeset.server(one.identity)
                )
        return found

    @cached_property
    def having(self) -> Mapping[tuple[str, str, Request], AbstractSet[tuple[nodeset.Server, int]]]:
        """Cluster, role and request → the servers that have it, and when each began, of rooms that one that ended knew."""
        known = frozenset().union(*(one.known for one in self.ended))
        found: dict[tuple[str, str, Request], set[tuple[nodeset.Server, int]]] = {}
        for n, rooms in self.rooms.items():
            one = self.living[n]
            for room, address in rooms.rooms.rows("room", "bootstrap") if known else ():
                if room in known and (request := _request(room, address, one)) is not None:
                    there = found.setdefault((one.cluster, one.role, request), set())
                    there.add((nodeset.server(one), one.started_wall_ns))
        return found

    @cached_property
    def fell(self) -> Mapping[tuple[str, str], bool]:
        """Clusters and roles of which some rank has ended → whether none of these ended in good order."""
        found: dict[tuple[str, str], bool] = {}
        for one in self.ended:
            side = (one.identity.cluster, one.identity.role)
            found[side] = found.get(side, True) and not one.in_order
        return found


def judge(seen: Endings) -> tuple[Finding, ...]:
    """Return a finding for each server that has ended, or some rank of which has."""
    servers: dict[nodeset.Server, list[Ending]] = {}
    for one in seen.ended:
        if one.identity.role in OTHER:
            servers.setdefault(nodeset.server(one.identity), []).append(one)
    found = (_server(ranks, seen) for ranks in servers.values())
    return tuple(one for one in found if one is not None)


def _server(ranks: Sequence[Ending], seen: Endings) -> Finding | None:
    who = ranks[0].identity
    own = nodeset.server(who)
    running = seen.running.get(who.cluster, ())
    left = [one for server, one in running if server == own]
    peers = [one for server, one in running if server != own]
    others = [one for one in peers if one.role == who.role]
    heard = [seen.living[n] for n in seen.rooms]
    waiting = _waiting(ranks, seen, alone=not others)
    held = frozenset(room for one in ranks for room in one.held)
    successor = any(one.started_wall_ns > max(rank.last_ns for rank in ranks) for one in others)
    if not left and not waiting:
        together = not seen.living and _both_fell(ranks, seen)
        harmless = not held and not together and (not peers or all(one.in_order for one in ranks))
        if successor or harmless or (seen.living and not peers):
            return None
    first = _first(ranks)
    name = seen.names[own]
    known = {(one.dp, one.pp, one.cp, one.tp) for one in (*(rank.identity for rank in ranks), *left)}
    some = f"{len(ranks)} of {len(known)} ranks of {name}" if left else f"server {name}"
    labels = " or ".join(one.identity.label for one in first[:MOST_FIRST])
    summary = f"{some} ended{_when(first[0])}: {labels} first, {how(first[0])}. "
    if waiting:
        summary += _wait(waiting, OTHER[who.role])
    else:
        summary += _nobody_waits(held, [one for one in peers if one.role == OTHER[who.role] and one not in heard])
    gap = not left and bool(peers) and not _lost(ranks, [entry for entry, _ in waiting])
    return finding(
        "PD113",
        f"{summary[0].upper()}{summary[1:]}.",
        group=name,
        rooms=tuple(sorted({entry.room for entry, _ in waiting} | held)),
        ranks=tuple(one.identity.label for one in ranks),
        units=(one.unit for one in (*(rank.identity for rank in ranks), *left)),
        evidence=(
            *(_said(one) for one in sorted(ranks, key=lambda one: one.last_ns)),
            *(f"room {entry.room}: {ends}" for entry, ends in waiting[:MOST_ROOMS]),
        ),
        level=Level.WARNING if gap else None,
        next_step=_next(waiting, held, OTHER[who.role], successor=successor, gap=gap),
    )


def _both_fell(ranks: Sequence[Ending], seen: Endings) -> bool:
    """Return whether ranks of the other side have ended, too, and none of these and those in good order."""
    who = ranks[0].identity
    beside = (who.cluster, OTHER[who.role])
    return beside in seen.fell and not any(one.in_order for one in ranks) and seen.fell[beside]


def _nobody_waits(held: Collection[int], unheard: Sequence[Identity]) -> str:
    """Return what is said where no request is seen to wait. unheard: ranks of other servers that did not tell."""
    if held:
        return "1 room was in it" if len(held) == 1 else f"{len(held)} rooms were in it"
    if unheard:
        return f"Whether requests wait for it is not known: {unheard[0].label} was not heard"
    return "No request waits for it"


def _lost(ranks: Sequence[Ending], waiting: Sequence[RoomEntry]) -> bool:
    """Return whether requests are known that this server can't serve any more, or that have waited for it for long."""
    gone_s = min((one.age_s for one in ranks if one.age_s is not None), default=None)
    if any(one.held for one in ranks):
        return True
    if not waiting or gone_s is None:
        return bool(waiting)
    known = frozenset(room for one in ranks for room in one.known)
    return gone_s >= GAP_S or any(not 0 <= one.age_s <= gone_s or one.room in known for one in waiting)


def _next(
    waiting: Sequence[tuple[RoomEntry, str]], held: Collection[int], side: str, *, successor: bool, gap: bool
) -> str:
    if successor:
        said = ["Another server has taken its place: what waits here does not wait for that one."]
    elif gap:
        said = [
            "Where it is being restarted, wait until its ranks are back: pdctl ranks. Else start it again, as a whole."
        ]
    else:
        said = ["Start this server again, as a whole; keep what it knew first: pdctl record FILE."]
    if waiting or held:
        said.append("pdctl story ROOM tells what a request went through.")
    endless = sum(ends == NO_TIME_OUT for _, ends in waiting)
    if endless:
        said.append(f"Abort on {side} the {endless} room{'s'[: endless != 1]} that no time-out ends.")
    return " ".join(said)


def _when(one: Ending) -> str:
    if one.age_s is not None:
        return f" {seconds(one.age_s)} ago"
    return f" at {_clock(one.last_ns)}" if one.last_ns else ""


def _clock(wall_ns: int) -> str:
    return f"{datetime.fromtimestamp(wall_ns / 1e9, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _first(ranks: Sequence[Ending]) -> list[Ending]:
    """Return the rank that ended first; several where their last signs don't tell, being as near as two turns are."""
    killed = [one for one in ranks if one.status & 0x7F]
    among = killed or [one for one in ranks if not one.raised and not one.in_order] or list(ranks)
    among.sort(key=lambda one: one.last_ns or 1 << 62)
    return [one for one in among if one.last_ns - among[0].last_ns < TURN_NS]


def how(one: Ending) -> str:
    """Return how a rank ended, in words."""
    logged = _LOGGED if one.logged else ""
    if one.service and not one.raised and one.status in (0, signal.SIGKILL):  # so a server ends its schedulers
        return f"by its own server, whose {one.service} had ended before, {_exit(one.service_status)}{_LOGGED}"
    if one.status & 0x7F:
        return f"{_exit(one.status)}{logged}"
    if one.raised:
        return one.raised
    if one.status:
        return f"{_exit(one.status)}{logged}"
    if one.recorded == CLOSED:
        return "in good order, as one that is told to end"
    killed = (
        "killed by somebody or by its own server, out of memory, or crashed: it had no time to close its recording"
        if one.recorded
        else "how is not known"
    )
    return f"{killed} (the engine's log or the kernel's may say more)"


_LOGGED = " (the engine's log says so)"


def _exit(status: int) -> str:
    return f"killed by {signal_name(status & 0x7F)}" if status & 0x7F else f"with exit code {status >> 8 & 0xFF}"


def signal_name(number: int) -> str:
    """Return ``SIGKILL``, or ``signal 99`` of a number that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _said(one: Ending) -> str:
    ago = "" if one.age_s is None else f" {seconds(one.age_s)} ago"
    at = f" at {_clock(one.last_ns)}" if one.last_ns else ""
    last = f"last sign{ago}{at}" if ago or at else "when it was last seen is not known"
    held = f", {len(one.held)} rooms in its queues" if one.held else ""
    return f"{one.identity.label} (pid {one.identity.pid}): {last}, {how(one)}{held}"


def _waiting(ranks: Sequence[Ending], seen: Endings, *, alone: bool) -> list[tuple[RoomEntry, str]]:
    """Return the requests of the other side that wait for this server, each room once, with what ends it.

    alone: no server that lives could be the one that they wait for, and of those that ended, none knew the room. Else this
    one has to have known it, and none that ran beside it has it with the same bootstrap server: another pair of servers may
    have a room of this number.
    """
    who = ranks[0].identity
    last_ns = max(one.last_ns for one in ranks)
    own = frozenset((nodeset.server(who),))
    known = frozenset(room for one in ranks for room in one.known)
    found: dict[int, tuple[RoomEntry, str]] = {}
    for n, rooms in seen.rooms.items():
        one = seen.living[n]
        if one.role != OTHER[who.role] or one.cluster != who.cluster:
            continue
        covers = Covers(rooms.covers)
        for entry in rooms.rooms:
            waits = entry.queue in WAITS_FOR_OTHER and entry.state not in (KVPoll.SUCCESS, KVPoll.FAILED)
            if not (entry.room and waits):
                continue
            request = _request(entry.room, entry.bootstrap, one) if entry.room in known else None
            there = seen.having.get((who.cluster, who.role, request), ()) if request is not None else ()
            if any(server not in own and began_ns <= last_ns for server, began_ns in there):
                continue
            if entry.room in known or (alone and not seen.knew.get((who.cluster, who.role, entry.room), own) - own):
                found.setdefault(entry.room, (entry, _ends(covers, rooms, entry)))
    return list(found.values())


def _request(room: int, address: str, one: Identity) -> Request | None:
    """Return what a rank says of a request, as the other side does; None where its address does not tell of a server."""
    host = one.host if means_itself(address.rpartition(":")[0].strip("[]")) else ""
    return (room, plain_of(address), host) if is_named(address) else None


def _ends(covers: Covers, rooms: Rooms, entry: RoomEntry) -> str:
    lookup = rooms.lookups.get(entry.bootstrap) if entry.queue == "decode.pending" else None
    if lookup is not None and lookup.left_s is not None:
        return f"attempt {lookup.most} at its bootstrap server in {seconds(lookup.left_s)}"
    ends = covers.of(entry)
    if ends.name == NOTHING:
        return NO_TIME_OUT
    if ends.limit_s is None:
        return NOT_KNOWN
    left_s = ends.left_s(entry)
    return ends.name if left_s is None else f"{ends.name} in {seconds(max(0.0, left_s))}"


def _wait(waiting: Sequence[tuple[RoomEntry, str]], side: str) -> str:
    ends: Counter[str] = Counter(words.partition(" in ")[0] for _, words in waiting)
    longest: dict[str, str] = {}
    for _, words in sorted(waiting, key=lambda one: one[0].clock_s):
        longest.setdefault(words.partition(" in ")[0], words.partition(" in ")[2])
    said = []
    for name, count in ends.items():
        if name == NO_TIME_OUT:
            every = "it" if count == 1 else "them"
            none = f"{count} {'has' if count == 1 else 'have'} no time-out"
            said.append(f"no time-out ends {every}" if count == len(waiting) else none)
        elif name == NOT_KNOWN:
            said.append(f"what ends {count} is not known")
        else:
            said.append(f"{name} ends {count}" + (f" in {longest[name]} at most" if longest[name] else ""))
    rooms = f"{len(waiting)} room{'s'[: len(waiting) != 1]} of {side}"
    return f"{rooms} {'waits' if len(waiting) == 1 else 'wait'} for it; {', '.join(said)}"
