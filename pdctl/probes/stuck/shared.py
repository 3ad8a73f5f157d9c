"""Finds request ids that stand for two rooms at once, and rooms that another request had before. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from pdctl.probes.stuck.model import Waiting
from pdctl.probes.stuck.sides import Key, Seen, Side
from pdctl.protocol.durations import seconds
from pdctl.report.findings import Finding, finding

_SHOWN = 5


def shared_findings(sides: Sequence[Side], waiting: Iterable[tuple[Side, Waiting]]) -> list[Finding]:
    """Return what is found of request ids with several rooms, and of rooms that had another request."""
    found = [_rid_finding(rid, places) for rid, places in _shared_rids(sides)]
    for side, request in waiting:
        if (
            request.progress == "still"
            and request.room in side.earlier
            and (request.room, request.rid) in side.requests
        ):
            earlier = side.earlier[request.room]
            ended = f", which ended there as {earlier.ended}" if earlier.ended else ""
            found.append(
                finding(
                    "PD147",
                    f"Room {request.room} of request {request.rid}, which waits in {request.queue} of {side.title} for"
                    f" {seconds(request.age_s)}, was that of request {earlier.rid} {seconds(earlier.age_s)} ago{ended}.",
                    group=side.title,
                    rooms=(request.room,),
                    units=(side.unit,),
                )
            )
    return found


def _shared_rids(sides: Sequence[Side]) -> Iterator[tuple[str, list[tuple[int, Side, list[Seen]]]]]:
    """Yield each request id that had the same two or more rooms at both looks, and where each of those is."""
    places: dict[tuple[str, str], list[tuple[int, Side, list[Seen]]]] = defaultdict(list)
    for side in sides:
        many: dict[str, list[Key]] = defaultdict(list)
        for key in side.requests:
            if key[0] and key[1]:
                many[key[1]].append(key)
        for rid, keys in many.items():
            places[side.cluster, rid] += [(room, side, side.requests[room, rid]) for room, _ in keys]
    for (_, rid), those in places.items():
        if len({room for room, _, _ in those}) > 1:
            lasting = [one for one in those if (one[0], rid) in one[1].requests_before]
            if len({room for room, _, _ in lasting}) > 1:
                yield rid, lasting


def _rid_finding(rid: str, places: Sequence[tuple[int, Side, list[Seen]]]) -> Finding:
    rooms = tuple(dict.fromkeys(room for room, _, _ in places))
    named = ", ".join(map(str, rooms[:_SHOWN])) + (" …" if len(rooms) > _SHOWN else "")
    return finding(
        "PD147",
        f"rid {rid} has {len(rooms)} rooms at the same time: {named}.",
        group=places[0][1].title,
        rooms=rooms,
        evidence=tuple(f"room {room}: {side.words(seen)}" for room, side, seen in places[:20]),
        units=tuple(dict.fromkeys(side.unit for _, side, _ in places)),
    )


__all__ = ["shared_findings"]
