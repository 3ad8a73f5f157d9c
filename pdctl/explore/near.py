"""The schedules near a recorded one: each rank's part as recorded, a round earlier, or a round later. Pure.

A window of rounds around the first difference of a group (its newest rounds where there is none) becomes a schedule: when
each request was Success on each rank, when its row was in the slot, or when a rank had it on its handshake list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from pdctl.explore.policies import POLICIES, Policy
from pdctl.explore.space import MOST_RANKS, Cell, Schedule, Space
from pdctl.probes.queues.compare import Comparison, Polled, compare
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import KVPoll
from pdctl.recording.reader import Item, Recording, Stream

WINDOW = 4
"""Rounds looked at: two before the one in which the ranks part, and one after it."""
MOST_ROOMS = 12
"""Requests taken over at most: those on which the ranks part, then the others in the order of their list."""

_QUEUES = {"decode.transfer": "transfer", "decode.prealloc": "receiver"}


@dataclass(frozen=True)
class Recorded:
    """A window of a group's rounds. first: ordinal of its round 0. parted: the ordinal in which the ranks part, -1 never."""

    queue: str
    machine: str
    ranks: tuple[str, ...]
    first: int
    parted: int
    schedule: Schedule
    left_out: int

    @property
    def text(self) -> str:
        """The window in words."""
        ranks, requests = len(self.ranks), self.schedule.requests
        what = f"part in round {self.parted}" if self.parted >= 0 else "agree"
        more = f" ({self.left_out} more left out)" if self.left_out else ""
        return (
            f"{ranks} ranks × {requests} request{'s' * (requests != 1)}{more}, rounds {self.first} to"
            f" {self.first + self.schedule.rounds - 1} of {self.queue}; as recorded they {what}"
        )


def recorded(recordings: Sequence[Recording]) -> Recorded:
    """Return the window of the first group that parts, of any that has rounds otherwise.

    Raises PdctlError (PARTIAL) where there is none: no two ranks of one group have rounds of a queue the explorer models.
    """
    found = []
    for group in _groups(recordings):
        for queue in _QUEUES:
            streams = [recording.stream(queue, "attn-tp") for recording in group]
            whole = all(streams) and 2 <= len(group) <= MOST_RANKS
            # A rank that never polled skipped the very first round: that is what parted them.
            skipped = queue == "decode.prealloc" and any(streams) and len(group) > 1
            if not whole and not skipped:
                continue
            seen = compare([Polled(s, r.visits.get(queue)) for s, r in zip(streams, group, strict=True)])
            if seen.difference is not None or (whole and seen.last >= seen.first):
                found.append((seen.difference is None, queue, group, seen))
    if not found:
        raise PdctlError(
            "no two ranks of one group have rounds of decode.transfer or decode.prealloc to start from",
            "Give the recordings of a whole decode group, or search a model: --model ranks=2,requests=3.",
            Exit.PARTIAL,
        )
    _, queue, group, seen = min(found, key=lambda entry: entry[0])
    return _window(queue, group, seen)


def space_near(policy: Policy, window: Recorded, near: int) -> Space:
    """Return the schedules in which everything happens at most ``near`` rounds from where it was recorded."""
    schedule = window.schedule
    late = schedule.rounds

    def around(cell: Cell) -> tuple[Cell, ...]:
        firsts, seconds = (
            range(max(0, at - near), min(late, at + near) + 1) for at in (cell.first, max(cell.first, cell.second))
        )
        stale = cell.flag and not policy.zeroed
        cells = [Cell(a, max(a, b), int(stale and b > a)) for a, b in product(firsts, seconds)]
        return tuple(dict.fromkeys([_own(policy, cell), *cells]))

    return Space(
        policy,
        schedule.ranks,
        schedule.requests,
        late,
        tuple((at,) for at in schedule.arrivals),
        tuple(around(cell) for row in schedule.cells for cell in row),
        schedule.named,
    )


def policies_for(window: Recorded) -> list[Policy]:
    """Return the policies that are about the window's queue."""
    return [policy for policy in POLICIES.values() if policy.machine == window.machine]


def as_recorded(policy: Policy, window: Recorded) -> Schedule:
    """Return the recorded schedule as ``policy`` can meet it: without former owners' rooms where slots are zeroed."""
    schedule = window.schedule
    cells = tuple(tuple(_own(policy, cell) for cell in row) for row in schedule.cells)
    return Schedule(schedule.rounds, schedule.arrivals, cells, schedule.named)


