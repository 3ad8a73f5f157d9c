"""Which ranks of the other side a rank sends to, from tables of SGLang's shape, and how it gets on with bootstrap servers."""

from __future__ import annotations

import time
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from pdctl.engines import peers
from pdctl.engines.base import Hooks
from pdctl.engines.sglang import events
from pdctl.protocol.model import EventKind
from pdctl.protocol.requests import MAX_PEER_ROOMS, MAX_PEERS, Lookup, Peer

ADDRESS = "10.0.0.1:8998"


def rank(port: int, **more: Any) -> dict[str, Any]:
    return {"rank_ip": "10.0.0.1", "rank_port": port, "is_dummy": False, **more}


def decode_manager(**more: Any) -> Any:
    info = SimpleNamespace(target_tp_ranks=[2, 3], target_cp_ranks=[0], target_pp_ranks=[0, 1])
    pool = {f"{ADDRESS}_1_0_2": [rank(1), rank(2), rank(3), rank(4)]}
    return SimpleNamespace(connection_pool=pool, prefill_info_table={ADDRESS: info}, **more)


def test_a_decode_rank_tells_where_it_takes_each_prefill_rank_to_listen() -> None:
    manager = decode_manager()
    receiver = SimpleNamespace(
        bootstrap_infos=manager.connection_pool[f"{ADDRESS}_1_0_2"], bootstrap_addr=ADDRESS, prefill_dp_rank=1
    )
    found = peers.peers(manager, [(7, receiver), (8, SimpleNamespace(bootstrap_infos=None)), (9, None)])
    assert found is not None
    # The last stage is asked for first.
    assert [(p.port, p.dp, p.cp, p.tp, p.pp) for p in found] == [
        (1, 1, 0, 2, 1),
        (2, 1, 0, 2, 0),
        (3, 1, 0, 3, 1),
        (4, 1, 0, 3, 0),
    ]
    assert {(p.host, p.bootstrap, p.rooms, p.used) for p in found} == {("10.0.0.1", ADDRESS, (7,), 1)}


def test_what_a_request_goes_by_is_told_also_where_the_table_has_let_it_go() -> None:
    manager = decode_manager()
    manager.connection_pool = {}
    receiver = SimpleNamespace(bootstrap_infos=[rank(9)], bootstrap_addr=ADDRESS, prefill_dp_rank=0)
    assert peers.peers(manager, [(7, receiver)]) == (Peer("10.0.0.1", 9, "", ADDRESS, rooms=(7,), used=1),)


def test_a_prefill_rank_tells_whose_memory_it_has_and_for_which_rooms() -> None:
    memory = SimpleNamespace(endpoint="10.0.0.2", dst_port=6000, dst_tp_rank=1)
    infos: Any = defaultdict(dict)
    infos[7] = {"10.0.0.2:9000": object()}
    infos[8] = {"elsewhere": object()}
    manager = SimpleNamespace(decode_kv_args_table={"10.0.0.2:9000": memory}, transfer_infos=infos)
    assert peers.peers(manager, []) == (Peer("10.0.0.2", 6000, "10.0.0.2:9000", tp=1, rooms=(7,), used=1),)


def test_an_engine_without_such_tables_does_not_tell() -> None:
    assert peers.peers(SimpleNamespace(), []) is None
    assert peers.session(SimpleNamespace()) == ""
    assert peers.lookups(SimpleNamespace(), None) == {}


def test_sessions_of_the_backends() -> None:
    assert peers.session(SimpleNamespace(engine=SimpleNamespace(session_id="10.0.0.2:9000"))) == "10.0.0.2:9000"
    assert peers.session(SimpleNamespace(agent=SimpleNamespace(name="a-b"))) == "a-b"
    assert peers.session(SimpleNamespace(engine=SimpleNamespace(session_id=5))) == ""


def test_what_is_told_is_bounded_and_nonsense_is_left_out() -> None:
    pool: dict[Any, Any] = {f"{n}_0_0_0": [rank(n)] for n in range(MAX_PEERS + 10)}
    manager = SimpleNamespace(connection_pool=pool, prefill_info_table=None)
    found = peers.peers(manager, [])
    assert found is not None
    assert len(found) == MAX_PEERS
    odd = {3: [rank(1)], "a_b": [], f"{ADDRESS}_x_0_0": [rank(1)], f"{ADDRESS}_0_0_0": [rank("?"), None, rank(5)]}  # type: ignore[arg-type]
    receiver = SimpleNamespace(bootstrap_infos=[rank(5)], bootstrap_addr=ADDRESS, prefill_dp_rank=0)
    many = [(room, receiver) for room in range(1, MAX_PEER_ROOMS + 50)]
    [one] = peers.peers(SimpleNamespace(connection_pool=odd, prefill_info_table={}), many) or ()
    assert (one.port, len(one.rooms), one.used) == (5, MAX_PEER_ROOMS, MAX_PEER_ROOMS + 49)


def test_not_all_of_a_huge_table_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_MOST_WAYS", 6)
    memory = SimpleNamespace(endpoint="10.0.0.2", dst_port=6000)
    infos = {room: {"10.0.0.2:9000": object(), "elsewhere": object()} for room in range(1, 100)}
    manager = SimpleNamespace(decode_kv_args_table={"10.0.0.2:9000": memory}, transfer_infos=infos)
    [one] = peers.peers(manager, []) or ()
    assert one.rooms == (94, 95, 96), "the newest"
    receiver = SimpleNamespace(bootstrap_infos=[rank(1), rank(2)], bootstrap_addr=ADDRESS, prefill_dp_rank=0)
    found = peers.peers(SimpleNamespace(connection_pool={}), [(room, receiver) for room in range(1, 100)]) or ()
    assert [one.rooms for one in found] == [(1, 2, 3), (1, 2, 3)]


def test_attempts_and_heartbeats_without_an_answer() -> None:
    manager = SimpleNamespace(heartbeat_failures={ADDRESS: 1, "fine": 0}, max_failures=2)
    prealloc = SimpleNamespace(
        _ensure_retry_count={"other": 3}, _max_ensure_retries=15, _ensure_retry_interval=1.0,
        _ensure_last_attempt_time={"other": time.monotonic() - 5.0},
    )  # fmt: skip
    found = peers.lookups(manager, prealloc)
    assert found[ADDRESS] == Lookup(0, 15, 1.0, -1.0, 1, 2)
    assert (found["other"].attempts, found["other"].missed, sorted(found)) == (3, 0, [ADDRESS, "other"])
    assert found["other"].last_s >= 5.0


def test_asking_a_bootstrap_server_in_vain_is_recorded_now_and_then() -> None:
    class Manager:
        def __init__(self) -> None:
            self.prefill_info_table: dict[str, int] = {}
            self.there = False

        def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
            if self.there:
                self.prefill_info_table[bootstrap_addr] = 1
            return self.there

    seen: list[tuple[int, str]] = []

    def event(kind: EventKind, *, a: int = 0, text: str = "") -> None:
        assert kind is EventKind.LOOKUP
        seen.append((a, text))

    hooks = Hooks()
    assert hooks.wrap(Manager, "try_ensure_parallel_info", "events.lookup", events.lookups(event))
    manager = Manager()
    assert [manager.try_ensure_parallel_info(ADDRESS) for _ in range(16)] == [False] * 16
    manager.there = True
    assert manager.try_ensure_parallel_info(ADDRESS)
    assert manager.try_ensure_parallel_info(ADDRESS)  # known: not asked
    assert seen == [(n, ADDRESS) for n in (1, 5, 10, 15, 0)]
    assert hooks.errors() == {}
    hooks.remove_all()
