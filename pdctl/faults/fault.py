"""A fault, and the visits of its site that it may take: plain data and pure decisions. Standard library, msgspec."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import msgspec

from pdctl.faults.choose import selects
from pdctl.faults.kinds import KINDS, Kind, Way
from pdctl.protocol.model import FaultStatus

USED_UP = "hit count reached"
"""Why a fault ended that has done all that it was placed for."""
MAX_SEEN = 4096
"""Rooms whose visits a fault counts; of more, the oldest are forgotten."""


class AimedRank(msgspec.Struct, frozen=True):
    """A decode rank that a fault aims at.

    address: its address for transfers (Mooncake: the session id). Only the address distinguishes two decode servers, so it
    decides if both sides know it. Otherwise dp and tp decide: -1 for any; tp NOBODY if only the address may decide.
    """

    dp: int = -1
    tp: int = -1
    address: str = ""

    def is_at(self, dp: int, tp: int, address: str) -> bool:
        """Return whether a write goes to this rank. A site that doesn't know dp or address gives dp -1 and address "".

        dp -1 counts as dp 0: the plan aims at another dp by address only.
        """
        if self.address and address:
            return self.address == address
        return self.tp in (-1, tp) and self.dp in (-1, max(dp, 0))


NOBODY = -2


@dataclass
class Fault:
    """One fault in one rank. Times are seconds of the rank's monotonic clock.

    target: label of the ranks aimed at, or of the rank that has the fault. delay_s: duration, 0 for a kind without one.
    value: state, dp rank or room, 0 without one. room, rid: only this room or request; 0 and "" for any. hits: maximum number
    of hits (:class:`~pdctl.faults.kinds.Way` defines a hit), 0 for no limit. seed, share: which visits
    (:func:`~pdctl.faults.choose.selects`). at_once: rooms that it may hold or harm at a time.
    stop_failed: end when this many rooms have failed on this rank (lost), 0 for never.
    visits: visits of the site. eligible: visits that matched. fired: visits taken. rooms: rooms among these. passed: chosen
    visits that passed because another room was held. harmed: rooms that a ONCE kind has acted on, each with the decode rank
    written to. released: held writes that were done. dropped: held writes never done, because nobody waited for them any more.
    failed: held writes that the engine could not do.
    until: end of a duration that counts from the first hit, for a kind with such a duration.
    ended: why the fault ended, "" while it is in place.
    """

    id: str
    kind: str
    delay_s: float
    expires: float
    lease_expires: float | None
    target: str
    targets: tuple[AimedRank, ...]
    room: int = 0
    hits: int = 0
    owner: str = ""
    seed: int = 0
    share: float = 1.0
    rid: str = ""
    value: int = 0
    at_once: int = 1
    stop_failed: int = 0
    visits: int = 0
    eligible: int = 0
    fired: int = 0
    passed: int = 0
    rooms: int = 0
    released: int = 0
    dropped: int = 0
    failed: int = 0
    last_room: int = 0
    number: int = 0
    until: float = math.inf
    placed: float | None = None
    ended: str = ""
    seen: dict[int, int] = field(default_factory=dict, repr=False)
    taken: set[int] = field(default_factory=set, repr=False)
    harmed: set[tuple[int, int]] = field(default_factory=set, repr=False)
    lost: set[int] = field(default_factory=set, repr=False)

    @property
    def of(self) -> Kind:
        """Its kind. Raises KeyError for one this version does not know."""
        return KINDS[self.kind]

    @property
    def target_tp(self) -> int:
        """tp of the decode rank aimed at, -1 where there are several or only the address tells."""
        return max(-1, self.targets[0].tp) if len(self.targets) == 1 else -1

    @property
    def ends(self) -> float:
        """The time at which it ends by itself (monotonic seconds): end of TTL, lease or own duration, whichever is first."""
        return min(self.expires, self.until, math.inf if self.lease_expires is None else self.lease_expires)

    def why_over(self, now: float) -> str:
        """Return why it has ended by itself; "" before ``now`` has reached :attr:`ends`."""
        if now < self.ends:
            return ""
        if self.expires <= now:
            return "time is up"
        return "its duration is over" if self.until <= now else "lease lost"

    def aims_at(self, room: int, dp: int, tp: int, address: str, rid: str = "") -> bool:
        """Return whether the fault is meant for a visit of ``room`` (request ``rid``, "" if the site doesn't know it).

        dp, tp, address: the decode rank written to, for a kind that is aimed at one.
        """
        if self.room not in (0, room) or self.rid not in ("", rid):
            return False
        return any(target.is_at(dp, tp, address) for target in self.targets)

    def picks(self, room: int) -> bool:
        """Count a matching visit of ``room``. Return whether seed and share select it."""
        if self.share >= 1.0:
            return True
        visit = self.seen.pop(room, 0) + 1
        self.seen[room] = visit
        if len(self.seen) > MAX_SEEN:
            del self.seen[next(iter(self.seen))]
        return selects(self.seed, self.kind, room, visit, self.share)

    def has_harmed(self, room: int, tp: int) -> bool:
        """Return whether it has acted on ``room`` for decode rank ``tp`` (-1: a site without a decode rank)."""
        return (room, tp) in self.harmed

    def may_take(self, room: int, held: set[int]) -> bool:
        """Return whether the limits (hits, "one room at a time") allow ``room`` while rooms ``held`` are held."""
        way = self.of.way
        busy = self.taken if way is Way.WHILE else held
        if room not in busy and len(busy) >= self.at_once:
            return False
        if not self.hits:
            return True
        if way is Way.HOLDS:
            return self.rooms < self.hits or room in held
        return self.fired < self.hits

    def take(self, room: int, now: float, tp: int = -1) -> None:
        """Count a taken visit of ``room``. tp: the decode rank written to."""
        if self.of.way is Way.ONCE and len(self.harmed) < MAX_SEEN:
            self.harmed.add((room, tp))
        if self.of.spans and not self.fired:
            self.until = now + self.delay_s
        if room not in self.taken:
            self.rooms += 1
        self.last_room = room
        self.fired += 1
        if len(self.taken) < MAX_SEEN:
            self.taken.add(room)

    def is_used_up(self) -> bool:
        """Return whether it has taken all it may."""
        return bool(self.hits) and (self.rooms if self.of.way is Way.HOLDS else self.fired) >= self.hits

    def status(self, now: float, pending: int) -> FaultStatus:
        """Return the status for clients. ``pending``: number of writes held back or under way.

        It acts no more from :attr:`ends` on, also before the keeper has ended it.
        """
        ended = self.ended or self.why_over(now)
        return FaultStatus(
            id=self.id, kind=self.kind, target=self.target, delay_s=self.delay_s,
            left_s=0.0 if ended else self.ends - now, visits=self.visits, eligible=self.eligible,
            fired=self.fired, pending=pending, owner=self.owner, room=self.room, hits=self.hits, released=self.released,
            dropped=self.dropped, failed=self.failed, last_room=self.last_room, ended=ended,
            leased=self.lease_expires is not None, seed=self.seed, share=self.share, rid=self.rid, value=self.value,
            passed=self.passed, age_s=-1.0 if self.placed is None else max(0.0, now - self.placed),
        )  # fmt: skip


@dataclass
class Held:
    """A write held back. ``place``: its destination (session and slot), equal for two writes to the same row."""

    due: float
    fault: Fault
    room: int
    release: Callable[[], object]
    still_wanted: Callable[[], bool] | None = None
    place: Hashable = None
    why_dropped: str = field(default="")
