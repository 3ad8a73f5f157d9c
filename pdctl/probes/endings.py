"""Finds servers that have ended: which rank went first, when and how, and what waits for it. Pure.

A server that was restarted, or that another has replaced, and one that ended in good order without a request is none.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pdctl.protocol.durations import seconds
from pdctl.protocol.model import OTHER, UNKNOWN, WAITS_FOR_OTHER, Identity
from pdctl.protocol.requests import RoomEntry, Rooms
from pdctl.report.findings import Finding, finding
from pdctl.targets import nodeset

CLOSED = "closed"
MOST_ROOMS, MOST_FIRST = 8, 4
TURN_NS = 200_000_000
"""Last signs that are nearer than this tell no order: ranks in step write once a turn."""


@dataclass(frozen=True)
class Ending:
    """A rank whose process has ended.

    last_ns: its last sign on the clock of the wall, 0 unknown. age_s: seconds since then, None unknown. recorded: the state of
    its recording, "" without one. raised: what its recording says of the exception that ended its scheduler, "" without one.
    status: exit status as waitpid gives it, 0 unknown or good. held: rooms in its polled queues at the end. known: all rooms
    that its recording tells of.
    """

    identity: Identity
    last_ns: int = 0
    age_s: float | None = None
    recorded: str = ""
    raised: str = ""
    status: int = 0
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
    left = [one for one in seen.living if nodeset.server(one) == nodeset.server(who)]
    peers = [one for one in seen.living if one.cluster == who.cluster and nodeset.server(one) != nodeset.server(who)]
    others = [one for one in peers if one.role == who.role]
    waiting = _waiting(ranks, seen, alone=not others)
    held = frozenset(room for one in ranks for room in one.held)
    if not left and not waiting:
        replaced = any(one.started_wall_ns > max(rank.last_ns for rank in ranks) for one in others)
        beside = [
            one for one in seen.ended if one.identity.cluster == who.cluster and one.identity.role == OTHER[who.role]
        ]
        together = not seen.living and not any(rank.in_order for rank in (*ranks, *beside)) and bool(beside)
        harmless = not held and not together and (not peers or all(one.in_order for one in ranks))
        if replaced or harmless or (seen.living and not peers):
            return None
    first = _first(ranks)
    name = nodeset.server_names([one.identity for one in seen.ended] + list(seen.living))[nodeset.server(who)]
    known = {(one.dp, one.pp, one.cp, one.tp) for one in (*(rank.identity for rank in ranks), *left)}
    some = f"{len(ranks)} of {len(known)} ranks of {name}" if left else f"server {name}"
    when = f" {seconds(first[0].age_s)} ago" if first[0].age_s is not None else ""
    labels = " or ".join(one.identity.label for one in first[:MOST_FIRST])
    summary = f"{some} {'have' if left and len(ranks) > 1 else 'has'} ended{when}: {labels} first, {how(first[0])}. "
    if waiting:
        summary += _wait(waiting, OTHER[who.role])
    else:
        were = "1 room was in it" if len(held) == 1 else f"{len(held)} rooms were in it"
        summary += were if held else "No request waits for it"
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
    )


def _first(ranks: Sequence[Ending]) -> list[Ending]:
    """Return the rank that ended first; several where their last signs don't tell, being as near as two turns are."""
    killed = [one for one in ranks if one.status & 0x7F]
    among = killed or [one for one in ranks if not one.raised and not one.in_order] or list(ranks)
    among.sort(key=lambda one: one.last_ns or 1 << 62)
    return [one for one in among if one.last_ns - among[0].last_ns < TURN_NS]


def how(one: Ending) -> str:
    """Return how a rank ended, in words."""
    if one.status & 0x7F:
        return f"killed by {_signal(one.status & 0x7F)}"
    if one.raised:
        return one.raised
    if one.status:
        return f"with exit code {one.status >> 8 & 0xFF}"
    if one.recorded == CLOSED:
        return "in good order, as one that is told to end"
    killed = (
        "killed, out of memory or crashed: it had no time to close its recording"
        if one.recorded
        else "how is not known"
    )
    return f"{killed} (the engine's log or the kernel's may say more)"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _said(one: Ending) -> str:
    last = f"last sign {seconds(one.age_s)} ago" if one.age_s is not None else "when it was last seen is not known"
    held = f", {len(one.held)} rooms in its queues" if one.held else ""
    return f"{one.identity.label} (pid {one.identity.pid}): {last}, {how(one)}{held}"


def _waiting(ranks: Sequence[Ending], seen: Endings, *, alone: bool) -> list[tuple[RoomEntry, str]]:
    """Return the requests of the other side that wait for this server, each room once, with what ends it.

    alone: no other server could be the one that they wait for. Else it has to have known the room.
    """
    who = ranks[0].identity
    known = frozenset(room for one in ranks for room in one.known)
    found: dict[int, tuple[RoomEntry, str]] = {}
    for n, rooms in seen.rooms.items():
        one = seen.living[n]
        if one.role != OTHER[who.role] or one.cluster != who.cluster:
            continue
        for entry in rooms.rooms:
            if entry.room and entry.queue in WAITS_FOR_OTHER and (alone or entry.room in known):
                found.setdefault(entry.room, (entry, _ends(rooms, entry)))
    return list(found.values())


def _ends(rooms: Rooms, entry: RoomEntry) -> str:
    lookup = rooms.lookups.get(entry.bootstrap) if entry.queue == "decode.pending" else None
    if lookup is not None and lookup.left_s is not None:
        return f"attempt {lookup.most} at its bootstrap server in {seconds(lookup.left_s)}"
    covers = {(cover.queue, cover.state): cover for cover in rooms.covers}
    cover = covers.get((entry.queue, entry.state)) or covers.get((entry.queue, UNKNOWN))
    if cover is None or not cover.limit_s:
        return "no time-out"
    if cover.limit_s < 0:
        return "what ends it is not known"
    left = f" in {seconds(max(0.0, cover.limit_s - entry.clock_s))}" if entry.clock_s >= 0 else ""
    return f"{cover.name}{left}"


def _wait(waiting: Sequence[tuple[RoomEntry, str]], side: str) -> str:
    ends: Counter[str] = Counter(words.partition(" in ")[0] for _, words in waiting)
    longest: dict[str, str] = {}
    for _, words in sorted(waiting, key=lambda one: one[0].clock_s):
        longest.setdefault(words.partition(" in ")[0], words.partition(" in ")[2])
    said = []
    for name, count in ends.items():
        if name == "no time-out":
            said.append(f"no time-out ends {count}")
        elif name == "what ends it is not known":
            said.append(f"what ends {count} is not known")
        else:
            said.append(f"{name} ends {count}" + (f" in {longest[name]} at most" if longest[name] else ""))
    rooms = f"{len(waiting)} room{'s'[: len(waiting) != 1]} of {side}"
    return f"{rooms} {'waits' if len(waiting) == 1 else 'wait'} for it; {', '.join(said)}"


__all__ = ["Ending", "Endings", "how", "judge"]
