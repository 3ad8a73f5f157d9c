"""What a recording says of a rank's faults, where the rank says nothing."""

from __future__ import annotations

import pytest

from pdctl.inject.recorded import describe_last_fault
from pdctl.protocol.model import EventKind
from pdctl.recording.reader import Event

S = 1_000_000_000
ARMED = (1, EventKind.FAULT_ARMED, 1, "delay-metadata")
FIRED = (2, EventKind.FAULT_FIRED, 1, "delay-metadata")
ENDED = (5, EventKind.FAULT_ENDED, 1, "lease lost")
DONE = (6, EventKind.NOTE, 1, "delay-metadata released")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ((), "its recording has no fault"),
        ((ARMED, FIRED), "its recording has delay-metadata placed 9s ago, fired 1 time, not ended"),
        ((ARMED, FIRED, ENDED), "fired 1 time, ended 5s ago (lease lost), 1 held not yet done"),
        ((ARMED, FIRED, ENDED, DONE), "ended 5s ago (lease lost), nothing held any more"),
        ((ARMED, ENDED, (6, EventKind.FAULT_ARMED, 2, "skew-poll")), "has skew-poll placed 4s ago, fired 0 times, not"),
        (((4, EventKind.NOTE, 0, "agent ended: SystemExit"),), "its agent's thread ended 6s ago (SystemExit); its rec"),
    ],
)
def test_the_last_fault_and_what_became_of_it(rows, says):
    events = [
        Event(seq, int(at * S), kind, "", -1, 0, a, 0, text) for seq, (at, kind, a, text) in enumerate(rows, start=1)
    ]
    assert says in describe_last_fault(events, 10 * S)


def test_a_ring_that_has_lost_its_beginning_says_since_when():
    event = Event(900, 4 * S, EventKind.ENQUEUE, "", -1, 7, 0, 0, "")
    assert describe_last_fault([event], 10 * S) == "its recording has no fault since 6s ago"
