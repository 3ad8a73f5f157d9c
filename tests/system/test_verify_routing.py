"""``pdctl verify-routing`` on labs: each case by its name, its twin clean, and bootstrap servers that misbehave."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pdctl.lab.engine import bootstrap
from tests.support.labs import Lab, Labs
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]  # the machine may be busy

PATIENT = ("--rank-timeout", "60s", "--timeout", "100s")
DP2 = ("--prefill", "dp=2", "--decode", "tp=2")
QUERY = (*DP2, "--force-query", "prefill,decode")


@pytest.fixture(scope="module")
def follow() -> Iterator[Lab]:
    """Rooms follow ``room % dp_size``, and a conflict is noticed."""
    with Labs() as labs:
        yield labs.up(*DP2)


@pytest.fixture(scope="module")
def query() -> Iterator[Lab]:
    """Decode asks for every room, and prefill registers every room."""
    with Labs() as labs:
        yield labs.up(*QUERY)


@pytest.fixture
def without() -> Iterator[Callable[..., Lab]]:
    """Starts a lab without one fix, or without any left out."""
    with Labs() as labs:
        yield lambda fix, *options: labs.up(*(("--without", fix) if fix else ()), *options)


def verify(lab: Lab, *options: object, code: int | None) -> dict[str, Any]:
    done = lab.labs.cli("verify-routing", "-o", "json", *PATIENT, *options, code=code)
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schema"] == "pdctl.routing"
    return document


def row(document: dict[str, Any], room: int) -> dict[str, Any]:
    [found] = [each for each in document["rooms"] if each["room"] == room]
    return found


def beliefs(document: dict[str, Any], room: int) -> tuple[Any, ...]:
    """Return (formula, registered, dp ranks of prefill, of decode by tp)."""
    found = row(document, room)
    held = sorted({holder["dp"] for holder in found["prefill"]})
    return (
        found["formula"],
        found["bootstrap"],
        held,
        {place: asker["dp"] for asker in found["decode"] for place in asker["places"]},
    )


def codes(document: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in document["findings"]]


def until_nothing_is_off(lab: Lab) -> None:
    def nothing() -> bool:
        document = verify(lab, code=None)
        return not document["rooms"] and not document["findings"] and not document["partial"]

    until("no room that is off", nothing)


def in_flight(lab: Lab, **how: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: lab.load(**{"requests": 1, "seconds": 120, **how}), daemon=True)
    thread.start()
    return thread


def when_both_have(lab: Lab, room: int) -> None:
    def everywhere() -> bool:
        queues = lab.queues()
        sides = [{r for q in rooms.values() for r in q} for rooms in queues.values()]
        return sum(room in side for side in sides) == 3  # one prefill rank, two decode ranks

    until("the registration on every rank", everywhere)


def when_prefill_has(lab: Lab, room: int) -> None:
    until(
        "the room at prefill",
        lambda: any(room in queues.get("prefill.bootstrap", []) for queues in lab.queues().values()),
    )


# ---- C4 --------------------------------------------------------------------------------------------------------------


def test_routed_against_the_formula(without: Callable[..., Lab]) -> None:
    lab = without("dp-registration", *DP2)
    in_flight(lab, room=7, prefill_dp=0)
    when_both_have(lab, 7)
    document = verify(lab, 7, code=1)
    [finding] = document["findings"]
    assert finding["code"] == "PD120"
    assert "dispatched 0, implied 1, registered none, receiver expects 1" in finding["summary"]
    assert "FORCE_QUERY" not in finding["next_step"], "this prefill does not know it"
    assert beliefs(document, 7) == (1, None, [0], {"tp0": 1, "tp1": 1})
    # As people see it, in 80 columns.
    lab.labs.env["COLUMNS"] = "80"
    text = lab.labs.cli("verify-routing", *PATIENT, code=1).stdout
    assert max(map(len, text.splitlines())) <= 80
    lines = [line.split() for line in text.splitlines()]
    assert ["room", "formula", "bootstrap", "prefill", "tp0", "tp1", "verdict"] in lines
    assert ["7", "dp1", "none", "dp0", "dp1", "dp1", "CONFLICT"] in lines
    # The twin, in the same lab: room 6 on the rank that the formula names.
    in_flight(lab, room=6, prefill_dp=0, to="prefill")
    when_prefill_has(lab, 6)
    document = verify(lab, code=1)
    assert row(document, 6)["verdict"] == "WAITS"
    assert [finding["rooms"] for finding in document["findings"]] == [[7]]


def test_the_engines_own_failure_is_shown_as_such(follow: Lab) -> None:
    outcome = follow.load(requests=1, room=7, prefill_dp=0)
    assert outcome.failed == 1
    until_nothing_is_off(follow)  # decode hears of it after prefill
    [finding] = verify(follow, 7, code=1)["findings"]
    assert (finding["code"], finding["level"]) == ("PD121", "warning")
    assert "the engine failed it" in finding["summary"]
    # Decode alone does not hear of it where no router tells it.
    in_flight(follow, room=9, to="decode")
    in_flight(follow, room=9, prefill_dp=0, to="prefill")
    until("the one finding", lambda: codes(verify(follow, code=None)) == ["PD121"])  # type: ignore[arg-type]
    in_flight(follow, room=9, prefill_dp=1, to="prefill")
    until_nothing_is_off(follow)


def test_a_healthy_cluster_under_load(follow: Lab, query: Lab) -> None:
    for lab in (follow, query):
        thread = in_flight(lab, requests=0, concurrency=16, seconds=15)
        while thread.is_alive():
            document = verify(lab, code=0)
            assert document["findings"] == []
            assert {each["verdict"] for each in document["rooms"]} <= {"AGREE", "WAITS", "DONE"}
        thread.join()


def test_another_load_balancing(without: Callable[..., Lab]) -> None:
    lab = without("", *DP2, "--load-balance", "total_requests")
    in_flight(lab, room=7, prefill_dp=0, to="prefill")
    when_prefill_has(lab, 7)
    document = verify(lab, 7, code=0)
    assert beliefs(document, 7) == (None, 0, [0], {})
    assert row(document, 7)["registered_s"] >= 0
    # Registered under another rank, and decode goes by it.
    lab.labs.cli("inject", "--misroute", 1, "--rank", "prefill:dp0", "--room", 8, "--detach")
    in_flight(lab, room=8, prefill_dp=0)
    when_both_have(lab, 8)
    [finding] = verify(lab, code=1)["findings"]
    assert (finding["code"], finding["rooms"]) == ("PD125", [8])


# ---- C6 --------------------------------------------------------------------------------------------------------------


def test_the_force_query_hole(without: Callable[..., Lab]) -> None:
    lab = without("register-every-room", *QUERY)
    in_flight(lab, room=6, prefill_dp=0)
    when_both_have(lab, 6)
    document = verify(lab, code=1)
    [finding] = document["findings"]
    assert finding["code"] == "PD124"
    assert "0.5.11 to 0.5.18" in finding["versions"]
    assert beliefs(document, 6) == (None, None, [0], {"tp0": None, "tp1": None})
    assert lab.load(requests=1, room=7, prefill_dp=0).good, "a room that conflicts is registered"


def test_every_room_is_registered(query: Lab) -> None:
    in_flight(query, room=6, prefill_dp=0, to="prefill", seed=1)  # the same seed: the same prompt
    when_prefill_has(query, 6)
    document = verify(query, 6, code=0)
    assert "PD126" not in codes(document), "it has just been registered"
    assert beliefs(document, 6) == (None, 0, [0], {})
    assert query.load(requests=1, room=6, to="decode", seed=1).good
    [side] = [side for side in document["sides"] if side["role"] == "prefill"]
    assert (side["force_query"], side["registers"]) == (True, "every room")


def test_force_query_on_one_side(without: Callable[..., Lab]) -> None:
    lab = without("", *DP2, "--force-query", "decode")
    assert codes(verify(lab, code=1)) == ["PD123"], "before any room waits"
    in_flight(lab, room=6, prefill_dp=0)
    when_both_have(lab, 6)
    [finding] = verify(lab, 6, code=1)["findings"]
    assert (finding["code"], finding["rooms"]) == ("PD123", [6])
    assert "set on decode and not set on prefill" in finding["summary"]


# ---- C3 --------------------------------------------------------------------------------------------------------------


def hidden_from_tp0(lab: Lab, room: int) -> None:
    """Have the bootstrap server's answers to decode tp0 lack a room that tp1 is told of."""
    lab.labs.cli("inject", "--hide-registration", "--rank", "decode:tp0", "--room", room, "--for", "10m", "--detach")
    in_flight(lab, room=room, prefill_dp=0)
    when_both_have(lab, room)
    until(
        "what both decode ranks believe",
        lambda: {d["dp"] for d in row(verify(lab, room, code=None), room)["decode"]} == {None, 0},
    )  # type: ignore[arg-type]


