"""The space of schedules: choices per rank and request, counted in mixed radix. Pure, standard library only.

A schedule says when each thing happens, in rounds from 0; ``rounds`` (the bound itself) means later than the bound. A
*cell* is one rank's part in one request, three numbers that mean

    machine     first                           second                          flag
    transfer    KV is Success from here on      the metadata row holds the room the slot holds a former owner's room before
    receiver    the query is answered           the handshake is complete       -
    pipeline    the stage sees Failed           -                               -

Schedules that no rank can distinguish are counted once. A rank reads a slot only from its own Success on. So a row that lands
before Success counts as landing at Success, and a former owner's room matters only if the row lands after Success.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from pdctl.explore.policies import Policy

ROOM = 7001
"""Room of the first request where a schedule names none; the others count on."""
MOST_RANKS, MOST_REQUESTS, MOST_ROUNDS = 64, 64, 64


class Cell(NamedTuple):
    """One rank's part in one request; the module says what the numbers mean."""

    first: int
    second: int = 0
    flag: int = 0


@dataclass(frozen=True)
class Schedule:
    """arrivals: per request, the round it arrives in on all ranks. cells: [rank][request]. named: the requests' rooms."""

    rounds: int
    arrivals: tuple[int, ...]
    cells: tuple[tuple[Cell, ...], ...]
    named: tuple[int, ...] = ()

    @property
    def rooms(self) -> tuple[int, ...]:
        """Room of each request, made up where none is given."""
        return self.named or tuple(range(ROOM, ROOM + self.requests))

    @property
    def ranks(self) -> int:
        """Number of ranks (stages, for pipeline policies)."""
        return len(self.cells)

    @property
    def requests(self) -> int:
        """Number of requests."""
        return len(self.arrivals)


@dataclass(frozen=True)
class Model:
    """The bound of a search: so many ranks and requests, polled in so many rounds, arriving in the first ``arrivals``."""

    ranks: int = 2
    requests: int = 3
    rounds: int = 3
    arrivals: int = 1


def parse(text: str) -> Model:
    """Return the model that ``ranks=2,requests=3`` means. Raises ValueError, which says what is wrong and what is allowed."""
    given: dict[str, int] = {}
    names = {"ranks": MOST_RANKS, "requests": MOST_REQUESTS, "rounds": MOST_ROUNDS, "arrivals": MOST_ROUNDS}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in names or not equals:
            raise ValueError(f"{part.strip() or text!r}: a model is {', '.join(f'{n}=N' for n in names)}")
        if name in given:
            raise ValueError(f"{name} is given twice")
        least = 2 if name == "ranks" else 1
        if not value.isascii() or not value.isdecimal() or not least <= int(value[:9]) <= names[name]:
            why = "; one rank has nobody to differ from" if name == "ranks" and value == "1" else ""
            raise ValueError(f"{name}={value}: a number from {least} to {names[name]}{why}")
        given[name] = int(value)
    model = Model(**given)
    if model.arrivals > model.rounds:
        raise ValueError(f"arrivals={model.arrivals}: requests arrive within the {model.rounds} rounds")
    return model


@dataclass(frozen=True)
class Space:
    """All schedules of a search. arrivals: choices per request; cells: choices per (rank, request), ranks outermost.

    named: rooms of the requests, where a recording gives them.
    """

    policy: Policy
    ranks: int
    requests: int
    rounds: int
    arrivals: tuple[tuple[int, ...], ...]
    cells: tuple[tuple[Cell, ...], ...]
    named: tuple[int, ...] = ()

    @property
    def radices(self) -> tuple[int, ...]:
        """Choices per digit: the cells' first, then the arrivals'; the first digit counts fastest."""
        return (*map(len, self.cells), *map(len, self.arrivals))

    @property
    def size(self) -> int:
        """Number of schedules."""
        return prod(self.radices)

    def schedule(self, digits: Sequence[int]) -> Schedule:
        """Return the schedule with these digits."""
        chosen = [options[digit] for options, digit in zip(self.cells, digits, strict=False)]
        late = digits[len(self.cells) :]
        return Schedule(
            self.rounds,
            tuple(options[digit] for options, digit in zip(self.arrivals, late, strict=True)),
            tuple(tuple(chosen[rank * self.requests :][: self.requests]) for rank in range(self.ranks)),
            self.named,
        )

    def digits(self, index: int) -> list[int]:
        """Return the digits of schedule number ``index``."""
        found = []
        for radix in self.radices:
            index, digit = divmod(index, radix)
            found.append(digit)
        return found


def space_of(policy: Policy, model: Model) -> Space:
    """Return all schedules of ``policy`` within the bound."""
    options = choices(policy, model.rounds)
    return Space(
        policy,
        model.ranks,
        model.requests,
        model.rounds,
        (tuple(range(model.arrivals)),) * model.requests,
        (options,) * (model.ranks * model.requests),
    )


def choices(policy: Policy, rounds: int) -> tuple[Cell, ...]:
    """Return the parts a rank can have in a request that differ in something the rank can see, the plainest first."""
    later = rounds
    if policy.machine == "pipeline":
        return tuple(Cell(failed) for failed in range(later + 1))
    cells = []
    for first in range(later):
        cells.append(Cell(first, first))
        for second in range(first + 1, later + 1):
            cells.append(Cell(first, second))
            if policy.machine == "transfer" and not policy.zeroed:
                cells.append(Cell(first, second, 1))
    cells.append(Cell(later, later))
    return tuple(cells)
