"""What ``stuck`` takes and gives: two looks at every rank in, waiting requests and findings out."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from pdctl.probes.turns import RECENT_S, Turn
from pdctl.protocol.documents import Document
from pdctl.protocol.model import Identity
from pdctl.protocol.requests import Rooms
from pdctl.report.findings import Finding


@dataclass(frozen=True)
class Last:
    """The last that a recording says of a room: what, seconds before the second look, and why it failed where it did.

    ended: whether the room is over there (Success or Failed). came: a request with the room was there; False where only a
    message of the other side names it.
    """

    what: str
    age_s: float
    ended: bool
    reason: str = ""
    came: bool = True


@dataclass(frozen=True)
class Earlier:
    """Another request that came to a rank with the room of one that waits there now: its id, and seconds since it came.

    ended: the last state that the room had before the one that waits came, in words, "" unknown.
    """

    rid: str
    age_s: float
    ended: str = ""


@dataclass(frozen=True)
class RankLooks:
    """One rank at two moments. silence: why it gave no answer. last: what its recording says of rooms that were asked about.

    recorded: False where there is no recording to ask. since: seconds since a request (room, rid) came, of those that came
    before they came into the queue they are in. earlier: rooms of waiting requests that another request had before.

    whole_s: for so long before the second look its recording has every request that came; None where it has no recording, or
    one that may lack some. whole_why: what limits that, in words. took_in_s: seconds since it last took in new requests, as
    its recording or its main thread shows, None unknown. turn: whether and when its loop turned, None not asked.
    landed: whether the metadata of a room is in its slot, of rooms that were asked about. up_s: seconds since its process
    began, None unknown.

    Of recordings: unseen_s is how long before the end of them all the rank was last seen; ages in its looks count to then,
    those in ``last`` to the end. stood_s: for how long its loop had not turned then. problems: what in its recording can't be
    trusted, in words.
    """

    identity: Identity
    state: str
    silence: str = ""
    first: Rooms | None = None
    second: Rooms | None = None
    last: dict[int, Last] = field(default_factory=dict)
    recorded: bool = False
    since: dict[tuple[int, str], float] = field(default_factory=dict)
    earlier: dict[int, Earlier] = field(default_factory=dict)
    whole_s: float | None = None
    whole_why: str = ""
    took_in_s: float | None = None
    turn: Turn | None = None
    landed: dict[int, bool] = field(default_factory=dict)
    up_s: float | None = None
    unseen_s: float = 0.0
    stood_s: float = 0.0
    problems: tuple[str, ...] = ()

    @property
    def unturned_s(self) -> float | None:
        """Seconds between the looks, where its loop did not turn in them; None where it did, or that is not known."""
        first, second = self.first, self.second
        if first is None or second is None or not first.ticks == second.ticks > 0:
            return None
        return (second.mono_ns - first.mono_ns) / 1e9

    @property
    def turned(self) -> bool:
        """Whether its loop surely turned: it began two turns between the looks, or was recorded to turn until the end."""
        first, second = self.first, self.second
        if first is None or second is None:
            return False
        if self.state == "recorded":
            return second.ticks > 0 and not self.unseen_s and self.stood_s < RECENT_S
        return second.ticks - first.ticks > 1


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a request is, on the ranks that say the same of it.

    slot: -1 without one. kv: tokens of KV space held, -1 unknown. locked: of them or besides, tokens of the prefix cache
    that it keeps from eviction, -1 unknown. age_s: -1.0 unknown.
    """

    ranks: tuple[str, ...]
    queue: str
    state: str
    age_s: float
    slot: int
    kv: int
    locked: int = -1


class Waiting(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request that waits on one side.

    side: its group of ranks. queue, state: of the rank that has it longest; ranks: all of the group that have it.
    peer: what the other side says of its room, in words; peer_is: in one word, of pdctl.probes.stuck.peer (``here``,
    ``ended``, ``gone``, ``never``, ``later``, ``absent``, ``unread``, ``silent``, "" where nobody can say).
    peer_ended_s: seconds since it was over there, None while it is not. peer_without_s: for how long the other side is
    known to lack it, seconds.
    progress: ``moving`` (it changed
    between the looks), ``in line`` (others ahead of it did), ``still``, ``new``. cover: the variable of the time-out that
    will end it, ``nothing`` or ``unknown``; limit_s and left_s of it, None without one. holds: in words. unseen_s: how
    long before the end of the recordings its side was last seen, to which its ages count; 0.0 of live ranks.
    """

    room: int
    rid: str
    side: str
    role: str
    queue: str
    state: str
    age_s: float
    ranks: tuple[Place, ...]
    peer: str
    peer_ended_s: float | None = None
    peer_is: str = ""
    peer_without_s: float = 0.0
    progress: str = "still"
    cover: str = "nothing"
    limit_s: float | None = None
    left_s: float | None = None
    note: str = ""
    holds: str = ""
    cluster: str = ""
    unseen_s: float = 0.0


class SideSpace(msgspec.Struct, frozen=True):
    """Memory of one group of ranks, of the rank that has least. full: why nobody gets space now, "" when somebody may."""

    side: str
    rank: str
    head: int
    needs: int
    kv_free: int
    reserved: int
    slots: int
    slots_free: int
    full: str = ""
    kv: int = -1


class StuckDocument(Document, frozen=True, kw_only=True, tag="pdctl.stuck"):
    """Answer of ``pdctl stuck``. pause_s: between the two looks. hidden: waiting requests younger than asked for."""

    requests: tuple[Waiting, ...]
    space: tuple[SideSpace, ...] = ()
    findings: tuple[Finding, ...] = ()
    pause_s: float = 0.0
    hidden: int = 0
    partial: bool = False
    problems: tuple[str, ...] = ()
