"""Finds requests that wait to be computed and that nobody takes, though nothing that can be seen keeps them waiting. Pure.

What an engine's scheduler goes by is not all seen: a pause, for one. So it is said what there is place for, and no cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdctl.probes.stuck.model import RankLooks, Waiting
from pdctl.probes.stuck.sides import Side
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import KVPoll
from pdctl.protocol.requests import Rooms
from pdctl.report.findings import Finding, finding

_EVIDENCE = 20


def untaken(side: Side, stages: Sequence[Side], waiting: Sequence[Waiting]) -> Iterator[Finding]:
    """Yield that requests of a side are not taken, nothing where something keeps them waiting, or where that is not known.

    stages: the groups of its server that have the same requests; the first of them tells it. waiting: those that have been in
    its queue ``waiting`` for long, while none left it between the looks.
    """
    ones = [one for one in waiting if _is_on_all(one, side)]
    if not ones or side is not stages[0]:
        return
    looks = [look for one in stages for look in one.looks]
    busy = {"decode.retracted", *(("running",) if side.role == "prefill" else ())}
    if not all(look.turned for look in looks) or any(busy & _queues(look) for look in looks):
        return
    places = [_place(side.role, look) for look in side.looks]
    if not all(places):
        return
    oldest = max(ones, key=lambda one: one.age_s)
    many = (
        f"{len(ones)} requests, the oldest room {oldest.room}, wait" if len(ones) > 1 else f"Room {oldest.room} waits"
    )
    are = "are" if len(ones) > 1 else "is"
    yield finding(
        "PD156",
        f"{many} to be computed on {side.title} for {seconds(oldest.age_s)}, and {are} not taken, though its loop turns."
        f" {places[0][0].upper()}{places[0][1:]}. The cause is not seen.",
        group=side.title,
        rooms=tuple(dict.fromkeys((oldest.room, *(one.room for one in ones)))),
        ranks=tuple(dict.fromkeys(rank for one in ones for place in one.ranks for rank in place.ranks)),
        evidence=(
            *(f"{side.rank(look)}: {place}; {_turns(look)}" for look, place in zip(side.looks, places, strict=True)),
            *(f"room {one.room} (rid {one.rid}, {seconds(one.age_s)})" for one in ones[:_EVIDENCE]),
        ),
        units=(side.unit,),
    )


def _is_on_all(one: Waiting, side: Side) -> bool:
    """Return whether every rank of a side has a request in its queue ``waiting``, and nowhere else."""
    queues = [place.queue for place in one.ranks for _ in place.ranks]
    return queues == ["waiting"] * len(side.looks)


def _queues(look: RankLooks) -> set[str]:
    """Return the queues in which a rank had a request at one of the looks."""
    return {
        queue for rooms in (look.first, look.second) if rooms is not None for queue in rooms.rooms.distinct("queue")
    }


def _place(role: str, look: RankLooks) -> str:
    """Return what there was place for on a rank at both looks, in words, "" where there was none, or that is not known."""
    if look.first is None or look.second is None or _running(look.first) != _running(look.second):
        return ""
    then, now = ((_in_batch if role == "decode" else _in_memory)(rooms) for rooms in (look.first, look.second))
    return now if then else ""


def _running(rooms: Rooms) -> set[tuple[int, str]]:
    return {(room, rid) for queue, room, rid in rooms.rooms.rows("queue", "room", "rid") if queue == "running"}


def _in_batch(rooms: Rooms) -> str:
    """Return how many places of decode's running batch are taken, in words, "" for all of them."""
    taken, places = len(_running(rooms)), rooms.space.batch
    return f"{taken} of {places} places of the running batch are taken" if taken < places else ""


def _in_memory(rooms: Rooms) -> str:
    """Return what a prefill rank has free, in words, "" where some request that waits may have to wait for it."""
    space = rooms.space
    waits = [one for one in rooms.rooms if one.queue == "waiting"]
    ready = all(one.slot >= 0 and one.tokens >= 0 and one.state == KVPoll.WAITING_FOR_INPUT for one in waits)
    free = space.kv_free + space.evictable
    most = max((one.tokens for one in waits), default=0) + _MORE_PAGES * max(1, space.page_size)
    if not ready or not space.countable or space.requests_free < 1 or space.kv_free < 0 or free < most:
        return ""
    return f"nothing is computed, and {space.requests_free} rows and {free} KV tokens are free"


_MORE_PAGES = 3
"""What a prompt takes of the pool besides: its end is rounded up, and the first token of the answer has a page."""


def _turns(look: RankLooks) -> str:
    """Return how often the loop of a rank that turned did so, in words."""
    assert look.first is not None
    assert look.second is not None
    return f"its loop began {look.second.ticks - look.first.ticks} turns between the looks"
