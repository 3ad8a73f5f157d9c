"""Makes a counterexample small: fewest ranks, then requests, then rounds and lags. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from pdctl.replay.explore.policies import Policy, Split
from pdctl.replay.explore.rules import run
from pdctl.replay.explore.space import Cell, Schedule, choices

T = TypeVar("T")


def shrink(policy: Policy, schedule: Schedule, split: Split) -> Schedule:
    """Return a schedule whose ranks part in the way of ``split`` and of which no part can be left out or be plainer.

    Tried again and again until nothing helps: without a rank, without a request, with fewer rounds, every request from
    round 0 on, each rank's part in each request replaced by a plainer one (:func:`choices` has the plainest first). Raises
    ValueError where ``schedule`` does not part that way.
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
                cells=tuple(_without(row, request) for row in cells),
            )
    if schedule.rounds > 1:
        yield _within(schedule, schedule.rounds - 1)
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


def _within(schedule: Schedule, rounds: int) -> Schedule:
    """Return the schedule as a bound of ``rounds`` shows it: what is later is later than that bound."""

    def cut(cell: Cell) -> Cell:
        first, second = min(cell.first, rounds), min(cell.second, rounds)
        return Cell(first, second, cell.flag if second > first else 0)

    arrivals = tuple(min(at, rounds - 1) for at in schedule.arrivals)
    return Schedule(rounds, arrivals, tuple(tuple(map(cut, row)) for row in schedule.cells))


def _plainer(policy: Policy, rounds: int, cell: Cell) -> Iterator[Cell]:
    plain = sorted(choices(policy, rounds), key=weight)
    yield from (other for other in plain if weight(other) < weight(cell))


def weight(cell: Cell) -> tuple[int, int, int]:
    """Return how far a part is from the plainest one: by its flag, its lag, its first round."""
    return cell.flag, max(0, cell.second - cell.first), cell.first
