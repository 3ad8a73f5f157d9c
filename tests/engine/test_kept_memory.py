"""Memory that decode keeps for prefill (SGLang 0.5.23): shown while it is kept, and named where one rank forgets it.

One pair, which the tests share in their order; the last one hangs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.checks import document, dumped
from tests.engine.conftest import engine
from tests.engine.env import Namespace
from tests.engine.harness import Pair
from tests.engine.tokens import PROMPTS, right_tokens
from tests.support.patience import until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]

VERSION = "0.5.23"
TP0, TP1 = "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"
READY_S = 300.0


@pytest.fixture(scope="module")
def word(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that tells decode tp1 what to do with what it keeps."""
    return tmp_path_factory.mktemp("word") / "word"


@pytest.fixture(scope="module")
def keeping(site: Path, word: Path, namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    env = engine(VERSION, site).with_patches("lost-release")
    long = {"SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT": "1800"}
    env = env.with_environ(PDCTL_TEST_RELEASE=str(word), **long)
    with Pair.start(env, namespace, tmp_path_factory.mktemp("keeping"), ready_s=READY_S) as started:
        yield started


def say(word: Path, what: str) -> None:
    """Have the file say it, whole at every moment."""
    new = word.with_suffix(".new")
    new.write_text(what)
    new.replace(word)


def kept(pair: Pair) -> dict[str, dict[str, Any]]:
    """Return label → its row of ``dump queues`` for memory that it keeps."""
    _, seen = dumped(pair, "queues")
    return {row["rank"]: row for row in seen["requests"] if row["queue"] == "decode.deferred"}


def failed_halfway(pair: Pair, rid: str) -> int:
    """Have decode abort a request that has told prefill its addresses; return its room."""
    [answer] = pair.begin(1, limit_s=300, to=("decode",), rid=rid)
    room = pair.rooms[-1]
    until("decode waits for it", lambda: room in pair.queued("decode.transfer").get(TP1, set()), 60, 0.2)
    pair.abort(rid, to=("decode",))
    assert answer().tokens is None
    return room


def test_memory_that_one_rank_has_to_keep_is_kept_on_both_and_shown(keeping: Pair, word: Path) -> None:
    pair = keeping
    assert pair.one_by_one(PROMPTS) == right_tokens(VERSION)
    say(word, "keep")
    room = failed_halfway(pair, "kept")

    def withheld() -> dict[str, dict[str, Any]] | None:
        rows = kept(pair)
        acks = {label: (row["acks"], row["needed"]) for label, row in rows.items()}
        return rows if acks == {TP0: (1, 1), TP1: (0, 1)} else None

    rows = until("both keep it, and prefill's word has reached one of them", withheld, 60, 0.5)
    assert {row["room"] for row in rows.values()} == {room}
    assert 0 < rows[TP1]["left_s"] <= 1800
    done = pair.pdctl("stuck", "-o", "json")
    [waits] = json.loads(done.stdout)["requests"]
    assert (done.returncode, waits["room"], waits["queue"], waits["state"]) == (
        0,
        room,
        "decode.deferred",
        "0 of 1 acks",
    )
    status, seen = document(pair)
    assert (status, seen["findings"]) == (0, [])
    compared = {of["queue"]: of["verdict"] for group in seen["groups"] for of in group["queues"]}
    assert compared["decode.deferred"] == "agree"
    done = pair.pdctl("check")
    assert done.returncode == 0, done.stdout
    word.unlink()
    until("both have given it back", lambda: not kept(pair), 60, 0.5)
    assert pair.one_by_one(PROMPTS) == right_tokens(VERSION)


def test_memory_that_one_rank_has_forgotten_is_named_with_its_round(keeping: Pair, word: Path) -> None:
    pair = keeping
    say(word, "keep")
    room = failed_halfway(pair, "lost")
    until("both keep it", lambda: set(kept(pair)) == {TP0, TP1}, 60, 0.5)
    say(word, "lose")

    def diverged() -> dict[str, Any] | None:
        status, seen = document(pair)
        return seen if status == 1 and [one for one in seen["findings"] if one["code"] == "PD103"] else None

    seen = until("diff-queues names it", diverged, 90, 1.0)
    [found] = [one for one in seen["findings"] if one["code"] == "PD103"]
    assert (found["rooms"], found["ranks"]) == ([room], ["tp1"])
    [group] = [group for group in seen["groups"] if group["verdict"] == "DIVERGED"]
    assert group["queue"] == "decode.deferred"
    assert (
        f"tp1 had nothing in decode.deferred and skipped the collective of round {group['round']}" in found["summary"]
    )
    done = pair.pdctl("check", "-o", "json")
    first = json.loads(done.stdout)["findings"][0]
    assert (done.returncode, first["code"]) == (1, "PD103")
