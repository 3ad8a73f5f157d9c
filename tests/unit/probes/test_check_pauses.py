"""``check`` makes the pause of a stage a short one, unless the whole one could tell more."""

from __future__ import annotations

from typing import Any

import pytest

from pdctl.probes.base import Probe
from pdctl.probes.check.probe import SHORT_PAUSE_S, run
from pdctl.probes.leaks.model import LeaksDocument
from pdctl.probes.stuck.model import StuckDocument
from pdctl.probes.stuck.probe import PROBE as STUCK
from pdctl.probes.view import View
from pdctl.report.findings import finding
from pdctl.targets.client import Client
from pdctl.targets.find import Found
from tests.unit.probes.test_stuck_judge import entry, look


class Twice(Probe[float, float, LeaksDocument]):
    """A probe that looks twice. paused: the pauses that it took."""

    name, pauses = "twice", True

    def __init__(self, **said: Any) -> None:
        self.paused: list[float] = []
        self._said = said

    def in_check(self, pause_s: float) -> float:
        return pause_s

    def collect(self, view: View, options: float) -> float:
        self.paused.append(options)
        return options

    def judge(self, evidence: float, options: float) -> LeaksDocument:
        return LeaksDocument(watch_s=options, ranks=(), **self._said)


@pytest.mark.parametrize(
    ("said", "paused"),
    [
        ({}, [SHORT_PAUSE_S]),
        ({"findings": (finding("PD153", "rooms were left behind"),)}, [SHORT_PAUSE_S, 2.0]),
        ({"problems": ("a rank is silent",), "partial": True}, [SHORT_PAUSE_S, 2.0]),
    ],
)
def test_the_whole_pause_is_taken_where_all_is_not_well(said: dict[str, Any], paused: list[float]) -> None:
    stage = Twice(**said)
    assert len(list(run(View(Found(()), Client(timeout_s=60)), [stage], 2.0))) == 1
    assert stage.paused == paused


@pytest.mark.parametrize(("turns", "settled"), [(5, True), (1, False), (0, False)])
def test_waits_are_not_settled_while_a_loop_is_not_known_to_turn(turns: int, settled: bool) -> None:
    evidence = [look("decode"), look("decode", entry("decode.transfer"), turns=turns)]
    assert STUCK.settled(evidence, StuckDocument(requests=())) is settled
