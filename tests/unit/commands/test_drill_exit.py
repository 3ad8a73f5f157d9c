"""What ``pdctl drill run`` exits with, also where a pipeline says which verdict it expects."""

from __future__ import annotations

import pytest

from pdctl.commands.drill_show import exit_code
from pdctl.inject.drill.journal import default_path
from pdctl.inject.drill.records import BROKEN, HOLDS, INCONCLUSIVE, Problem, Verdict
from pdctl.protocol.errors import Exit


@pytest.mark.parametrize(
    ("expect", "codes"), [("", (0, 1, 3)), ("holds", (0, 1, 3)), ("broken", (1, 0, 3))], ids=["", "holds", "broken"]
)
def test_the_verdict_expected_is_the_success(expect: str, codes: tuple[int, ...]) -> None:
    verdicts = [Verdict(verdict=one, reason="") for one in (HOLDS, BROKEN, INCONCLUSIVE)]
    assert tuple(exit_code(one, [], expect) for one in verdicts) == codes
    active = Problem(at=0.0, step="heal", message="no answer", code=Exit.FAULT_ACTIVE)
    assert {exit_code(one, [active], expect) for one in verdicts} == {Exit.FAULT_ACTIVE}


def test_two_drills_of_one_second_have_two_journals() -> None:
    assert default_path("x", {"HOME": "/h"}, 0.0) != default_path("x", {"HOME": "/h"}, 0.0)
