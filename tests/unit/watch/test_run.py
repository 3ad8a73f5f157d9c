"""What a watch exits with."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pdctl.protocol.errors import Exit
from pdctl.watch.model import RankState, WatchState
from pdctl.watch.run import watch


class Once:
    """An eye, and whoever is told, for one look."""

    closed = False

    def __init__(self, *ranks: RankState) -> None:
        self.over = threading.Event()
        self.state = WatchState(at_wall_ns=1, took_s=0.0, ranks=ranks)

    def next(self) -> WatchState:
        self.over.set()
        return self.state

    def say(self, line: str) -> None:
        pass

    def look(self) -> None:
        pass


@pytest.mark.parametrize(("role", "code"), [("unknown", Exit.UNREACHABLE), ("decode", Exit.CLEAN)])
def test_a_host_that_is_not_reached_is_no_rank(role: str, code: Exit) -> None:
    one: Any = Once(RankState(rank="gpu1", role=role, state="silent"))
    assert watch(one, one, str, [], one.over) is code
