"""Finds requests for whose destination prefill waits though decode has told it: a message of the handshake that is lost. Pure.

Decode sends its addresses once. A prefill rank takes them on a thread of its own; until then it has the request in
Bootstrapping.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pdctl.probes.stuck import UNHEARD_S
from pdctl.probes.stuck.model import Waiting
from pdctl.probes.stuck.peer import HERE
from pdctl.probes.stuck.sides import Side
from pdctl.protocol.model import KVPoll, poll_name

_TOLD = poll_name(KVPoll.WAITING_FOR_INPUT)


def lacks_addresses(there: Collection[tuple[str, int]]) -> bool:
    """Return whether prefill waits for a request's addresses: some rank does, and none has got on with it.

    there: queues and states in which prefill ranks have it.
    """
    states = {state for _, state in there}
    return (
        all(queue == "prefill.bootstrap" for queue, _ in there)
        and KVPoll.BOOTSTRAPPING in states
        and states <= {KVPoll.BOOTSTRAPPING, KVPoll.WAITING_FOR_INPUT}
    )


def has_sent(request: Waiting) -> bool:
    """Return whether decode has sent a request's addresses and heard nothing yet, while prefill has the request."""
    return (request.queue, request.state, request.peer_is) == ("decode.transfer", _TOLD, HERE)


def addresses_lost(room: int, mine: Sequence[Side], other: Sequence[Side], stuck_s: float) -> bool:
    """Return whether all of decode sent a room's addresses ``stuck_s`` seconds ago or more, and prefill still waits for them.

    mine: the stages of the decode server that has it. other: the groups of prefill that its request can be on. Each rank that
    has to do with it was seen to have it twice, and to turn meanwhile.
    """
    units = {one.unit for one in other if room in one.rooms}
    theirs = [one for one in other if one.unit in units]
    if len(units) != 1 or not all(_seen_twice(one, room) for one in (*mine, *theirs)):
        return False
    told = [seen.entry for one in mine for seen in one.rooms[room]]
    waits = [seen.entry for one in theirs for seen in one.rooms[room]]
    return (
        all((one.queue, one.state) == ("decode.transfer", KVPoll.WAITING_FOR_INPUT) for one in told)
        and all((one.clock_s if one.clock_s >= 0 else one.age_s) >= stuck_s for one in told)
        and all(one.age_s < 0 or one.age_s >= UNHEARD_S for one in waits)
        and lacks_addresses([(one.queue, one.state) for one in waits])
    )


def _seen_twice(side: Side, room: int) -> bool:
    """Return whether all ranks of a side turn, and had one request with this room at both looks, as it is."""
    have = side.rooms.get(room, ())
    return (
        len(have) <= len(side.looks)  # else it has several requests, maybe thousands
        and all(look.turned for look in side.looks)
        and sum(len(seen.ranks) for seen in have) == len(side.looks)
        and not any((room, seen.entry.rid) in side.changed for seen in have)
    )
