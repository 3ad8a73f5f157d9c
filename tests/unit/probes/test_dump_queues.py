"""What ``dump queues`` says of requests."""

from __future__ import annotations

import pytest

from pdctl.probes.dump.judge import queues_of
from pdctl.protocol.model import KVPoll
from pdctl.protocol.rank import Answer, FoundRank
from pdctl.protocol.requests import RoomEntry, Rooms, RoomTable, Space
from tests.support.identities import identity


@pytest.mark.parametrize(
    ("queue", "state", "word"),
    [
        ("decode.transfer", {"state": int(KVPoll.SUCCESS)}, "Success"),
        ("decode.transfer", {}, "unknown"),
        ("running", {}, "-"),
    ],
)
def test_a_state_that_is_not_known_is_said_where_there_is_one(queue: str, state: dict[str, int], word: str) -> None:
    rooms = Rooms(0, 9, RoomTable.of([RoomEntry(queue=queue, room=7, rid="r7", **state)]), (), Space(), {}, {}, {})
    [request] = queues_of([Answer(FoundRank(identity(), "live"), rooms)]).requests
    assert request.state == word
