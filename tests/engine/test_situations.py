"""What `check` says first of a pair in trouble; and healthy pairs that look like one in trouble.

One pair a version, which the tests share in their order; the last ones kill a rank and start its server again.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdctl.protocol.processes import look, look_with_parent
from tests.engine.conftest import engine
from tests.engine.env import Namespace
from tests.engine.harness import BOOTSTRAP_PORT, Pair
from tests.engine.troubles import (
    asked,
    findings,
    is_clean,
    long_forward,
    says_first,
    stopped,
    that_can_be_slow,
    turned_s,
)
from tests.support.patience import until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]

PREFILL, TP0, TP1 = "prefill dp0 pp0 tp0", "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"
NOBODY = BOOTSTRAP_PORT + 9
"""A port that nobody listens on."""
LONG_S = 12.0
"""Longer than a loop that stands is given."""


@pytest.fixture(scope="module", params=["0.5.13.post1", "0.5.12.post1"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pair(version: str, site: Any, namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with Pair.start(that_can_be_slow(engine(version, site), folder), namespace, folder) as started:
        assert started.one_by_one(1) != [None]
        yield started


def test_half_sent_requests_and_a_bootstrap_address_that_refuses(pair: Pair) -> None:
    lost = ["lost-0", "lost-1"]
    answers = [pair.begin(1, limit_s=300, to=("decode",), rid=rid)[0] for rid in lost]
    never = set(pair.rooms[-2:])
    [refused] = pair.begin(1, limit_s=300, to=("decode",), bootstrap_port=NOBODY)
    room = pair.rooms[-1]

    found = says_first(pair, ["PD145"], {room}, beside=never)
    assert f"127.0.0.1:{NOBODY} refuses connections" in found["summary"]
    assert refused().tokens is None
    found = says_first(pair, ["PD145"], {room}, beside=never)
    assert "no client aborted it" in found["summary"]

    found = says_first(pair, ["PD143"], never)
    assert "it never came to prefill" in found["summary"]
    assert "only got decode's addresses" in found["summary"]
    assert "router" in found["next_step"]
    pair.abort(*lost)
    assert all(answer().tokens is None for answer in answers)
    is_clean(pair)


def test_a_long_forward_with_requests_behind_it(pair: Pair) -> None:
    with long_forward(pair, "prefill"):
        answers = pair.begin(1, limit_s=300)
        until("prefill computes", lambda: "model forward" in turned_s(pair, PREFILL)[1], 60, 0.2)
        answers += pair.begin(2, limit_s=300)
        behind = set(pair.rooms[-2:])
        until("decode waits for them", lambda: behind <= pair.queued("decode.transfer").get(TP0, set()), 60, 0.2)
        until("it takes long", lambda: turned_s(pair, PREFILL)[0] > LONG_S, 60, 0.5)
        is_clean(pair)
        status, seen = asked(pair, "stuck", "--stuck-after", "1s", "--pause", "1s")
        assert (status, findings(seen)) == (0, [])
        peers = {row["room"]: row["peer"] for row in seen["requests"] if row["role"] == "decode"}
        assert {peers[room].partition(":")[0] for room in behind} == {"not known"}
    assert all(answer().tokens for answer in answers)


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_a_rank_that_is_stopped(pair: Pair, busy: bool) -> None:
    load = pair.begin(3, tokens=600, limit_s=300) if busy else []
    if busy:
        until("decode computes", lambda: len(pair.queued("running").get(TP0, ())) == 3, 60, 0.2)
    pid = pair.rank(TP1).identity.pid
    with stopped(pid):
        found = says_first(pair, ["PD114"])
        assert "loop of decode dp0 tp1 has not turned" in found["summary"]
        assert "its process is stopped (SIGSTOP)" in found["summary"]
        assert f"kill -CONT {pid}" in found["next_step"]
        status, seen = asked(pair, "diff-queues")
        [verdict] = [group["verdict"] for group in seen["groups"] if group["role"] == "decode"]
        assert (status, verdict) == (1, "WAITING")
    assert all(answer().tokens for answer in load)
    is_clean(pair)


def test_a_rank_that_is_killed(pair: Pair) -> None:
    [answer] = pair.begin(1, limit_s=600, to=("prefill",), rid="waits")
    waits = {pair.rooms[-1]}
    until("prefill waits", lambda: pair.queued("prefill.bootstrap").get(PREFILL) == waits, 60, 0.2)
    os.kill(pair.rank(TP0).identity.pid, signal.SIGKILL)
    found = says_first(pair, ["PD113"], waits)
    assert f"{TP0} first" in found["summary"]
    assert "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT ends" in found["summary"]
    assert TP0 in found["ranks"]
    again = says_first(pair, ["PD113"], waits)
    assert _ended_s(again) > _ended_s(found), "its age grows from look to look"
    pair.abort("waits", to=("prefill",))
    assert answer().tokens is None


def _ended_s(found: dict[str, Any]) -> float:
    told = re.search(r"ended ([\d.]+) s ago", found["summary"])
    assert told, found
    return float(told[1])


@pytest.mark.long
@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_a_server_that_was_started_again(pair: Pair, role: str) -> None:
    pair.restart(role, keep=True)
    assert pair.one_by_one(1) != [None]
    is_clean(pair)


@pytest.mark.long
def test_a_detokenizer_that_is_stopped_and_one_that_is_killed(pair: Pair) -> None:
    main = look_with_parent(pair.rank(TP0).identity.pid).parent
    every = {int(one.name): look_with_parent(int(one.name)) for one in Path("/proc").iterdir() if one.name.isdecimal()}
    [pid] = [pid for pid, one in every.items() if (one.name, one.parent) == ("sglang::detoken", main)]
    with stopped(pid):
        found = says_first(pair, ["PD118"])
        assert f"The detokenizer (pid {pid}) of decode is stopped" in found["summary"]
        assert f"kill -CONT {pid}" in found["next_step"]
    is_clean(pair)
    os.kill(pid, signal.SIGKILL)
    until("its server ends", lambda: not look(main).runs_since(every[main].process.start), 60, 0.5)
    found = says_first(pair, ["PD113"])
    assert "by its own server, whose detokenizer had ended before, killed by SIGKILL" in found["summary"]
