"""Which visits a seed takes: the same everywhere and always, about as many as asked for, more with a larger share."""

from __future__ import annotations

import itertools
import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.faults.choose import selects
from pdctl.faults.fault import AimedRank, Fault
from pdctl.faults.kinds import FAIL_TRANSFER
from pdctl.faults.table import FaultTable

numbers = st.integers(0, (1 << 64) - 1)
visits = st.integers(1, 1 << 20)


@given(numbers, numbers, visits, st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_takes_all_that_a_smaller_one_takes(
    seed: int, room: int, visit: int, one: float, other: float
) -> None:
    small, large = sorted((one, other))
    assert not selects(seed, "k", room, visit, small) or selects(seed, "k", room, visit, large)
    assert selects(seed, "k", room, visit, 1.0)
    assert not selects(seed, "k", room, visit, 0.0)


def test_about_as_many_as_asked_for_and_others_for_another_seed_or_kind() -> None:
    rooms = range(20_000)
    taken = {
        (seed, kind): {r for r in rooms if selects(seed, kind, r, 1, 0.1)} for seed in (1, 2) for kind in ("a", "b")
    }
    for one in taken.values():
        assert 1_800 < len(one) < 2_200
    for one, other in itertools.combinations(taken.values(), 2):
        assert 120 < len(one & other) < 280, "independent of each other"


def test_what_a_seed_takes_never_changes() -> None:
    """Runs of different versions of pdctl are compared with each other: a change of the hash must show here."""
    taken = [room for room in range(9_001, 9_017) if selects(5, FAIL_TRANSFER, room, 1, 0.5)]
    assert taken == [9001, 9003, 9005, 9006, 9007, 9010, 9012, 9015]


def taken(order: list[tuple[int, int]]) -> set[tuple[int, int]]:
    """Which (room, n-th visit) a table's fault takes when visits come in this order; n counts a room's own visits."""
    table = FaultTable(armed=True)
    end = time.monotonic() + 500
    table.arm(Fault("f", FAIL_TRANSFER, 0.0, end, None, "tp1", (AimedRank(tp=1),), seed=3, share=0.5, hits=10**6))
    found = set()
    for room, visit in order:
        if table.decide(FAIL_TRANSFER, room, tp=1) is not None:
            found.add((room, visit))
    table.heal()
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32))
def test_however_ranks_interleave_the_same_visits_are_taken(shuffle: int) -> None:
    visits = [(room, visit) for visit in (1, 2, 3) for room in range(12)]
    mixed = visits.copy()
    random.Random(shuffle).shuffle(mixed)
    mixed.sort(key=lambda pair: pair[1] if shuffle % 2 else 0)  # rooms interleave, visits of one room stay in order
    seen: dict[int, int] = {}
    ordered = []
    for room, _ in mixed:
        seen[room] = seen.get(room, 0) + 1
        ordered.append((room, seen[room]))
    assert taken(ordered) == taken(visits)
