"""How long a drill waits for its requests."""

from __future__ import annotations

import sys

from pdctl.inject.drill.load import CommandRunning, Patience
from pdctl.inject.drill.records import DURING


class Answering:
    """A load whose answers the test counts. over, failed, rooms: not asked."""

    over, failed = False, 0
    rooms: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.answered = 0

    def finish(self, at: float, step: str, ended: str) -> None:
        raise NotImplementedError


def test_a_load_that_goes_on_being_answered_is_waited_for() -> None:
    load = Answering()
    patience = Patience(load, 8.0, 100.0)  # type: ignore[arg-type]  # it is only counted
    assert not patience.over(107.9)
    load.answered = 1
    assert not patience.over(109.0)
    assert not patience.over(116.9)
    assert patience.over(117.0)
    load.answered = 2
    assert not patience.over(118.0)
    assert patience.over(126.0)


def test_without_a_load_it_is_the_time_alone() -> None:
    patience = Patience(None, 8.0, 100.0)
    assert not patience.over(107.9)
    assert patience.over(108.0)


def test_a_command_is_answered_when_it_has_exited() -> None:
    load = CommandRunning([sys.executable, "-c", "input()"], plain=True)  # no standard input: it ends at once
    while not load.over:
        pass
    assert load.answered == 1
    line = load.finish(1.0, DURING, DURING)
    assert (line.failed, line.completed) == (1, 0)
