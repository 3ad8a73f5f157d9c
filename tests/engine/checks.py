"""What a pair of real servers must show whatever its version: health and clean dumps; and how its metadata is held back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pdctl.probes.queues.collect import collect
from pdctl.probes.queues.judge import judge
from pdctl.probes.view import View
from pdctl.protocol.model import Status
from pdctl.targets.find import discover
from pdctl.targets.places import parse_places
from tests.engine.harness import Pair, client_of_tests
from tests.support.patience import until

LABELS = {"prefill dp0 pp0 tp0", "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"}
READS = 60


def document(pair: Pair, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run ``pdctl diff-queues -o json`` and return its exit code and document."""
    done = pair.pdctl("diff-queues", "-o", "json", *arguments)
    assert done.stdout, f"exit {done.returncode}\n{done.stderr}"
    return done.returncode, json.loads(done.stdout)


def in_step(pair: Pair) -> list[dict[str, Any]]:
    """Return the groups of ``diff-queues``, of which none has parted.

    What the gate holds is told as PD102, and as PD148 once it has held it for 30 s. How soon a test looks depends on
    the machine, so both are right.
    """
    status, seen = document(pair)
    codes = {finding["code"] for finding in seen["findings"]}
    assert codes <= {"PD102", "PD148"}, seen["findings"]
    assert status == int("PD148" in codes)
    groups: list[dict[str, Any]] = seen["groups"]
    assert not [group for group in groups if group["verdict"] == "DIVERGED"], groups
    return groups


MAY_LACK = {
    "gate", "slots.zeroed", "events.abort-message", "registration.conflicts", "registration.every-room", "query.forced",
    "events.checksum",
}  # fmt: skip
"""Seams of the engine's own protections and options, which not every version has."""


def hooks_work(pair: Pair, loaded_by: str, refused: Collection[str] = ()) -> None:
    """Every rank is there with an agent that came this way, and its hooks are where they belong.

    refused: seams of faults that this version and backend must not have.
    """
    with client_of_tests() as client:
        answers = client.ask(pair.ranks(), "status", Status)
    assert {answer.rank.identity.label for answer in answers} == LABELS
    for answer in answers:
        assert answer.body is not None, answer.reason
        assert answer.body.identity.loaded_by == loaded_by
        assert answer.body.identity.engine_version == pair.env.version
        assert not answer.body.hook_errors
        assert not answer.body.hooks_removed
        assert bool(answer.body.recording_off) == (loaded_by == "attach"), "it numbers no rounds"
        absent = {seam.name for seam in answer.body.seams if not seam.present}
        assert absent - set(refused) <= MAY_LACK, absent


def is_healthy(pair: Pair, loaded_by: str, reads: int = READS, refused: Collection[str] = ()) -> None:
    """The hooks of every rank work, and nothing is reported in so many looks while requests run."""
    hooks_work(pair, loaded_by, refused)
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(lambda: [pair.generate(3) for _ in range(4)])
        looks = 0
        while looks < reads or not load.done():
            if loaded_by == "attach":  # without rounds a difference must last, which the command looks for
                _, told = document(pair)
                assert not [finding for finding in told["findings"] if finding["level"] != "info"], told["findings"]
                looks += reads // 5
                continue
            with client_of_tests() as client:
                seen = judge(collect(View(discover(parse_places(pair.agent_environ)), client)))
            assert not [finding for finding in seen.findings if finding.level != "info"], seen.findings
            looks += 1
            if looks % 50 == 0:
                status, _ = document(pair)
                assert status == 0
        assert all(outcome.tokens for batch in load.result() for outcome in batch)


SECRET = "xyzzy-swordfish 4111-1111-1111-1111"


def dumped(pair: Pair, what: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run ``pdctl dump`` and return its exit code and document, in which nothing of a prompt may be."""
    done = pair.pdctl("dump", what, "-o", "json", *arguments, limit_s=60)
    assert done.stdout, f"exit {done.returncode}\n{done.stderr}"
    for part in SECRET.split():
        assert part not in done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout)


def dumps_are_clean(pair: Pair) -> None:
    """What a healthy pair holds: nothing wrong, nothing leaked, and nothing of what users asked."""
    load = pair.begin(3, tokens=64, text=SECRET)
    for what in ("metadata", "queues", "groups", "config"):
        status, seen = dumped(pair, what)
        assert status == 0, seen
        assert not [found for found in seen.get("findings", ()) if found["level"] != "info"]
    assert all(request().tokens for request in load)
    status, seen = dumped(pair, "config")
    assert {server["role"]: len(server["peers"]) for server in seen["servers"]} == {"prefill": 1, "decode": 1}
    # An abort leaves at most rooms in tables behind, which is information.
    [gone] = pair.begin(1, tokens=2000, limit_s=1.0, text=SECRET)
    gone()
    until("it has left", lambda: not dumped(pair, "queues")[1]["requests"], 60, 0.5)
    status, seen = dumped(pair, "leaks", "--for", "2s")
    assert status == 0, seen
    assert all(row["judged"] and not row["slots_lost"] and not row["kv_lost"] for row in seen["ranks"])


@contextlib.contextmanager
def late_metadata(pair: Pair, delay: str) -> Iterator[None]:
    """``pdctl inject --delay-metadata`` for one room of decode tp1, as long as the block lasts.

    It has no lease: a busy machine could end that, and with it what the block waits for.
    """
    aim = ("--rank", "decode:tp1", "--hits", "1", "--for", "5m", "--detach")
    done = pair.pdctl("inject", "--delay-metadata", delay, *aim)
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        done = pair.pdctl("heal", "--all")
    assert done.returncode == 0, done.stderr
