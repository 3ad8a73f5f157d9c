"""Finds request ids that stand for two rooms at once, and rooms that another request had before. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pdctl.probes.several_rooms import several_rooms
from pdctl.probes.stuck.model import Waiting
from pdctl.probes.stuck.sides import Seen, Side
from pdctl.protocol.durations import seconds
from pdctl.report.findings import Finding, finding

_EVIDENCE = 20


def shared_findings(sides: Sequence[Side], waiting: Iterable[tuple[Side, Waiting]]) -> list[Finding]:
    """Return what is found of request ids with several rooms, and of rooms that had another request."""
    found = [_rid_finding(rid, places) for rid, places in _shared_rids(sides)]
    reused: dict[tuple[str, str], tuple[Side, dict[int, str]]] = {}
    for side, request in waiting if any(side.earlier for side in sides) else ():
        if (
            request.progress == "still"
            and request.room in side.earlier
            and (request.room, request.rid) in side.requests
        ):
            earlier = side.earlier[request.room]
            ended = f", which ended there as {earlier.ended}" if earlier.ended else ""
            reused.setdefault((side.cluster, side.unit), (side, {}))[1].setdefault(
                request.room,
                f"Room {request.room} of request {request.rid}, which waits in {request.queue} of {side.title} for"
                f" {seconds(request.age_s)}, was that of request {earlier.rid} {seconds(earlier.age_s)} ago{ended}.",
            )
    return [*found, *(_reused(side, rooms) for side, rooms in reused.values())]


def _reused(side: Side, rooms: Mapping[int, str]) -> Finding:
    """rooms: of a side that another request had before, with what is said of each."""
    said, more = list(rooms.values()), len(rooms) - 1
    return finding(
        "PD147",
        said[0] + (f" So it is with {more} more room{'s'[: more != 1]}." if more else ""),
        group=side.title,
        rooms=tuple(rooms),
        evidence=tuple(said[1:_EVIDENCE]),
        units=(side.unit,),
    )


def _shared_rids(sides: Sequence[Side]) -> Iterator[tuple[str, list[tuple[int, Side, list[Seen]]]]]:
    """Yield each request id that had the same two or more rooms at both looks, and where each of those is."""
    first: dict[str, dict[str, int]] = defaultdict(dict)
    places: dict[tuple[str, str], list[tuple[int, Side, list[Seen]]]] = {}
    for side in sides:  # nearly every id has one room
        known = first[side.cluster].setdefault
        places.update(
            ((side.cluster, rid), []) for room, rid in side.requests if room and rid and known(rid, room) != room
        )
    for side in sides if places else ():
        for (room, rid), seen in side.requests.items():
            those = places.get((side.cluster, rid))
            if those is not None and room and (room, rid) in side.requests_before:
                those.append((room, side, seen))
    for (_, rid), those in places.items():
        if len({room for room, _, _ in those}) > 1:
            yield rid, those


def _rid_finding(rid: str, places: Sequence[tuple[int, Side, list[Seen]]]) -> Finding:
    return several_rooms(
        rid,
        list(dict.fromkeys(room for room, _, _ in places)),
        [f"room {room}: {side.words_of(seen)}" for room, side, seen in places[:_EVIDENCE]],
        group=places[0][1].title,
        units=tuple(dict.fromkeys(side.unit for _, side, _ in places)),
    )
