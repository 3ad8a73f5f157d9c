"""Makes a counterexample small: fewest ranks, then requests, then rounds and lags. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from pdctl.explore.policies import Policy, Split
from pdctl.explore.rules import run
from pdctl.explore.space import Cell, Schedule, choices

T = TypeVar("T")


def shrink(policy: Policy, schedule: Schedule, split: Split) -> Schedule:
    """Return a schedule whose ranks part in the way of ``split`` and of which no part can be left out or be plainer.

    Tried again and again until nothing helps: without a rank, without a request, without a round, each request from an
    earlier round on, each rank's part in each request replaced by a plainer one. Raises ValueError where ``schedule`` does
    not part that way.
    """
    if split not in run(policy, schedule).splits:
        raise ValueError(f"this schedule does not part so: {split.value}")
    while True:
        for smaller in _smaller(policy, schedule):
            if split in run(policy, smaller).splits:
                schedule = smaller
                break
        else:
            return schedule


def _smaller(policy: Policy, schedule: Schedule) -> Iterator[Schedule]:
    cells = schedule.cells
    if schedule.ranks > 2:
        for rank in range(schedule.ranks):
            yield replace(schedule, cells=cells[:rank] + cells[rank + 1 :])
    if schedule.requests > 1:
        for request in range(schedule.requests):
            yield replace(
                schedule,
                arrivals=_without(schedule.arrivals, request),
                named=_without(schedule.named, request),
                cells=tuple(_without(row, request) for row in cells),
            )
    if schedule.rounds > 1:
        for gone in reversed(range(schedule.rounds)):
            yield _without_round(schedule, gone)
    for request, at in enumerate(schedule.arrivals):
        for earlier in range(at):
            late = (*schedule.arrivals[:request], earlier, *schedule.arrivals[request + 1 :])
            yield replace(schedule, arrivals=late)
    for rank, row in enumerate(cells):
        for request, cell in enumerate(row):
            for plainer in _plainer(policy, schedule.rounds, cell):
                part = (*row[:request], plainer, *row[request + 1 :])
                yield replace(schedule, cells=(*cells[:rank], part, *cells[rank + 1 :]))


def _without(values: tuple[T, ...], at: int) -> tuple[T, ...]:
    return values[:at] + values[at + 1 :]


def _without_round(schedule: Schedule, gone: int) -> Schedule:
    """Return the schedule without round ``gone``: what happened later happens a round earlier, what happened in it after it."""

    def cut(cell: Cell) -> Cell:
        first, second = (at - (at > gone) for at in (cell.first, cell.second))
        return Cell(first, second, cell.flag if second > first else 0)

    last = schedule.rounds - 2
    arrivals = tuple(min(at - (at > gone), last) for at in schedule.arrivals)
    cells = tuple(tuple(map(cut, row)) for row in schedule.cells)
    return replace(schedule, rounds=schedule.rounds - 1, arrivals=arrivals, cells=cells)


def _plainer(policy: Policy, rounds: int, cell: Cell) -> Iterator[Cell]:
    plain = sorted(choices(policy, rounds), key=weight)
    yield from (other for other in plain if weight(other) < weight(cell))


def weight(cell: Cell) -> tuple[int, int, int]:
    """Return how far a part is from the plainest one: by its flag, its lag, its first round."""
    return cell.flag, max(0, cell.second - cell.first), cell.first
