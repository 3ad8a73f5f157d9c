"""What ``pdctl attach --inject-agent`` exits with, by what came of each process."""

from __future__ import annotations

import pytest

from pdctl.commands.attach_agent import exit_code
from pdctl.introspect.inject import Injected

RUNNING, THERE, PENDING, REFUSED = (
    Injected(pid=1, state=state) for state in ("running", "there", "pending", "refused")
)
UNARMED = Injected(pid=1, state="refused", unarmed=True)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([RUNNING, THERE], 0),
        ([RUNNING, REFUSED], 3),
        ([RUNNING, UNARMED], 3),
        ([PENDING, REFUSED], 3),
        ([UNARMED, REFUSED], 4),
        ([UNARMED, UNARMED], 5),
    ],
)
def test_all_some_and_none_have_an_agent(found: list[Injected], code: int) -> None:
    assert exit_code(found) == code
