"""Parts of the lab that stand alone: the stand-in model, the bootstrap server, the socket transport, ending processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.lab import state, toymodel
from pdctl.lab.config import LabConfig
from pdctl.lab.engine import bootstrap
from pdctl.lab.engine.receiver import DecodeKVManager
from pdctl.lab.engine.transport import SocketTransport
from pdctl.protocol.processes import look

TOKENS = st.lists(st.integers(1, toymodel.VOCABULARY - 1), min_size=1, max_size=20)


@given(TOKENS, st.sampled_from([1, 2, 4, 8]), st.integers(1, 4))
def test_tokens_do_not_depend_on_the_number_of_ranks(prompt: list[int], ranks: int, layers: int) -> None:
    kv = toymodel.prompt_kv(prompt, layers)
    shares = sum(toymodel.share(kv, rank, ranks) for rank in range(ranks))
    first = toymodel.next_token(prompt[-1], shares)
    assert toymodel.expected_tokens(prompt, 1, layers) == [first]
    assert toymodel.expected_tokens(prompt, 5, layers)[:1] == [first]


def test_tokens_depend_on_every_row_of_the_kv() -> None:
    prompt = [5, 6, 7]
    kv = toymodel.prompt_kv(prompt, 2)
    right = toymodel.share(kv, 0, 1)
    for layer in range(2):
        for row in range(3):
            other = kv.copy()
            other[layer, row, 0] += 1
            assert toymodel.next_token(7, toymodel.share(other, 0, 1)) != toymodel.next_token(7, right)


@pytest.fixture
def server() -> Iterator[str]:
    server = bootstrap.CommonKVBootstrapServer(entry_cleanup_s=60.0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def registration(dp: int, tp: int, pp: int, **more: object) -> dict[str, object]:
    sizes = {"attn_tp_size": 2, "attn_cp_size": 1, "attn_dp_size": 1, "pp_size": 1, "system_dp_size": 2}
    places = {"attn_tp_rank": tp, "attn_cp_rank": 0, "attn_dp_rank": 0, "pp_rank": pp, "system_dp_rank": dp}
    rest = {"rank_ip": "127.0.0.1", "rank_port": 1000 + 10 * dp + tp, "page_size": 1, "kv_cache_dtype": "auto"}
    return {**sizes, **places, **rest, **more}


def route(dp: int, tp: int) -> str:
    return f"/route?prefill_dp_rank={dp}&prefill_cp_rank=0&target_tp_rank={tp}&target_pp_rank=0"


INFO = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"


def test_routes_are_known_once_every_rank_has_registered(server: str) -> None:
    assert bootstrap.call(server, "GET", "/health") == (200, "OK")
    places = [(dp, tp) for dp in range(2) for tp in range(2)]
    for dp, tp in places:
        assert bootstrap.call(server, "GET", INFO)[0] == 503
        assert bootstrap.call(server, "PUT", "/route", registration(dp, tp, 0))[0] == 200
    status, info = bootstrap.call(server, "GET", INFO)
    assert (status, info["dp_size"], info["attn_tp_size"], info["follow_bootstrap_room"]) == (200, 2, 2, True)
    assert bootstrap.call(server, "GET", route(1, 1)) == (200, {"rank_ip": "127.0.0.1", "rank_port": 1011})
    assert bootstrap.call(server, "GET", route(2, 0))[0] == 404


def test_a_bootstrap_server_comes_back_at_its_address(server: str) -> None:
    port = int(server.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        bootstrap.CommonKVBootstrapServer(entry_cleanup_s=60.0, port=port)
    other = bootstrap.CommonKVBootstrapServer(entry_cleanup_s=60.0)
    other.server_close()
    bootstrap.CommonKVBootstrapServer(entry_cleanup_s=60.0, port=other.server_port).server_close()


def test_a_slow_bootstrap_server_takes_registrations_at_once() -> None:
    server = bootstrap.CommonKVBootstrapServer(entry_cleanup_s=60.0, slow_s=600.0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"
    assert bootstrap.call(address, "PUT", "/route", registration(0, 0, 0), timeout_s=60.0)[0] == 200
    for method, path in (("GET", "/health"), ("POST", "/query_dp_ranks")):
        with pytest.raises(TimeoutError):
            bootstrap.call(address, method, path, {}, timeout_s=0.2)
    server.shutdown()
    server.server_close()


def test_dp_ranks_of_rooms(server: str) -> None:
    assert bootstrap.call(server, "POST", "/register_dp_rank", {"bootstrap_room": 2**63, "dp_rank": 1})[0] == 200
    answer = bootstrap.call(server, "POST", "/query_dp_ranks", {"bootstrap_rooms": [2**63, 5]})
    assert answer == (200, {str(2**63): 1})


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/route", None, 400),
        ("GET", "/elsewhere", None, 404),
        ("PUT", "/route", {}, 400),
        ("PUT", "/route", [], 400),
        ("POST", "/register_dp_rank", {"bootstrap_room": "x", "dp_rank": 0}, 400),
        ("POST", "/query_dp_ranks", {}, 400),
        ("POST", "/elsewhere", {}, 404),
    ],
)
def test_what_the_bootstrap_server_refuses(server: str, method: str, path: str, body: object, status: int) -> None:
    assert bootstrap.call(server, method, path, body)[0] == status


def test_old_entries_go() -> None:
    directory = bootstrap.Directory(entry_cleanup_s=-1.0)
    directory.register_dp_rank(7, 1)
    assert directory.query_dp_ranks([7]) == {}


def test_the_socket_transport_writes_registered_memory_only() -> None:
    here, there = SocketTransport("test"), SocketTransport("test")
    source, target, other = (ctypes.create_string_buffer(64) for _ in range(3))
    source.raw = bytes(range(64))
    there.register(ctypes.addressof(target), 64)
    address, to = ctypes.addressof(source), ctypes.addressof(target)
    assert here.write(there.session_id, [(address, to + 8, 8), (address + 32, to + 32, 4)]) == 0
    assert target.raw[8:16] == bytes(range(8))
    assert target.raw[32:36] == bytes(range(32, 36))
    assert here.write(there.session_id, [(address, ctypes.addressof(other), 8)]) < 0
    assert other.raw == bytes(64)
    assert here.write(there.session_id, [(address, to + 60, 8)]) < 0, "beyond the end"
    assert here.write(there.session_id, [(address, to, 4)]) == 0, "a refused write does not spoil the connection"
    assert here.write("127.0.0.1:1", [(address, to, 4)]) < 0


def test_ending_a_stopped_process_and_one_that_is_not_ours_any_more() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    start = look(child.pid).start
    os.kill(child.pid, signal.SIGSTOP)
    stranger = state.Process("x", child.pid, start + 1)  # the pid was used again
    assert state.end([stranger], grace_s=0.1) == []
    process = state.Process("x", child.pid, start)
    assert process.alive
    assert state.end([process], grace_s=0.1) == []
    assert not process.alive, "a zombie counts as ended"
    child.wait()


def test_decode_raises_where_kv_has_another_format_on_prefill() -> None:
    manager = object.__new__(DecodeKVManager)
    manager.config = LabConfig("x", decode_set={"page_size": "16"})
    manager._check_format({"page_size": 16, "kv_cache_dtype": "int32"})
    with pytest.raises(
        RuntimeError, match="Page size mismatch: prefill server has page_size=1, but decode server has page_size=16"
    ):
        manager._check_format({"page_size": 1, "kv_cache_dtype": "int32"})
    with pytest.raises(RuntimeError, match="KV cache dtype mismatch"):
        manager._check_format({"page_size": 16, "kv_cache_dtype": "fp8_e5m2"})
