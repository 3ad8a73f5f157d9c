"""The explorer finds the known races without being told where, and makes each as small as it can be."""

from __future__ import annotations

import itertools

import pytest

from pdctl.explore.policies import POLICIES, Policy, Split
from pdctl.explore.rules import run
from pdctl.explore.search import search
from pdctl.explore.shrink import shrink
from pdctl.explore.space import Cell, Model, Schedule, choices, space_of

BROKEN = ["no-gate", "gate-zero-unzeroed", "receiver-old", "pp-filter-old"]
HOLDS = ["gate-zero", "gate-expected", "receiver-new", "pp-filter-new"]

LANDED, LATE, STALE = Cell(0, 0), Cell(0, 1), Cell(0, 1, 1)
ANSWERED, NOT_YET = Cell(0, 0), Cell(1, 1)

# Per policy and way to part: rounds, and each rank's part in each request. Ranks are interchangeable, but PP stages are not.
MINIMA = {
    # S1: Success on both, the row landed on one rank only.
    ("no-gate", Split.KEPT): (1, {(LANDED,), (LATE,)}),
    # The slot still holds a former owner's room on one rank, while the other has its row, or reads 0.
    ("no-gate", Split.MIXED): (1, {(LANDED,), (STALE,)}),
    ("no-gate", Split.ABORTED): (1, {(LATE,), (STALE,)}),
    ("gate-zero-unzeroed", Split.MIXED): (1, {(LANDED,), (STALE,)}),
    # S3: one rank's query answered, the other's not: with one request it skips the round, with another it does not.
    ("receiver-old", Split.SKIPPED): (1, {(ANSWERED,), (NOT_YET,)}),
    ("receiver-old", Split.LISTS): (1, {(ANSWERED, ANSWERED), (NOT_YET, ANSWERED)}),
    # S5: the first stage sees it fail one round before the second.
    ("pp-filter-old", Split.ORPHAN): (2, {(Cell(0),), (Cell(1),)}),
}


def size(schedule: Schedule) -> tuple[int, int, int]:
    return schedule.ranks, schedule.requests, schedule.rounds


@pytest.mark.parametrize("name", BROKEN)
def test_finds_every_way_to_part_and_shrinks_it_to_the_known_minimum(name: str) -> None:
    policy = POLICIES[name]
    found = search(space_of(policy, Model(2, 3, 3)))
    assert found.exhaustive
    assert found.stepped == space_of(policy, Model(2, 3, 3)).size
    assert {(name, split) for split in found.examples} == {key for key in MINIMA if key[0] == name}
    for split, (number, example) in found.examples.items():
        space = space_of(policy, Model(2, 3, 3))
        assert space.schedule(space.digits(number)) == example
        assert split in run(policy, example).splits
        small = shrink(policy, example, split)
        rounds, parts = MINIMA[name, split]
        assert (small.rounds, set(small.cells), set(small.arrivals)) == (rounds, parts, {0})
        assert shrink(policy, small, split) == small


@pytest.mark.parametrize("name", HOLDS)
def test_the_fixed_policies_hold_in_every_schedule_within_the_bound(name: str) -> None:
    """2 ranks × 3 requests × 3 rounds: up to 16,777,216 schedules."""
    space = space_of(POLICIES[name], Model(2, 3, 3))
    found = search(space)
    assert (found.exhaustive, found.stepped, found.parted) == (True, space.size, 0)


@pytest.mark.parametrize("key", MINIMA, ids=lambda key: f"{key[0]}-{key[1].name}")
def test_nothing_smaller_parts(key: tuple[str, Split]) -> None:
    """Every schedule with fewer rounds, or with as many and fewer requests, is tried with the plain rule."""
    policy, split = POLICIES[key[0]], key[1]
    rounds, parts = MINIMA[key]
    requests = len(next(iter(parts)))
    for r, q in itertools.product(range(1, rounds + 1), range(1, requests + 1)):
        if (r, q) == (rounds, requests):
            continue
        space = space_of(policy, Model(2, q, r, arrivals=r))
        assert not any(split in run(policy, space.schedule(space.digits(n))).splits for n in range(space.size))


def large(policy: Policy) -> Model:
    return Model(5, 6, 6, arrivals=3)


@pytest.mark.parametrize("name", BROKEN)
def test_a_large_sampled_counterexample_shrinks_to_the_same_minimum(name: str) -> None:
    policy = POLICIES[name]
    found = search(space_of(policy, large(policy)), schedules=20_000, seed=11)
    assert not found.exhaustive
    assert not found.ran_out
    assert found.examples
    for split, (_, example) in found.examples.items():
        small = shrink(policy, example, split)
        rounds, parts = MINIMA[name, split]
        assert size(small) == (2, len(next(iter(parts))), rounds)
        assert {tuple(sorted(row)) for row in small.cells} == {tuple(sorted(row)) for row in parts}


def test_the_same_seed_finds_the_same_and_another_seed_something_else() -> None:
    space = space_of(POLICIES["no-gate"], Model(4, 4, 5))
    one, again, other = (search(space, schedules=50_000, seed=seed) for seed in (1, 1, 2))
    assert (one.parted, one.by_split, one.examples) == (again.parted, again.by_split, again.examples)
    assert one.by_split != other.by_split


def test_a_time_limit_ends_it_with_what_was_covered() -> None:
    ticks = itertools.count()
    space = space_of(POLICIES["gate-expected"], Model(2, 3, 3))
    found = search(space, limit_s=3.0, clock=lambda: float(next(ticks)))
    assert found.ran_out
    assert not found.exhaustive
    assert 0 < found.stepped < space.size


def test_only_what_parts_can_be_shrunk() -> None:
    policy = POLICIES["no-gate"]
    clean = Schedule(2, (0,), ((Cell(0, 0),), (Cell(0, 0),)))
    with pytest.raises(ValueError, match="does not part"):
        shrink(policy, clean, Split.KEPT)


def test_the_choices_are_the_plainest_first() -> None:
    for policy in POLICIES.values():
        assert choices(policy, 3)[0] == Cell(0, 0)
