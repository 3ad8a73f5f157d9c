"""A storm is many requests that end badly, of those that came of late; a few that are given up are none."""

from __future__ import annotations

import numpy as np
import pytest

from pdctl.protocol.model import QUEUES, EventKind
from pdctl.recording.rings import EVENT
from pdctl.watch.storms import LEAST, WITHIN_S, Counted, count, judge
from tests.unit.agent.test_tap_recording import IDENTITY

NOW = int(1_000e9)


class Recorded:
    """What is asked of a recording here."""

    def __init__(self, *events: tuple[EventKind, str, int, str, float]) -> None:
        self.table = np.zeros(len(events), EVENT)
        for row, (kind, queue, room, text, ago_s) in zip(self.table, events, strict=True):
            row["kind"], row["room"], row["text"] = int(kind), room, text.encode()
            row["queue"] = QUEUES.index(queue) if queue else 255
            row["mono_ns"] = NOW - int(ago_s * 1e9)

    def event_table(self) -> np.ndarray:
        return self.table


@pytest.mark.parametrize(
    ("came", "aborted", "failed", "storm"),
    [
        (0, 0, 0, False),
        (1000, 0, 0, False),
        (1000, LEAST * 5, 0, False),  # clients give up now and then
        (LEAST - 2, LEAST - 1, 0, False),
        (LEAST * 2, LEAST, 0, True),
        (LEAST * 2, 0, LEAST, True),
        (LEAST * 2 + 2, LEAST, LEAST, False),  # each abort is a failure, too
        (0, LEAST, 0, True),
    ],
)
def test_so_many_and_so_many_of_those_that_came(came: int, aborted: int, failed: int, storm: bool) -> None:
    found = judge([Counted(IDENTITY, came, aborted, failed)])
    assert [one.code for one in found] == ["PD154"] * storm
    for one in found:
        assert one.ranks == (IDENTITY.label,)
        assert str(failed) in one.summary


def test_requests_are_counted_once_and_only_of_late() -> None:
    recorded = Recorded(
        (EventKind.ENQUEUE, "decode.pending", 1, "a", WITHIN_S + 1),  # too long ago
        (EventKind.ENQUEUE, "decode.pending", 2, "b", 3.0),
        (EventKind.ENQUEUE, "decode.prealloc", 2, "b", 2.0),
        (EventKind.ENQUEUE, "decode.transfer", 2, "b", 1.0),
        (EventKind.ENQUEUE, "decode.transfer", 3, "c", 1.0),  # it came before
        (EventKind.ABORT, "", 0, "a", 1.0),
        (EventKind.ABORT, "", 0, "a", 0.9),
        (EventKind.FAILURE, "", 2, "why", 0.5),
        (EventKind.FAILURE, "", 2, "why", 0.4),
        (EventKind.FAILURE, "", 1, "why", 0.4),
    )
    assert count(IDENTITY, recorded, NOW) == Counted(IDENTITY, came=1, aborted=1, failed=2)  # type: ignore[arg-type]
