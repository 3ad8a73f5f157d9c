"""What is asked of far recordings: digests alone where ranks agree, and all of them where an answer does not suffice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pdctl.probes.queues.excerpts import Reading, first_of
from pdctl.probes.queues.model import RankView
from pdctl.recording import format as f
from pdctl.recording.answers import Known, answer
from pdctl.recording.excerpt import Excerpt, Part, Wanted
from tests.unit.probes.test_queue_judge import Rank, turn


def first(view: RankView) -> Part:
    assert view.recording is not None
    return answer(Known(view.recording), first_of(view), view.recording.source.read(0, f.RINGS_OFFSET))


class Asked:
    """Reads excerpts of these views, and notes what is asked after the first answers. lists: whether lists are told."""

    def __init__(self, views: list[RankView], *, lists: bool = True) -> None:
        self.views, self.lists = views, lists
        self.wanted: list[Wanted] = []
        self.reading = Reading(views, {n: Excerpt(first(view), "x") for n, view in enumerate(views)}, self.ask)
        self.reading.read()

    def ask(self, wanted: Mapping[int, Wanted]) -> dict[int, Part | None]:
        self.wanted += wanted.values()
        found: dict[int, Part | None] = {}
        for n, one in wanted.items():
            recording = self.views[n].recording
            assert recording is not None
            found[n] = answer(Known(recording), one) if self.lists or not one.lists else Part()
        return found


@pytest.fixture
def group(tmp_path: Path) -> list[Rank]:
    """Two ranks whose newest run builds on the lists of those before."""
    group = [Rank(n, 2, tmp_path) for n in range(2)]
    for room in range(1, 40):
        for rank in group:
            rank.arrive(room)
        assert turn(group)
    return group


def test_of_ranks_in_step_nothing_is_asked_but_one_digest(group: list[Rank]) -> None:
    asked = Asked([rank.view() for rank in group])
    assert asked.wanted == [Wanted(cuts={0: [0, 0, 38]})] * 2
    assert not asked.reading.whole


def test_the_list_of_one_newest_run_stays_where_it_is(group: list[Rank]) -> None:
    view = group[0].view()
    assert view.recording is not None
    [whole], [short] = view.recording.streams, Excerpt(first(view), "x").recording.streams
    assert short.newest == whole.newest
    assert short.rows(len(short) - 1) is None
    assert whole.rows(len(whole) - 1) is not None


@pytest.mark.parametrize("lists", [True, False])
def test_a_difference_in_the_newest_round_takes_its_lists_or_all_there_is(group: list[Rank], lists: bool) -> None:
    group[0].arrive(100)
    group[1].arrive(101)
    assert turn(group)
    asked = Asked([rank.view() for rank in group], lists=lists)
    assert Wanted(lists={0: [39]}) in asked.wanted
    assert asked.reading.whole == (set() if lists else {0, 1})
