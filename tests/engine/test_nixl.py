"""A pair over NIXL: healthy, with the tokens of Mooncake; its faults end, and an abort does no harm or is refused.

One pair a version, which the tests share in their order. The last two end what they use: an abort a thread of prefill, where a
version does not know it; and a row that comes after its notification the decode group, where there is no gate.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdctl.probes.check.probe import run
from pdctl.probes.registry import stages
from pdctl.probes.view import View
from pdctl.targets.find import discover
from pdctl.targets.places import parse_places
from tests.engine.checks import document, in_step, is_healthy
from tests.engine.conftest import engine
from tests.engine.env import EngineNotInstalledError, Namespace
from tests.engine.harness import Pair, client_of_tests
from tests.engine.injecting import fault
from tests.engine.tokens import PROMPTS, right_tokens
from tests.support.patience import until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]

TP0 = "decode dp0 pp0 tp0"
DEADLY = ("0.5.13.post1",)
"""Versions whose prefill does not know decode's message of an abort."""
UNGATED, UNTOLD = ("0.5.12.post1",), ("0.5.12.post1", "0.5.13.post1")
"""Versions without the metadata gate, and those whose prefill does not tell decode of a failed transfer."""
LOOKS = int(os.environ.get("PDCTL_TEST_CHECKS", "5"))
"""Looks under load; 100 a version for the record."""


