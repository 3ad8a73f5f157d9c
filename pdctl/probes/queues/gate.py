"""Finds what the metadata gate held back: requests whose own poll said Success and whose gated poll did not. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pdctl.recording.streams import Stream, gated

LOOK_BACK = 60
"""Runs looked at, from the newest back."""
MOST_BACK = 4000
"""Runs looked at where a request that is held now was held in all of those."""
LONG_S = 30.0
"""From this on a hold is a finding: a row that is only late lands within seconds."""


@dataclass(frozen=True)
class Held:
    """A request the gate held on one rank. rounds: how many; since / until: their ordinals; seconds: between them."""

    rank: str
    room: int
    rounds: int
    since: int
    until: int
    seconds: float
    now: bool


def holding(streams: Iterable[tuple[str, Any]]) -> list[Held]:
    """Return the holds in the last LOOK_BACK runs of each (rank name, stream), newest last; now: the last round is one."""
    return sorted((held for rank, stream in streams for held in _of(rank, stream)), key=lambda held: held.until)


def _of(rank: str, stream: Stream) -> list[Held]:
    held: dict[int, list[int]] = {}  # room: rounds, first ordinal, last ordinal, first ns, last ns
    for index in range(max(stream.tail, len(stream) - LOOK_BACK), len(stream)):
        rows = stream.rows(index)
        there = [] if rows is None else rows["room"][gated(rows)].tolist()
        if not there:
            continue
        run = stream.run(index)
        for room in there:
            entry = held.setdefault(room, [0, run.ordinal, run.last, run.t_first, run.t_enter])
            entry[0] += run.repeat
            entry[2], entry[4] = run.last, run.t_enter
    last = stream.last
    _longer(stream, {room: entry for room, entry in held.items() if entry[2] == last})
    return [
        Held(rank, room, rounds, since, until, (t1 - t0) / 1e9, now=until == last)
        for room, (rounds, since, until, t0, t1) in held.items()
    ]


def _longer(stream: Stream, held: dict[int, list[int]]) -> None:
    """Carry the holds that began before the runs looked at back to where they began."""
    index = len(stream) - LOOK_BACK
    if index <= stream.tail:
        return
    begin = stream.run(index).ordinal
    open_holds = {room: entry for room, entry in held.items() if entry[1] == begin}
    for before in range(index - 1, max(stream.tail - 1, index - 1 - MOST_BACK), -1):
        rows = stream.rows(before) if open_holds else None
        if rows is None:
            return
        there = set(rows["room"][gated(rows)].tolist())
        run = stream.run(before)
        for room in list(open_holds):
            if room not in there:
                del open_holds[room]
                continue
            entry = open_holds[room]
            entry[0], entry[1], entry[3] = entry[0] + run.repeat, run.ordinal, run.t_first
