"""What an agent answers, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pdctl.agent.answers import Answers
from pdctl.protocol import structs, wire
from pdctl.protocol.model import Moment, Status


def test_a_moment_is_the_part_of_a_status_that_changes_and_nothing_else_is_read_for_it() -> None:
    adapter = SimpleNamespace(
        ticks=lambda: (3, 5), ordinals=lambda: {"decode.transfer/tp": 7}, group_kind=str, step_of=lambda _: "idle"
    )
    agent: Any = SimpleNamespace(adapter=adapter)
    body = Answers(agent, None, lambda: 0.0).answer("status", {"moment": True})  # type: ignore[arg-type]
    assert isinstance(body, Moment)
    assert (body.ticks, body.tick_mono_ns, body.rounds, body.call.inside) == (3, 5, {"decode.transfer/tp": 7}, "idle")
    assert any(frame.function.startswith("test_a_moment") for frame in body.stack)
    assert structs.from_msgpack(wire.encode(body), Moment) == body
    assert set(Moment.__struct_fields__) < set(Status.__struct_fields__)
