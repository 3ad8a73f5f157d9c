"""One kind of budget for whoever uses up a rank's time: through its own socket, or through its gateway."""

from __future__ import annotations

import pytest

from pdctl.agent import local
from pdctl.gateway import limits, relay, service
from pdctl.protocol.budget import Budget


def test_the_agents_socket_and_its_gateway_count_alike() -> None:
    assert {module.Budget for module in (local, limits, relay, service)} == {Budget}


def test_what_was_used_comes_back_up_to_the_burst() -> None:
    budget = Budget(0.5, 100.0, 2.0)
    assert (budget.left(100.0), budget.left(1000.0)) == (2.0, 2.0)
    budget.take(3.0)
    assert (budget.left(1000.0), budget.left(1001.0)) == (-1.0, -0.5)
    assert budget.left(1003.0) == 0.5


def test_it_is_due_when_something_is_left() -> None:
    budget = Budget(0.25, 0.0, 1.0)
    assert budget.due(0.0) == 0.0
    budget.take(1.5)
    wait = budget.due(0.0)
    assert wait == pytest.approx(2.0, abs=0.01)
    assert budget.due(wait) == 0.0
    assert budget.left(wait) > 0
