"""Requests to real servers: what is wrong with an address, what pins a request, when tokens tell anything.

The requests themselves are tested with real servers, in tests/engine.
"""

from __future__ import annotations

import pytest

from pdctl.engines.sglang.server import Info, Server, ask
from pdctl.inject.drill.engine_load import Tokens, plain
from pdctl.inject.drill.schema import LabLoad
from pdctl.inject.drill.servers import Address, Pair, check, check_version
from pdctl.protocol.errors import Exit, PdctlError
from tests.support.sglang_http import serving


def info(version: str = "0.5.13.post1", dp: int = 2, balance: str = "follow_bootstrap_room") -> Info:
    return Info(version=version, mode="prefill", bootstrap_port=8998, dp_size=dp, load_balance=balance)


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("http://10.0.0.1:30000", "10.0.0.1", 30000, ""),
        ("10.0.0.1:30000", "10.0.0.1", 30000, ""),
        ("https://pd.example/prefill/", "pd.example", 443, "/prefill"),
        ("http://[::1]:30000", "::1", 30000, ""),
    ],
)
def test_an_address(url: str, host: str, port: int, path: str) -> None:
    server = Server.parse(url, "prefill")
    assert (server.host, server.port, server.path) == (host, port, path)
    assert Server.parse(server.url, "prefill") == server


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host:1", "ftp:// is neither"),
        ("http://:30000", "there is no host"),
        ("http://host:port", "--prefill-url: "),
        ("http://host:99999", "--prefill-url: "),
        ("http://ho st:1", "there is no host"),
        ("http://host:1/?a=b", "no ? and no #"),
        ("http://me:secret@host:1", "has a user or password"),
    ],
)
def test_no_address(url: str, says: str) -> None:
    with pytest.raises(PdctlError) as caught:
        Server.parse(url, "prefill")
    assert caught.value.code == Exit.USAGE
    assert says in caught.value.message
    assert "secret" not in f"{caught.value.message}{caught.value.next_step}"


@pytest.mark.parametrize(
    ("prefill", "decode", "bootstrap", "says"),
    [
        ("http://a:1", "", "", "--decode-url is missing"),
        ("", "http://a:1", "", "--prefill-url is missing"),
        ("", "", "a:1", "--bootstrap without servers"),
        ("http://a:1", "http://a:2", "a", "--bootstrap 'a' is no address"),
        ("http://a:1", "http://a:2", "a:0", "--bootstrap 'a:0' is no address"),
        ("http://a:1", "http://a:2", f"a:{'9' * 5000}", "is no address"),
        ("http://a:1", "http://a:2", "http://a:1", "is no address"),
    ],
)
def test_options_that_do_not_go_together(prefill: str, decode: str, bootstrap: str, says: str) -> None:
    with pytest.raises(PdctlError) as caught:
        Address.parse(prefill, decode, bootstrap)
    assert caught.value.code == Exit.USAGE
    assert says in caught.value.message


def test_no_options_mean_no_servers() -> None:
    assert Address.parse("", "", "") is None
    address = Address.parse("http://a:1", "http://b:2", "[::1]:8998")
    assert address is not None
    assert address.bootstrap == ("::1", 8998)


@pytest.mark.parametrize(
    ("version", "field"),
    [("0.5.9", "data_parallel_rank"), ("0.5.10.post1", "routed_dp_rank"), ("0.5.23", "routed_dp_rank"),
     ("0.6.0", "routed_dp_rank"), ("", "routed_dp_rank"), ("main", "routed_dp_rank")],
)  # fmt: skip
def test_what_pins_a_request(version: str, field: str) -> None:
    assert info(version).pin(1) == {field: 1}


def test_which_dp_rank_a_room_implies() -> None:
    assert [info().implied_dp(room) for room in (6, 7)] == [0, 1]
    assert info(balance="round_robin").implied_dp(7) == -1
    assert info(dp=1).implied_dp(7) == -1


def test_a_load_that_these_servers_can_not_take() -> None:
    prefill, decode = Server.parse("http://a:1", "prefill"), Server.parse("http://a:2", "decode")
    pair = Pair(prefill, decode, ("a", 8998), info(), info())
    check(LabLoad(prefill_dp=1), pair)
    for load, says in (
        (LabLoad(prefill_dp=2), "no prefill dp 2"),
        (LabLoad(concurrency=257), "257 requests at once"),
    ):
        with pytest.raises(PdctlError, match=says):
            check(load, pair)


def test_servers_of_another_version_than_the_ranks_found() -> None:
    pair = Pair(Server.parse("a:1", "prefill"), Server.parse("a:2", "decode"), ("a", 8998), info(), info("0.5.9"))
    check_version(pair, {"0.5.13.post1", "0.5.9"})
    check_version(pair, set())
    with pytest.raises(PdctlError, match=r"http://a:2 is of SGLang 0.5.9, the ranks found are of 0.5.13.post1"):
        check_version(pair, {"0.5.13.post1"})


def test_a_plain_load_does_no_harm() -> None:
    load = plain(LabLoad(requests=1, concurrency=8, room=7, prefill_dp=0, to="prefill", abort_after="1s"))
    assert load == LabLoad(requests=4, concurrency=1)
    assert plain(LabLoad(requests=100)).requests == 8


def test_tokens_tell_nothing_until_they_were_the_same_twice() -> None:
    tokens = Tokens()
    assert tokens.wrong(0, (1, 2)) is None
    tokens.learn(0, (1, 2))
    assert tokens.wrong(0, (3, 4)) is None
    tokens.learn(0, (1, 2))
    assert tokens.wrong(0, (1, 2)) is False
    assert tokens.wrong(0, (3, 4)) is True
    assert tokens.wrong(1, (3, 4)) is None


def test_where_one_prompt_was_answered_differently_no_tokens_tell_anything() -> None:
    tokens = Tokens()
    for prompt, answer in ((0, (1,)), (0, (1,)), (1, (2,)), (1, (3,))):
        tokens.learn(prompt, answer)
    assert tokens.wrong(0, (9,)) is None


@pytest.mark.parametrize("number", ["9" * 5000, float("inf"), [1], "x", -1])
def test_a_server_that_tells_numbers_that_are_none_tells_nothing(number: object) -> None:
    told = {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": number, "dp_size": number}
    with serving({"/server_info": (200, {**told, "version": f"0.5.{'9' * 5000}"})}) as served:
        found = ask(Server.parse(served.url, "prefill"))
    assert (found.bootstrap_port, found.dp_size) == (0, 1)
    assert found.pin(1) == {"routed_dp_rank": 1}


def test_an_answer_that_is_nested_too_deep_is_none() -> None:
    with serving({"/server_info": (200, b"[" * 200_000)}) as served, pytest.raises(PdctlError, match="is no SGLang"):
        ask(Server.parse(served.url, "prefill"))
