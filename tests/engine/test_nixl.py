"""A pair over NIXL: healthy, with the tokens of Mooncake; its faults end, and an abort does no harm or is refused.

One pair a version, which the tests share in their order; the last one may end a thread of prefill for good.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.checks import is_healthy
from tests.engine.conftest import engine
from tests.engine.env import EngineNotInstalledError, Namespace
from tests.engine.harness import Pair
from tests.engine.injecting import fault
from tests.engine.tokens import PROMPTS, right_tokens
from tests.support.patience import until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]

TP0 = "decode dp0 pp0 tp0"
DEADLY = ("0.5.13.post1",)
"""Versions whose prefill does not know decode's message of an abort."""


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


@pytest.mark.parametrize("kind", [("--stall-transfer", "10m"), ("--drop-status",)], ids=lambda kind: kind[0])
def test_a_fault_holds_a_request_until_it_is_healed(pair: Pair, version: str, kind: tuple[str, ...]) -> None:
    with fault(pair, *kind) as placed:
        [answer] = pair.begin(1, limit_s=150)
        until(f"{kind[0]} has fired", placed.fired, 60, 0.5)
        done = pair.pdctl("diff-queues")
        assert done.returncode == 0, done.stdout
        assert placed.heal()["released"] == 1
        assert [answer().tokens] == right_tokens(version)[:1]


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
        assert pair.pdctl("heal", "--all").returncode == 1
    else:
        assert pair.one_by_one(1) == right_tokens(version)[:1]
        done = pair.pdctl("check")
        assert done.returncode == 0, done.stdout
