"""What a rank tells of the requests in its queues, and of those in a forward, from objects of SGLang's shape."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from pdctl.engines import request_tables
from pdctl.engines.request_tables import Places
from pdctl.engines.sglang.queues import QueueReader
from pdctl.engines.sglang.request_tables import deferred
from pdctl.engines.shared import statuses_of
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


class Store:
    """The statuses of a pipeline stage, as SGLang keeps them from 0.5.22 on: no dict, and not iterable."""

    _pp_size, _pp_rank = 2, 1
    _peer_map: dict[int, dict[int, int]]

    def __init__(self, **rooms: int) -> None:
        self._local_map = {int(room[1:]): poll for room, poll in rooms.items()}

    def __getitem__(self, room: int) -> int:
        return self._local_map[room]


def test_the_statuses_of_a_pipeline_stage_are_read_from_its_part_of_the_store() -> None:
    manager = SimpleNamespace(request_status=Store(r7=2, r9=3))
    queue = SimpleNamespace(queue=[request(7, "a", time_stats=None)], kv_manager=manager)
    scheduler = SimpleNamespace(
        disagg_prefill_bootstrap_queue=queue, disagg_prefill_inflight_queue=[], waiting_queue=[], running_batch=None
    )
    reader = QueueReader(scheduler, "prefill")
    queues, missing = reader.read()
    assert [(entry.room, entry.state) for entry in queues["prefill.bootstrap"]] == [(7, 2)]
    assert not missing
    places = Places(
        role="prefill", manager=manager, queues={}, space=Space, ends=None, running=list, client=lambda _: -1
    )
    assert request_tables.read(places, {}, {}, 1).tables == {"request_status": [7, 9]}


def test_stage_0_goes_by_the_statuses_of_all_stages() -> None:
    """One that a stage has not told is in its handshake, whatever stage 0 itself has; later stages go by their own."""
    store = Store(r7=4, r8=4, r9=3)
    store._pp_size, store._pp_rank, store._peer_map = 3, 0, {1: {7: 3, 9: 4}, 2: {7: 4, 9: 4}}
    assert [statuses_of(store).get(room) for room in (7, 8, 9, 10)] == [3, 1, 3, None]
    store._pp_rank, store._peer_map = 1, {}
    assert statuses_of(store).get(8) == 4
    assert statuses_of({8: 2}).get(8) == 2
    assert statuses_of(None) is None


class Releases:
    """A decode scheduler that keeps memory of failed transfers, as SGLang does from 0.5.22 on."""

    def __init__(self, *entries: Any, acks: dict[int, set[int]]) -> None:
        tracker = {room: SimpleNamespace(generation=1, prefill_ranks=ranks) for room, ranks in acks.items()}
        self.disagg_decode_prealloc_queue = SimpleNamespace(
            kv_manager=SimpleNamespace(_deferred_abort_ack_tracker=tracker)
        )
        self.disagg_decode_transfer_queue = SimpleNamespace(_deferred_releases=list(entries), enable_host_receive=True)


def failed(room: int, *, host: bool = False) -> Any:
    return SimpleNamespace(req=request(room, f"r{room}", kv_allocated_len=40), host_staged=host)


def test_memory_that_is_kept_for_prefill_is_told_with_its_acks_and_its_deadline() -> None:
    now = time.monotonic()
    scheduler = Releases(
        (failed(7), now - 5.0, now + 25.0, 3, 2),
        (failed(8), now - 5.0, now - 1.0, 4, 0),
        (failed(9, host=True), now - 5.0, now + 25.0, 5, 0),
        acks={7: {1}},
    )
    one, late, host = deferred(scheduler)
    assert (one.room, one.rid, one.slot, one.kv, one.acks, one.needed) == (7, "r7", 3, 40, 1, 2)
    assert one.held_s >= 5.0
    assert 0 < one.left_s <= 25.0
    assert (late.left_s, late.acks, late.needed) == (0.0, 0, 0)
    assert (host.left_s, host.acks, host.needed) == (-1.0, -1, -1)


@pytest.mark.parametrize("entries", [None, [], [("another form",)]])
def test_an_engine_that_keeps_nothing_or_otherwise_tells_nothing(entries: Any) -> None:
    scheduler = SimpleNamespace(
        disagg_decode_transfer_queue=SimpleNamespace(_deferred_releases=entries) if entries is not None else None
    )
    places = Places(
        role="decode", manager=SimpleNamespace(), queues={}, space=Space, ends=None, running=list,
        client=lambda _: -1, deferred=lambda: deferred(scheduler),
    )  # fmt: skip
    assert request_tables.read(places, {}, {}, 1).deferred == ()


def test_requests_held_for_new_weights_are_among_the_retracted() -> None:
    queue = SimpleNamespace(
        queue=[], pending_reqs=[], retracted_queue=[request(7, "a")], held_rebootstrap_reqs=[request(8, "b")],
        kv_manager=SimpleNamespace(request_status={}),
    )  # fmt: skip
    scheduler = SimpleNamespace(
        disagg_decode_prealloc_queue=queue, disagg_decode_transfer_queue=queue, waiting_queue=[], running_batch=None
    )
    read, _ = QueueReader(scheduler, "decode").read()
    assert [entry.room for entry in read["decode.retracted"]] == [7, 8]
