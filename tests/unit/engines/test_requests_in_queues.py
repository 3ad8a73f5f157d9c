"""What a rank tells of the requests in its queues, and of those in a forward, from objects of SGLang's shape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pdctl.engines import request_tables
from pdctl.engines.request_tables import Places
from pdctl.engines.sglang.queues import QueueReader
from pdctl.protocol.model import QueueEntry
from pdctl.protocol.requests import Space


def request(room: int, rid: str, **more: Any) -> Any:
    return SimpleNamespace(rid=rid, bootstrap_room=room, origin_input_ids=[1, 2], finished_reason=None, **more)


def test_two_requests_of_one_id_keep_their_rooms() -> None:
    waiting = [request(7, "same"), request(8, "same"), request(9, "other")]
    places = Places(
        role="prefill",
        manager=SimpleNamespace(),
        queues={"waiting": lambda: waiting},
        space=Space,
        ends=None,
        running=list,
        client=lambda _: -1,
    )
    entries = [QueueEntry(one.bootstrap_room, one.rid, slot) for slot, one in enumerate(waiting)]
    found = request_tables.read(places, {"waiting": entries, "running": []}, {}, 1)
    assert [(e.room, e.rid, e.slot) for e in found.rooms] == [(7, "same", 0), (8, "same", 1), (9, "other", 2)]


def test_a_forward_of_another_micro_batch_has_its_requests() -> None:
    def batch(*requests: Any) -> Any:
        return SimpleNamespace(reqs=list(requests))

    mine, other, done = request(7, "a"), request(8, "b"), request(9, "c")
    done.finished_reason = "length"
    scheduler = SimpleNamespace(
        waiting_queue=[], cur_batch=batch(mine), running_batch=None, mbs=[batch(mine), batch(other, done), None]
    )
    assert QueueReader(scheduler, "prefill").running() == [mine, other]
