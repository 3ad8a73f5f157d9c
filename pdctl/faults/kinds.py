"""What can be broken: one row a kind of fault, plain data that ranks and clients share.

A new fault is a row here and its hook in an engine. Its option, its help, ``faults --available`` and the table in
docs/safety.md follow from the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from pdctl.faults.limits import MAX_TTL_S
from pdctl.protocol.model import KVPoll, poll_name

SEAM_PREFIX = "fault."
"""A rank that carries the site of a kind has a present Seam ``fault.<kind>``; its detail names the function."""

MAX_SKEW_S = 30.0
"""Longest sleep of a slow poll: the engine's own watchdogs and Gloo's timeouts are minutes, and nothing may reach them."""


class Aim(Enum):
    """What ``--rank`` means for a kind: the decode rank written to, or the rank the fault sits in."""

    AIMED_AT = "aimed at"
    ON = "on"


STATES = {poll_name(state): int(state) for state in KVPoll}
"""States that a poll can be made to say, by the engine's names of them."""


class Parameter(Enum):
    """The parameter of a kind: its noun, and how its option shows it.

    A duration is in seconds; the kind's row limits it. Every other parameter is a number up to ``most``. named: names for
    numbers. least: the smallest number that users may write, None if they write a name.
    """

    NONE = ("value", "")
    DURATION = ("duration", "TIME")
    STATE = ("state", "STATE", max(STATES.values()), STATES)
    DP = ("dp rank", "DP", 1 << 20, None, 0)
    ROOM = ("room", "ROOM|any", (1 << 64) - 1, {"any": 0}, 1)

    def __init__(
        self,
        noun: str,
        metavar: str,
        most: int = 0,
        named: Mapping[str, int] | None = None,
        least: int | None = None,
    ) -> None:
        self.noun, self.metavar, self.most, self.least = noun, metavar, most, least
        self.named: Mapping[str, int] = named or {}


class Way(Enum):
    """How a kind acts on a room, which decides what "one room at a time" and ``--hits`` count.

    HOLDS: delays a write or message of a room. The next room is taken when the last one is done. Hits count rooms.
    ONCE: acts on a room at one moment. Hits count rooms.
    WHILE: acts again and again while the fault is in place, on the rooms that it met first. Hits count single acts.
    """

    HOLDS = "holds"
    ONCE = "once"
    WHILE = "while"


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    what: what it breaks, in words. carrier: role of the ranks that carry its site, "any" for both. parameter: its parameter;
    a duration is at most most_s seconds. knows_rid: its site sees request ids, not only rooms. per_room: it acts on single
    rooms; otherwise it accepts neither a room nor a request. spans: its duration starts at the first hit and ends the fault.
    alike: ranks that carry it together must take the same request, so that request must be named.
    """

    name: str
    what: str
    carrier: str
    aim: Aim
    way: Way
    parameter: Parameter = Parameter.NONE
    most_s: float = MAX_TTL_S
    knows_rid: bool = False
    per_room: bool = True
    spans: bool = False
    alike: bool = False

    @property
    def seam(self) -> str:
        """Name of the Seam that a rank has where it carries the site."""
        return SEAM_PREFIX + self.name

    @property
    def role(self) -> str:
        """Role of the ranks that ``--rank`` means, "any" for both."""
        return "decode" if self.aim is Aim.AIMED_AT else self.carrier

    @property
    def to_the_end(self) -> bool:
        """Whether held writes stay held until the fault ends: the kind has no duration."""
        return self.parameter is not Parameter.DURATION


DELAY_METADATA = "delay-metadata"
DROP_METADATA = "drop-metadata"
STALE_METADATA = "stale-metadata"
CORRUPT_ROOM = "corrupt-room"
FAIL_TRANSFER = "fail-transfer"
STALL_TRANSFER = "stall-transfer"
DROP_STATUS = "drop-status"
SKEW_POLL = "skew-poll"
FLIP_POLL = "flip-poll"
DELAY_REGISTRATION = "delay-registration"
HIDE_REGISTRATION = "hide-registration"
MISROUTE = "misroute"
ABORT = "abort"
SILENCE_HEARTBEAT = "silence-heartbeat"
DUPLICATE_ROOM = "duplicate-room"

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(DELAY_METADATA, "its metadata row lands this much after Success", "prefill", Aim.AIMED_AT, Way.HOLDS,
             Parameter.DURATION),
        Kind(DROP_METADATA, "its metadata row does not land while the fault is in place", "prefill", Aim.AIMED_AT,
             Way.HOLDS),
        Kind(STALE_METADATA, "its metadata slot holds another room", "prefill", Aim.AIMED_AT, Way.ONCE,
             Parameter.ROOM),
        Kind(CORRUPT_ROOM, "the room in its metadata row is wrong", "prefill", Aim.AIMED_AT, Way.ONCE),
        Kind(FAIL_TRANSFER, "the transfer of a room to it fails", "prefill", Aim.AIMED_AT, Way.ONCE),
        Kind(STALL_TRANSFER, "it hears this much later that a room's transfer is done", "prefill", Aim.AIMED_AT,
             Way.HOLDS, Parameter.DURATION),
        Kind(DROP_STATUS, "the status message of a room does not reach it while the fault is in place", "prefill",
             Aim.AIMED_AT, Way.HOLDS),
        Kind(SKEW_POLL, "it comes this much late to its polls", "any", Aim.ON, Way.WHILE, Parameter.DURATION,
             MAX_SKEW_S),
        Kind(FLIP_POLL, "its own poll of a room says this state", "any", Aim.ON, Way.WHILE, Parameter.STATE,
             knows_rid=True),
        Kind(DELAY_REGISTRATION, "it registers a room's dp rank this much late", "prefill", Aim.ON, Way.HOLDS,
             Parameter.DURATION),
        Kind(HIDE_REGISTRATION, "the bootstrap server's answers to it lack a room", "decode", Aim.ON, Way.WHILE),
        Kind(MISROUTE, "it registers a room under this dp rank", "prefill", Aim.ON, Way.ONCE, Parameter.DP),
        Kind(ABORT, "its engine aborts a room on this stage alone", "any", Aim.ON, Way.ONCE, knows_rid=True),
        Kind(SILENCE_HEARTBEAT, "its heartbeats to one prefill server get no answer for this long", "decode", Aim.ON,
             Way.WHILE, Parameter.DURATION, per_room=False, spans=True),
        Kind(DUPLICATE_ROOM, "a request enters it with the room of an earlier one that is still there", "any", Aim.ON,
             Way.ONCE, Parameter.ROOM, knows_rid=True, alike=True),
    )
}  # fmt: skip

METADATA_KINDS = frozenset({DELAY_METADATA, DROP_METADATA, STALE_METADATA, CORRUPT_ROOM})
"""Kinds whose site is the write of a metadata row."""
HELD_METADATA = frozenset({DELAY_METADATA, DROP_METADATA})
"""Of these, the ones that hold the row back."""
HELD_STATUS = frozenset({STALL_TRANSFER, DROP_STATUS})
"""Kinds that hold back what tells decode of the end of a transfer: decode waits, until its time-out."""


def names(kinds: Iterable[Kind] = tuple(KINDS.values())) -> str:
    """Return the names as a list for people."""
    return ", ".join(kind.name for kind in kinds)
