"""What healing comes to, and what no healing brings back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from pdctl.faults.messages import FaultsBody, HealBody
from pdctl.inject import healing
from pdctl.protocol.model import FaultStatus, ServiceThread, Status
from pdctl.protocol.rank import Answer, FoundRank
from pdctl.targets.client import Client
from tests.support.identities import identity

S = 10**9
RANK = FoundRank(identity(role="prefill"), "live")
FAULT = FaultStatus("f", "abort", "decode:tp1", 0.0, 0.0, 1, 1, 1, 0, ended="heal", age_s=20.0)
STATUS = Status(
    identity=RANK.identity, mono_ns=100 * S, ticks=9, tick_mono_ns=99 * S, call=None, stack=(), rounds={}, seams=(),
    recording="", recording_off="", hook_errors={}, hooks_removed=(), faults=(), agent_cpu_s=0.0,
)  # fmt: skip


class One(Client):
    """One rank. ended: faults that healing ends there. past: what it says of them then. ended_s: age of a thread's end."""

    def __init__(self, ended: Sequence[str], past: Sequence[FaultStatus], ended_s: float) -> None:
        super().__init__()
        thread = ServiceThread("bootstrap_thread", 0, 1, int((100 - ended_s) * S), "KeyError")
        self.bodies: dict[str, Any] = {
            "heal": HealBody(tuple(ended), (), ("",) * len(ended)),
            "faults": FaultsBody(True, (), tuple(past), ()),
            "status": msgspec.structs.replace(STATUS, threads=(thread,)),
        }

    def ask_each(self, questions: Sequence[tuple[FoundRank, dict[str, Any]]], op: str, kind: Any) -> list[Answer[Any]]:
        return [Answer(rank, self.bodies[op]) for rank, _ in questions]


@pytest.mark.parametrize(
    ("ended", "past", "ended_s", "harm"),
    [
        (["f"], [FAULT], 10.0, True),  # while it was in place
        (["f"], [FAULT], 5000.0, False),
        (["f"], [msgspec.structs.replace(FAULT, age_s=-1.0)], 5000.0, True),  # an older agent does not tell
        (["f"], [], 5000.0, True),
        ([], [FAULT], 10.0, False),  # it had ended by itself, and healing nothing is no harm
        ([], [], 10.0, False),
    ],
)
def test_what_a_fault_has_ended_is_told_from_what_had_ended_before(
    ended: list[str], past: list[FaultStatus], ended_s: float, harm: bool
) -> None:
    with One(ended, past, ended_s) as client:
        [result] = healing.heal(client, [RANK])
        assert result.clean
        left = healing.aftermath(client, [RANK], result.placed)
    [line] = left.harm or left.before
    assert bool(left.harm) is harm
    assert healing.exit_code([result], left.harm) == int(harm)
    verb = "has ended" if harm else "had ended before"
    assert line.endswith(f"its bootstrap_thread {verb} by KeyError, and only a restart starts it again")