@pytest.fixture(scope="module", params=["0.5.12.post1", "0.5.13.post1", "0.5.23"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pair(version: str, site: Path, namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    try:
        env = engine(version, site).over_nixl()
    except EngineNotInstalledError as error:
        pytest.skip(str(error))
    with Pair.start(env, namespace, tmp_path_factory.mktemp("pair"), backend="nixl") as started:
        yield started


def test_tokens_are_those_over_mooncake(version: str, pair: Pair) -> None:
    assert pair.one_by_one(PROMPTS) == right_tokens(version)


def test_it_is_healthy(pair: Pair, version: str) -> None:
    is_healthy(pair, "plugin", refused=("fault.abort", "fault.fail-transfer") if version in DEADLY else ())
    done = pair.pdctl("check")
    assert done.returncode == 0, done.stdout


def test_a_story_has_all_its_stations(pair: Pair) -> None:
    [outcome] = pair.generate(1)
    assert outcome.tokens, outcome
    [told] = json.loads(pair.pdctl("story", str(outcome.room), "-o", "json").stdout)["stories"]
    assert told["gaps"] == []
    assert {"sent", "landed", "decision"} <= {entry["kind"] for entry in told["entries"]}


@pytest.mark.timeout(3600)
def test_many_looks_under_load_find_nothing(pair: Pair) -> None:
    over, lost = threading.Event(), [0]

    def load() -> None:
        while not over.is_set():
            lost[0] += sum(not outcome.tokens for outcome in pair.generate(3))

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    try:
        with pair.ns.entered():
            for number in range(LOOKS):
                with client_of_tests() as client:
                    view = View(discover(parse_places(pair.agent_environ)).require(), client)
                    bad = [
                        f for outcome in run(view, stages(), 1.0) for f in outcome.findings if f.level.value != "info"
                    ]
                assert not bad, f"look {number}: {bad}"
    finally:
        over.set()
        thread.join()
    assert not lost[0]


@pytest.mark.parametrize(
    "kind", [("--stall-transfer", "10m"), ("--drop-status",), ("--drop-metadata",)], ids=lambda kind: kind[0]
)
def test_a_fault_holds_a_request_until_it_is_healed(pair: Pair, version: str, kind: tuple[str, ...]) -> None:
    if version in UNGATED and kind[0] == "--drop-metadata":
        pytest.skip("it hangs the group where there is no gate")
    with fault(pair, *kind) as placed:
        [answer] = pair.begin(1, limit_s=150)
        until(f"{kind[0]} has fired", placed.fired, 60, 0.5)
        in_step(pair)
        assert placed.heal()["released"] == 1
        assert [answer().tokens] == right_tokens(version)[:1]
    done = pair.pdctl("heal", "--all", "--prove", *pair.urls)
    assert done.returncode == 0, done.stderr
    assert "was answered after" in done.stdout


def test_a_row_that_comes_after_its_notification_is_held_by_the_gate(pair: Pair, version: str) -> None:
    if version in UNGATED:
        pytest.skip("there is no gate")
    with fault(pair, "--delay-metadata", "10m", "--hits", "1") as placed:
        [answer] = pair.begin(1, limit_s=150)

        def held() -> bool:
            return any(group["verdict"] == "HELD" for group in in_step(pair))

        until("diff-queues sees the gate hold", held, 60, 0.5)
        assert placed.heal()["released"] == 1
        assert [answer().tokens] == right_tokens(version)[:1]


def test_a_poll_that_comes_late_changes_nothing(pair: Pair, version: str) -> None:
    with fault(pair, "--skew-poll", "300ms", "--hits", "3") as placed:
        assert pair.one_by_one(1) == right_tokens(version)[:1]
        assert placed.heal()["fired"] == 3


def test_a_transfer_that_fails_is_refused_where_it_ends_prefills_thread(pair: Pair, version: str) -> None:
    if version in DEADLY:
        done = pair.pdctl("inject", "--fail-transfer", "--rank", "decode:tp1", "--for", "1m", "--detach")
        assert done.returncode == 5, done.stderr
        assert "after its time-out" in done.stderr
        return
    with fault(pair, "--fail-transfer", "--hits", "1") as placed:
        [answer] = pair.begin(1, limit_s=150, rid="failed")
        until("it has fired", placed.fired, 60, 0.5)
        if version in UNTOLD:
            pair.abort("failed", to=("decode",))
        assert answer().tokens is None
    assert pair.one_by_one(1) == right_tokens(version)[:1]


def test_an_abort_is_refused_where_it_ends_prefills_thread_and_does_no_harm_elsewhere(pair: Pair, version: str) -> None:
    asked = ("inject", "--abort", "--rank", "decode:tp1", "--hits", "1", "--for", "1m", "--detach")
    done = pair.pdctl(*asked)
    assert done.returncode == (5 if version in DEADLY else 0), done.stderr
    assert ("bootstrap thread" in done.stderr) == (version in DEADLY)
    pair.heal()
    [lost] = pair.begin(1, limit_s=300, to=("decode",), rid="lost")
    until("decode waits", lambda: pair.rooms[-1] in pair.queued("decode.transfer").get(TP0, set()), 60, 0.2)
    pair.abort("lost", to=("decode",))
    assert lost().tokens is None
    if version in DEADLY:
        until("the thread is named", lambda: "PD117" in pair.pdctl("ranks").stdout, 60, 0.5)
        first = json.loads(pair.pdctl("check", "-o", "json").stdout)["findings"][0]
        assert first["code"] == "PD117"
        assert "AssertionError" in first["summary"]
        healed = pair.pdctl("heal", "--all")
        assert (healed.returncode, "had ended before" in healed.stderr) == (0, True), healed.stderr
    else:
        assert pair.one_by_one(1) == right_tokens(version)[:1]
        done = pair.pdctl("check")
        assert done.returncode == 0, done.stdout


def test_a_row_that_comes_after_its_notification_hangs_the_group_without_a_gate(pair: Pair, version: str) -> None:
    if version not in UNGATED:
        pytest.skip("the gate holds it")
    with fault(pair, "--delay-metadata", "10m", "--hits", "1"):
        pair.begin(1, limit_s=300)

        def diverged() -> dict[str, Any]:
            status, seen = document(pair)
            return seen if status == 1 else {}

        seen = until("diff-queues reports the divergence", diverged, 90, 1.0)
        [found] = [found for found in seen["findings"] if found["level"] == "error"]
        assert (found["code"], found["rooms"]) == ("PD101", [pair.rooms[-1]])
        done = pair.pdctl("heal", "--all", "--prove", *pair.urls)
        assert done.returncode in (1, 3), done.stderr  # a hung server may not even say what it is
        assert "answer" in done.stderr
