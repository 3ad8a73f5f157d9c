"""What a rank leaves in its recording when an exception ends its scheduler."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pdctl.engines.base import Hooks
from pdctl.engines.shared import ending
from pdctl.protocol.model import EventKind
from pdctl.protocol.notes import SCHEDULER_ENDED


class Events(list[dict[str, Any]]):
    def __call__(self, kind: EventKind, **fields: Any) -> None:
        self.append({"kind": kind, **fields})


def fails() -> None:
    raise ValueError("a prompt that must not be kept")


@pytest.mark.parametrize("given", [True, False], ids=["excepthook", "while it is handled"])
def test_the_type_and_the_place_are_kept_and_nothing_of_the_text(given: bool) -> None:
    events, hooks = Events(), Hooks()
    engine = SimpleNamespace(report=lambda *args: ("told", *args))
    assert hooks.wrap(engine, "report", "ending", ending(events))
    try:
        fails()
    except ValueError:
        args = sys.exc_info() if given else ()
        assert engine.report(*args) == ("told", *args)
    [note] = events
    assert note["kind"] == EventKind.NOTE
    assert note["text"].startswith(f"{SCHEDULER_ENDED}: ValueError in fails, test_ending.py:")
    assert "prompt" not in note["text"]


def test_a_stop_from_outside_is_no_failure_and_a_failing_recorder_harms_nobody() -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    hooks, events = Hooks(), Events()
    engine = SimpleNamespace(quiet=lambda *_: 1, full=lambda *_: 2)
    hooks.wrap(engine, "quiet", "quiet", ending(events))
    hooks.wrap(engine, "full", "full", ending(full))
    assert (engine.quiet(), engine.quiet(SystemExit, SystemExit(0), None), engine.full(OSError, OSError(), None)) == (
        1,
        1,
        2,
    )
    assert not events
    assert hooks.errors() == {"full": 1}