def _own(policy: Policy, cell: Cell) -> Cell:
    return Cell(cell.first, cell.second, 0 if policy.zeroed else cell.flag)


def _groups(recordings: Sequence[Recording]) -> list[list[Recording]]:
    groups: dict[str, list[Recording]] = {}
    for recording in recordings:
        for info in recording.identity.groups:
            if info.kind == "attn-tp" and info.size > 1:
                groups.setdefault(info.key, []).append(recording)
    return [sorted(group, key=lambda r: r.identity.tp) for group in groups.values()]


def _window(queue: str, group: Sequence[Recording], seen: Comparison) -> Recorded:
    parted = seen.difference.ordinal if seen.difference is not None else -1
    centre = parted if parted >= 0 else seen.last
    first = max(0, centre - WINDOW // 2)
    streams = [recording.stream(queue, "attn-tp") for recording in group]
    lists = [[_items(stream, first + at) for at in range(WINDOW)] for stream in streams]
    rooms: dict[int, int] = {}
    for at in range(WINDOW):
        for mine in lists:
            for room in mine[at]:
                rooms.setdefault(room, at)
    if not rooms:
        raise PdctlError(
            f"the requests of round {centre} of {queue} can't be read from the recordings any more",
            "Search a model instead: --model ranks=2,requests=3.",
            Exit.PARTIAL,
        )
    apart = _apart(lists, centre - first)
    chosen = sorted(sorted(rooms, key=lambda room: room not in apart)[:MOST_ROOMS], key=list(rooms).index)
    part = _transfer_part if _QUEUES[queue] == "transfer" else _receiver_part
    return Recorded(
        queue=queue,
        machine=_QUEUES[queue],
        ranks=tuple(recording.identity.label for recording in group),
        first=first,
        parted=parted,
        schedule=Schedule(
            WINDOW,
            tuple(rooms[room] for room in chosen),
            tuple(tuple(part(mine, room, centre - first) for room in chosen) for mine in lists),
            tuple(chosen),
        ),
        left_out=len(rooms) - len(chosen),
    )


def _items(stream: Stream | None, ordinal: int) -> dict[int, Item]:
    run = stream.at(ordinal) if stream is not None else None
    items = stream.items(run) if stream is not None and run is not None else None
    return {item.room: item for item in items or ()}


def _apart(lists: list[list[dict[int, Item]]], at: int) -> set[int]:
    """Return the rooms that ranks treat differently in a round, or that not all have then or in the next."""
    rooms = {room for mine in lists for now in mine[at : at + 2] for room in mine[at] | now}
    return {
        room
        for room in rooms
        if len({mine[at][room].action if room in mine[at] else -1 for mine in lists}) > 1
        or len({room in mine[min(at + 1, WINDOW - 1)] for mine in lists}) > 1
    }


def _transfer_part(mine: list[dict[int, Item]], room: int, parted: int) -> Cell:
    success = next((at for at, items in enumerate(mine) if _is(items, room, KVPoll.SUCCESS)), _after(mine, room))
    decided = enumerate(mine[: parted + 1])  # of a run that hangs, what it saw before is told of its last round as well
    seen = [(at, items[room].found) for at, items in decided if room in items and items[room].found is not None]
    landed = next((at for at, found in seen if found == room), seen[-1][0] + 1 if seen else success)
    stale = any(found not in (None, 0, room) for _, found in seen)
    return Cell(success, max(success, landed), int(stale and landed > success))


def _receiver_part(mine: list[dict[int, Item]], room: int, parted: int) -> Cell:
    answered = next((at for at, items in enumerate(mine) if room in items), parted + 1)
    ready = next(
        (at for at, items in enumerate(mine) if _is(items, room, KVPoll.WAITING_FOR_INPUT)), _after(mine, room)
    )
    return Cell(answered, max(answered, ready))


def _after(mine: list[dict[int, Item]], room: int) -> int:
    """Return the round after the last one in which the rank polled the request: what it had not seen by then came later."""
    return max((at + 1 for at, items in enumerate(mine) if room in items), default=WINDOW)


def _is(items: dict[int, Item], room: int, poll: KVPoll) -> bool:
    return room in items and items[room].local == poll