def test_pending_on_one_rank_and_in_the_handshake_on_another(without: Callable[..., Lab]) -> None:
    lab = without("receiver", *QUERY)
    hidden_from_tp0(lab, 6)
    document = verify(lab, 6, code=1)
    [finding] = document["findings"]
    assert finding["code"] == "PD106"
    assert "pending on tp0, and in the handshake queue on tp1, which was told dp 0, registered" in finding["summary"]
    assert row(document, 6)["verdict"] == "SPLIT"
    assert beliefs(document, 6) == (None, 0, [0], {"tp0": None, "tp1": 0})


def test_twin_with_the_new_life_cycle(query: Lab) -> None:
    hidden_from_tp0(query, 10)
    try:
        document = verify(query, 10, code=0)
        assert (document["findings"], document["young"]) == ([], 0)
        assert row(document, 10)["text"] == "registered, and tp0 has not been told yet"
        tp0 = next(asker for asker in row(document, 10)["decode"] if asker["places"] == ["tp0"])
        assert tp0["queues"] == ["decode.pending", "decode.prealloc"]
    finally:
        query.labs.cli("heal", "--all")
    until_nothing_is_off(query)


# ---- bootstrap servers -----------------------------------------------------------------------------------------------


def test_what_the_prefill_server_says_now(follow: Lab) -> None:
    """A server of other sizes behind the address: as a restart with other settings, which decode has not noticed."""
    assert follow.load(requests=4).good  # so that decode has asked
    server = bootstrap.CommonKVBootstrapServer(120.0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"
    for dp in range(3):
        rank = {
            "attn_tp_size": 1, "attn_tp_rank": 0, "attn_cp_size": 1, "attn_cp_rank": 0, "attn_dp_size": 1,
            "attn_dp_rank": 0, "pp_size": 1, "pp_rank": 0, "system_dp_size": 3, "system_dp_rank": dp,
            "rank_ip": "127.0.0.1", "rank_port": 1 + dp, "page_size": 1, "kv_cache_dtype": "int32",
            "load_balance_method": "round_robin",
        }  # fmt: skip
        assert bootstrap.call(address, "PUT", "/route", rank)[0] == 200
    try:
        document = verify(follow, "--bootstrap", address, code=1)
    finally:
        server.shutdown()
        server.server_close()
    said = [finding["summary"] for finding in document["findings"] if finding["code"] == "PD128"]
    assert any("to have dp_size 2; its bootstrap server says 3 now" in summary for summary in said), said
    assert any("follow_bootstrap_room True; its bootstrap server says False now" in summary for summary in said), said
    assert "PD129" in codes(document), "and its routes lead to other ports"


def test_two_requests_with_one_room(follow: Lab) -> None:
    """A router that drew a room twice; its twin is a room that is on prefill and on decode."""

    def twice() -> bool:
        queues = [rooms for name, rooms in follow.queues().items() if name.startswith("decode")]
        return all(sum(queue.count(402) for queue in rooms.values()) == 2 for rooms in queues)

    with follow.waiting(402, "decode"):
        until(
            "room 402 in a queue",
            lambda: any(402 in rooms for queues in follow.queues().values() for rooms in queues.values()),
        )
        which = ("--rank", "decode:*", "--allow-ranks", "2", "--for", "1m", "--detach")
        follow.labs.cli("inject", "--duplicate-room", "402", "--room", 406, *which)
        with follow.waiting(406, "decode"):
            try:
                until("two rooms of one number", twice)
            finally:
                follow.labs.cli("heal", "--all")
            document = verify(follow, 402, "--grace", "1s", code=1)
    [finding] = [finding for finding in document["findings"] if finding["code"] == "PD127"]
    assert finding["rooms"] == [402]
    assert "Room 402 belongs to 2 requests on decode: " in finding["summary"]
    assert set(finding["ranks"]) == {"decode dp0 pp0 tp0", "decode dp0 pp0 tp1"}
    until("no room of two requests", lambda: "PD127" not in codes(verify(follow, code=None)))


def test_a_registration_that_runs_out(without: Callable[..., Lab]) -> None:
    """Prefill registered the room, and decode has not come for it."""
    lab = without("", *QUERY, "--entry-cleanup", "20s")
    in_flight(lab, room=7, prefill_dp=0, to="prefill")
    when_prefill_has(lab, 7)
    document = until("PD126", lambda: found if "PD126" in codes(found := verify(lab, 7, code=None)) else None)
    [finding] = [finding for finding in document["findings"] if finding["code"] == "PD126"]
    assert finding["rooms"] == [7]
    assert "(after 20 s), and no decode rank has been told of it yet" in finding["summary"]


@contextlib.contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve a port, one thread a connection."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=run, args=(connection,), daemon=True).start()

        def run(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def never(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{")
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


def noise(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(bytes(range(256)) * 4)


def a_web_page(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>")


def wrong_json(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n[1,2,3]")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (never, "no answer|does not answer"),
        (drip, "no answer|does not answer"),
        (noise, "does not speak HTTP"),
        (a_web_page, "not answered with JSON"),
        (wrong_json, "not answered with an object"),
    ],
)
def test_a_server_that_misbehaves_costs_its_belief_only(
    follow: Lab, answer: Callable[[socket.socket], None], why: str
) -> None:
    in_flight(follow, room=20, to="prefill")
    when_prefill_has(follow, 20)
    with listening(answer) as address:
        done = follow.labs.cli("verify-routing", "-o", "json", "--rank-timeout", "5s", "--bootstrap", address, code=3)
    document = json.loads(done.stdout)
    [server] = document["servers"]
    assert any(part in server["silence"] for part in why.split("|")), server
    assert beliefs(document, 20)[:3] == (0, None, [0]), "the rest is shown"
    assert row(document, 20)["bootstrap_note"].startswith("missing: ")
    assert document["findings"] == []


def test_nobody_listens(follow: Lab) -> None:
    with socket.socket() as taken:  # bound, and nothing more: nobody else gets this port
        taken.bind(("127.0.0.1", 0))
        document = verify(follow, "--bootstrap", f"127.0.0.1:{taken.getsockname()[1]}", code=3)
    assert "refused" in document["servers"][0]["silence"]


def test_the_labs_own_server_is_stopped(query: Lab) -> None:
    pid = query.process("bootstrap").pid
    os.kill(pid, signal.SIGSTOP)
    try:
        done = query.labs.cli("verify-routing", "--rank-timeout", "3s", code=3)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "missing: " in done.stdout
    until(
        "no rank that is missing", lambda: "missing" not in query.labs.cli("verify-routing", *PATIENT, code=None).stdout
    )


# ---- what is asked ---------------------------------------------------------------------------------------------------


def test_an_unknown_room(query: Lab) -> None:
    in_flight(query, room=7203440, prefill_dp=0, to="prefill", seed=1)
    when_prefill_has(query, 7203440)
    done = query.labs.cli("verify-routing", 7203441, *PATIENT, code=3)
    assert "room 7203441 is unknown here: no rank and no bootstrap server that answered has it" in done.stderr
    assert "Nearest known: 7203440." in done.stderr
    assert query.load(requests=1, room=7203440, to="decode", seed=1).good


@pytest.mark.parametrize("room", ["banana", "-1", "0", str(1 << 64), "7.5"])
def test_what_is_no_room_is_wrong_usage(query: Lab, room: str) -> None:
    done = query.labs.cli("verify-routing", "--", room, code=2)
    assert "is no room" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("address", ["host", "host:", ":30300", "host:0", "host:99999", "host:http"])
def test_what_is_no_address_is_wrong_usage(query: Lab, address: str) -> None:
    assert "is no HOST:PORT" in query.labs.cli("verify-routing", "--bootstrap", address, code=2).stderr


def test_every_format(query: Lab) -> None:
    for form in ("json", "jsonl", "yaml", "csv", "wide", "table"):
        assert query.labs.cli("verify-routing", "-o", form, *PATIENT, code=0).stdout or form == "jsonl"
