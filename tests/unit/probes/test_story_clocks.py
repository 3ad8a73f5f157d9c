"""Clocks: whatever the true offsets are, the interval that is shown contains them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.probes.story.clocks import DRIFT, Bound, Contradiction, Passed, align, groups_of, shared_rounds

HOUR = 3600 * 10**9
offsets = st.integers(-100 * HOUR, 100 * HOUR)


@st.composite
def statements(draw: st.DrawFn) -> tuple[list[int], list[Bound]]:
    """True offsets, and bounds from pairs of moments of which the first really was not later."""
    true = draw(st.lists(offsets, min_size=2, max_size=6))
    bounds = []
    for _ in range(draw(st.integers(0, 25))):
        i, j = draw(st.integers(0, len(true) - 1)), draw(st.integers(0, len(true) - 1))
        at, later = draw(st.integers(0, HOUR)), draw(st.integers(0, 10**9))
        if i != j:
            bounds.append(Bound(i, j, (at + later - true[j]) - (at - true[i])))
    return true, bounds


@given(statements(), st.data())
def test_the_interval_contains_the_truth(case: tuple[list[int], list[Bound]], data: st.DataObject) -> None:
    true, bounds = case
    walls = [o + data.draw(st.integers(-(10**10), 10**10)) for o in true]
    found = align(walls, bounds, 0)
    for truth, offset in zip(true, found, strict=True):
        off = truth - true[0]
        assert offset.low is None or offset.low <= off
        assert offset.high is None or off <= offset.high
        assert offset.low is None or offset.high is None or offset.low <= offset.ns <= offset.high
        if offset.within_ns is not None:
            assert abs(offset.ns - off) <= offset.within_ns
    if all(offset.within_ns is not None for offset in found):  # the middles keep the order of every statement
        assert all(found[b.before].ns - found[b.after].ns <= b.most + 1 for b in bounds)


def test_nothing_known_leaves_the_wall_clocks() -> None:
    one, other = align([5, 905], [], 0)
    assert (one.ns, one.within_ns) == (0, 0)
    assert (other.ns, other.within_ns) == (900, None)


def test_one_side_known_corrects_the_wall_clock() -> None:
    _, other = align([5, 905], [Bound(1, 0, 700)], 0)
    assert (other.ns, other.low, other.high, other.within_ns) == (700, None, 700, None)


def test_bounds_that_can_not_all_hold() -> None:
    with pytest.raises(Contradiction, match="by 10 ns"):
        align([0, 0], [Bound(0, 1, 5), Bound(1, 0, -15)], 0)


def test_a_clock_is_reached_through_another() -> None:
    bounds = [Bound(1, 0, 110), Bound(0, 1, -90), Bound(2, 1, 55), Bound(1, 2, -45)]
    _, _, far = align([0, 0, 0], bounds, 0)
    assert (far.ns, far.low, far.high) == (150, 135, 165)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[int, int, int, list[tuple[int, int, int, int]]]:
    """True offset of the other clock, ratio of the clocks in ppm, a moment, and (enter, enter, leave, leave) of rounds."""
    offset, ppm = draw(offsets), draw(st.integers(-100, 100))
    at, found = draw(st.integers(0, HOUR)), []
    for _ in range(draw(st.integers(1, 20))):
        enter = [at + draw(st.integers(0, 10**8)) for _ in range(2)]
        leave = [max(enter) + draw(st.integers(0, 10**7)) for _ in range(2)]
        found.append((*enter, *leave))
        at = max(leave) + draw(st.integers(0, 10**11))
    return offset, ppm, found[draw(st.integers(0, len(found) - 1))][0], found


@given(rounds(), st.data())
@settings(max_examples=300)
def test_shared_rounds_bound_both_sides(
    case: tuple[int, int, int, list[tuple[int, int, int, int]]], data: st.DataObject
) -> None:
    offset, ppm, center, found = case
    assert ppm * 1e-6 <= DRIFT

    def on_other(at: int) -> int:  # exactly `offset` away at the moment that matters, drifting from there
        return at - offset + round((at - center) * ppm * 1e-6)

    # As a recording has them: a run of equal rounds keeps the times of its first and its last round only.
    kept = [n for n in range(len(found)) if data.draw(st.booleans()) or n in (0, len(found) - 1)]
    ordinals = np.array(kept, np.int64)

    def passed(enter: int, leave: int, *, other: bool) -> Passed:
        clock = on_other if other else (lambda at: at)
        enters = np.array([clock(found[n][enter]) for n in kept], np.int64)
        leaves = np.array([clock(found[n][leave]) for n in kept], np.int64)
        return Passed((ordinals, enters), (ordinals, leaves))

    one, other = passed(0, 2, other=False), passed(1, 3, other=True)
    high = shared_rounds(one, other, near_one=center, near_other=on_other(center))
    low = shared_rounds(other, one, near_one=on_other(center), near_other=center)
    assert high is not None
    assert low is not None
    assert -low <= offset <= high
    [_, aligned] = align([0, 0], [Bound(1, 0, high), Bound(0, 1, low)], 0)
    assert aligned.within_ns is not None
    assert abs(aligned.ns - offset) <= aligned.within_ns


def test_no_round_in_common_bounds_nothing() -> None:
    early = Passed((np.array([5]), np.array([10])), (np.array([5]), np.array([20])))
    late = Passed((np.array([9]), np.array([10])), (np.array([9]), np.array([20])))
    assert shared_rounds(early, late, near_one=0, near_other=0) is None


def test_ranks_of_one_boot_share_a_clock() -> None:
    minute = 60 * 10**9
    same = [("a", 10 * minute), ("a", 10 * minute + 5), ("b", 10 * minute), ("a", 500 * minute)]
    assert groups_of(same, minute) == [0, 0, 1, 2]
