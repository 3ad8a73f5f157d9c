"""What `check` says first of a pair in trouble that was started without pdctl; and of one that only computes for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.env import EngineNotInstalledError, Namespace, engine_env
from tests.engine.harness import BOOTSTRAP_PORT, Pair
from tests.engine.troubles import asked, findings, is_clean, long_forward, says_first, stopped, that_can_be_slow
from tests.support.patience import until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]

PREFILL, TP1 = "prefill dp0 pp0 tp0", "sglang::scheduler_TP1"
NOBODY = BOOTSTRAP_PORT + 9
"""A port that nobody listens on."""
UNSEEN = ("routing", "queues", "leaks")
"""Stages that need rounds or turns, which nobody counts."""
LONG_S = 35.0
"""Longer than a request that nothing ends is given."""


@pytest.fixture(scope="module")
def pair(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    try:
        env = that_can_be_slow(engine_env("0.5.13.post1"), folder)
    except EngineNotInstalledError as error:
        pytest.skip(str(error))
    with Pair.start(env, namespace, folder) as started, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PDCTL_OUTSIDE", ",".join(map(str, started.schedulers())))
        assert started.one_by_one(1) != [None]
        is_clean(started, UNSEEN)
        yield started


def pid_of(pair: Pair, title: str) -> int:
    [pid] = [pid for pid, its in pair.schedulers().items() if its == title]
    return pid


def waiting(pair: Pair) -> dict[int, dict[str, Any]]:
    """Return room → row of the requests that wait on decode."""
    status, seen = asked(pair, "stuck", "--stuck-after", "1s", "--pause", "1s")
    assert (status, findings(seen)) == (0, [])
    return {row["room"]: row for row in seen["requests"] if row["role"] == "decode"}


def test_a_bootstrap_address_that_refuses(pair: Pair) -> None:
    """Decode gives each request up after 15 s, and nothing tells of it then: requests come all the time."""
    enough = threading.Event()

    def send() -> None:
        while not enough.wait(3.0):
            pair.begin(1, to=("decode",), bootstrap_port=NOBODY)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        found = says_first(pair, ["PD145"])
    finally:
        enough.set()
        sender.join()
    assert f"127.0.0.1:{NOBODY} refuses connections" in found["summary"]
    until("decode has given them up", lambda: not asked(pair, "dump", "queues")[1]["requests"], 60, 1.0)


def test_a_long_forward_with_requests_behind_it(pair: Pair) -> None:
    with long_forward(pair, "prefill"):
        answers = pair.begin(3, limit_s=300)
        rooms = set(pair.rooms[-3:])

        def behind() -> dict[int, dict[str, Any]] | None:
            rows = waiting(pair)
            return rows if rooms <= set(rows) and min(rows[room]["age_s"] for room in rooms) > LONG_S else None

        rows = until("decode has waited for them for long", behind, 120, 1.0)
        said = {rows[room]["peer"] for room in rooms}
        has_it = ("running", "bootstrap WaitingForInput")
        assert said <= {
            f"not known: {PREFILL} is in model forward",
            *(f"prefill dp0 pp0 has it in {one}" for one in has_it),
        }
        is_clean(pair, UNSEEN)
    assert all(answer().tokens for answer in answers)


def test_requests_that_reach_decode_only(pair: Pair) -> None:
    lost = ["lost-0", "lost-1"]
    answers = [pair.begin(1, limit_s=300, to=("decode",), rid=rid)[0] for rid in lost]
    found = says_first(pair, ["PD143"], set(pair.rooms[-2:]))
    assert "no prefill rank has it now; whether one ever had it is not known" in found["summary"]
    assert "router" in found["next_step"]
    pair.abort(*lost)
    assert all(answer().tokens is None for answer in answers)
    is_clean(pair, UNSEEN)


def test_a_rank_that_is_stopped(pair: Pair) -> None:
    pid = pid_of(pair, TP1)
    with stopped(pid):
        found = says_first(pair, ["PD114"])
        assert "loop of decode dp0 tp1 has not turned" in found["summary"]
        assert "its process is stopped (SIGSTOP)" in found["summary"]
        assert f"kill -CONT {pid}" in found["next_step"]
    assert pair.one_by_one(1) != [None]
    is_clean(pair, UNSEEN)
