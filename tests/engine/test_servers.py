"""Real server pairs (prefill tp1, decode tp2): the agent loaded as a user loads it, the verdicts read as a user reads them.

One pair a version, in one test each, because a pair takes a minute or two to start.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from pdctl.client import Client
from pdctl.discovery import discover
from pdctl.model import Status
from pdctl.probes.queues.collect import collect
from pdctl.probes.queues.judge import judge
from tests.engine import stories
from tests.engine.conftest import engine
from tests.engine.env import ROOT, EngineEnv, Namespace
from tests.engine.harness import Pair, wait_for
from tests.engine.test_outside import schedulers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

LABELS = {"prefill dp0 pp0 tp0", "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"}
READS = 300
PROMPTS = 4


@pytest.fixture(scope="module")
def right_tokens(
    namespace: Namespace, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[EngineEnv], list[list[int] | None]]:
    """What the same pair of servers answers to the prompts without pdctl."""

    def tokens(env: EngineEnv) -> list[list[int] | None]:
        folder = tmp_path_factory.mktemp("without")
        with Pair.start(env, namespace, folder, environ={"PDCTL_AGENT": "off"}) as pair:
            right = pair.one_by_one(PROMPTS)
            assert not list(pair.record_dir.iterdir())
            assert not list(pair.run_dir.iterdir())
        assert all(right)
        return right

    return tokens


def document(pair: Pair, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run ``pdctl diff-queues -o json`` and return its exit code and document."""
    done = pair.pdctl("diff-queues", "-o", "json", *arguments)
    assert done.stdout, f"exit {done.returncode}\n{done.stderr}"
    return done.returncode, json.loads(done.stdout)


MAY_LACK = {
    "gate", "slots.zeroed", "events.abort-message", "registration.conflicts", "registration.every-room", "query.forced"
}  # fmt: skip
"""Seams of the engine's own protections and options, which not every version has."""


def is_healthy(pair: Pair, loaded_by: str) -> None:
    """Every rank is there, its hooks work, and nothing is reported while requests run: C11."""
    with Client() as client:
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
        assert absent <= MAY_LACK, absent
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(lambda: [pair.generate(3) for _ in range(4)])
        reads = 0
        while reads < READS or not load.done():
            if loaded_by == "attach":  # without rounds a difference must last, which the command looks for
                _, told = document(pair)
                assert not [finding for finding in told["findings"] if finding["level"] != "info"], told["findings"]
                reads += READS // 5
                continue
            with Client() as client:
                seen = judge(collect(discover(pair.agent_environ), client))
            assert not [finding for finding in seen.findings if finding.level != "info"], seen.findings
            reads += 1
            if reads % 100 == 0:
                status, _ = document(pair)
                assert status == 0
        assert all(outcome.tokens for batch in load.result() for outcome in batch)


SECRET = "xyzzy-swordfish 4111-1111-1111-1111"


def dumped(pair: Pair, what: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run ``pdctl dump`` and return its exit code and document, in which nothing of a prompt may be."""
    done = pair.pdctl("dump", what, "-o", "json", *arguments, limit_s=120)
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
    wait_for("it has left", lambda: not dumped(pair, "queues")[1]["requests"], 60, 0.5)
    status, seen = dumped(pair, "leaks", "--watch", "2s")
    assert status == 0, seen
    assert all(row["judged"] and not row["slots_lost"] and not row["kv_lost"] for row in seen["ranks"])


def rows_are_told_apart(pair: Pair) -> None:
    """While the row of tp1 is held back it reads 0 there; tp0 has its own. Afterwards both slots are zeroed."""
    with late_metadata(pair, "15s"):
        [held_back] = pair.begin(1, limit_s=120, text=SECRET)

        def held() -> dict[str, Any] | None:
            status, seen = dumped(pair, "metadata", "--rank", "decode")
            assert status == 0, seen["findings"]
            verdicts = [slot["verdict"] for slot in seen["slots"] if slot["expected"]]
            return seen if verdicts == ["landed", "not written"] else None

        seen = wait_for("dump metadata tells the rows apart", held, 60, 0.2)
        tp0, tp1 = [slot for slot in seen["slots"] if slot["expected"]]
        assert (tp0["found"], tp1["found"]) == (tp0["expected"], 0)
        assert tp0["expected"] == tp1["expected"] in pair.rooms
        assert tp0["sent_s"] >= 0
        assert tp1["sent_s"] is None
        assert tp0["sums"]["bootstrap_room"] != tp1["sums"]["bootstrap_room"]
        assert {(rank["gate"], rank["zeroed"], rank["aux"], rank["safe"]) for rank in seen["ranks"]} == {
            (True, True, "rdma", "yes")
        }
        assert held_back().tokens
    status, seen = dumped(pair, "metadata", "--rank", "decode")
    assert (status, seen["slots"]) == (0, [])


@contextlib.contextmanager
def late_metadata(pair: Pair, delay: str) -> Iterator[subprocess.Popen[str]]:
    """``pdctl inject --delay-metadata`` for one room of decode tp1, as long as the block lasts."""
    arguments = ["inject", "--delay-metadata", delay, "--rank", "decode:tp1", "--hits", "1", "--for", "120s"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pdctl.cli", *arguments],
        env={**os.environ, **pair.agent_environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        prefill = pair.rank("prefill dp0 pp0 tp0")

        def placed() -> bool:
            if process.poll() is not None:
                raise AssertionError(
                    f"inject ended with {process.returncode}: {process.stdout and process.stdout.read()}"
                )
            with Client() as client:
                [answer] = client.ask([prefill], "status", Status)
            return answer.body is not None and bool(answer.body.faults)

        wait_for("the fault is in place", placed, 60)
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def hangs_and_is_diagnosed(pair: Pair) -> None:
    """C1: diagnosed while hung, with a rank stopped, and from the recordings of killed ranks."""
    with late_metadata(pair, "5s"):
        pair.begin(1, limit_s=300)  # one: with more in flight, lists of unequal length may kill the ranks instead

        def diverged() -> dict[str, Any] | None:
            status, seen = document(pair)
            doing = {now["rank"]: now["doing"] for group in seen["groups"] for now in group["now"]}
            hung = "all_reduce" in doing.get("tp0", "") and "broadcast" in doing.get("tp1", "")
            return seen if status == 1 and hung else None

        seen = wait_for("diff-queues reports the divergence, and where both ranks hang", diverged, 180, 1.0)
        room = is_c1(seen)
        assert room in pair.rooms
        stacks_name_both(pair)
        tp1 = pair.rank("decode dp0 pp0 tp1").identity.pid
        os.kill(tp1, signal.SIGSTOP)
        try:
            status, stopped = document(pair, "--timeout", "10s")
            assert status == 1
            assert is_c1(stopped) == room
        finally:
            os.kill(tp1, signal.SIGCONT)

    pids = [rank.identity.pid for rank in pair.ranks()]
    processes = [psutil.Process(pid) for pid in pids]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, 30)
    status, dead = document(pair, "--from", str(pair.record_dir))
    assert status == 1
    assert is_c1(dead) == room


def stacks_name_both(pair: Pair) -> None:
    """``pdctl stacks`` says that the model's all_reduce and the broadcast of new requests wait for each other."""
    done = pair.pdctl("stacks", "-o", "json", "--timeout", "40s", "--rank-timeout", "20s")
    assert done.returncode == 1, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    [finding] = seen["findings"]
    assert finding["code"] == "PD161"
    assert set(finding["ranks"]) == {"decode dp0 pp0 tp0", "decode dp0 pp0 tp1"}
    [group] = [group for group in seen["groups"] if group["size"] == 2]
    assert group["reason"] == "tp0 waits in all_reduce of the model, tp1 waits in broadcast of new requests"
    current = {
        (row["ranks"], row["current"]["op"], row["current"]["source"])
        for of_group in seen["collectives"]
        for row in of_group["rows"]
        if row["current"]
    }
    assert current == {("tp0", "all_reduce", "stack"), ("tp1", "broadcast", "stack")}
    assert not [rank for rank in seen["ranks"] if not rank["stack"]]


def is_c1(seen: dict[str, Any]) -> int:
    """The document is C1's diagnosis; returns the room."""
    [finding] = [found for found in seen["findings"] if found["code"] == "PD101"]
    [group] = [group for group in seen["groups"] if group["verdict"] == "DIVERGED"]
    assert group["queue"] == "decode.transfer"
    [split] = group["splits"]
    sides = {side["rank"]: side for side in split["sides"]}
    assert (sides["tp0"]["action"], sides["tp0"]["found"]) == ("committed", split["room"])
    assert (sides["tp1"]["action"], sides["tp1"]["found"]) == ("kept", 0)
    assert finding["rooms"] == [split["room"]]
    assert "0.5.13" in finding["versions"]
    return int(split["room"])


def gate_holds(pair: Pair, right: list[list[int] | None]) -> None:
    """C1's twin: the same delay, no divergence, the gate is named, and the tokens are right."""
    with late_metadata(pair, "20s"):
        [held_back] = pair.begin(1, limit_s=120)

        def held() -> dict[str, Any] | None:
            status, seen = document(pair)
            assert status == 0, seen["findings"]
            return seen if any(group["verdict"] == "HELD" for group in seen["groups"]) else None

        seen = wait_for("diff-queues sees the gate hold", held, 60, 0.2)
        [group] = [group for group in seen["groups"] if group["verdict"] == "HELD"]
        assert group["queue"] in ("", "decode.transfer")
        room, copy = pair.rooms[-1], pair.run_dir.parent / "held"
        shutil.copytree(pair.record_dir, copy)  # as it is now; what takes its time comes later
        # Others pass meanwhile: the gate holds the one request alone.
        assert pair.one_by_one(PROMPTS - 1, first=1) == right[1:]
        assert held_back().tokens == right[0]
    stories.is_held(stories.story(pair, room, "--from", str(copy)))
    stories.is_whole(stories.story(pair, room), late=True)
    stories.is_whole(stories.story(pair, pair.rooms[0], "--from", str(pair.record_dir)), late=False)
    stories.has_files(pair, room, pair.run_dir.parent)
    status, seen = document(pair)
    assert status == 0, seen["findings"]


@pytest.mark.parametrize("version", ["0.5.12.post1"])
def test_without_the_gate(
    version: str,
    site: Path,
    namespace: Namespace,
    tmp_path: Path,
    right_tokens: Callable[[EngineEnv], list[list[int] | None]],
) -> None:
    env = engine(version, site)
    right = right_tokens(env)
    with Pair.start(env, namespace, tmp_path) as pair:
        assert pair.one_by_one(PROMPTS) == right
        is_healthy(pair, "plugin")
        dumps_are_clean(pair)
        hangs_and_is_diagnosed(pair)


@pytest.mark.parametrize("version", ["0.5.13.post1", "0.5.23"])
def test_with_the_gate(
    version: str,
    site: Path,
    namespace: Namespace,
    tmp_path: Path,
    right_tokens: Callable[[EngineEnv], list[list[int] | None]],
) -> None:
    env = engine(version, site)
    right = right_tokens(env)
    with Pair.start(env, namespace, tmp_path) as pair:
        assert pair.one_by_one(PROMPTS) == right
        is_healthy(pair, "plugin")
        dumps_are_clean(pair)
        rows_are_told_apart(pair)
        gate_holds(pair, right)


def test_before_plugins(
    site: Path, namespace: Namespace, tmp_path: Path, right_tokens: Callable[[EngineEnv], list[list[int] | None]]
) -> None:
    """0.5.10.post1 has no plug-ins: `pdctl run` reaches the schedulers, which are spawned children of the server."""
    env = engine("0.5.10.post1", site)
    right = right_tokens(env)
    wrap = [str(env.python), "-m", "pdctl.cli", "run", "--"]
    with Pair.start(env, namespace, tmp_path, wrap=wrap) as pair:
        assert pair.one_by_one(PROMPTS) == right
        is_healthy(pair, "run")
        dumps_are_clean(pair)
        hangs_and_is_diagnosed(pair)
    assert "pdctl run:" in (tmp_path / "prefill.log").read_text().splitlines()[0]


def test_agents_put_into_running_ranks(
    site: Path, namespace: Namespace, tmp_path: Path, right_tokens: Callable[[EngineEnv], list[list[int] | None]]
) -> None:
    """They do what those do that came with the engine, but for the rounds; and the engine is as it was when they have left."""
    env = engine("0.5.13.post1", site)
    right = right_tokens(env)
    with Pair.start(env, namespace, tmp_path, environ={"PDCTL_AGENT": "off"}) as pair:
        assert pair.one_by_one(PROMPTS) == right
        assert not list(pair.run_dir.iterdir())
        pids = [str(pid) for pid in schedulers(pair)]
        done = pair.pdctl("attach", *pids, "--inject-agent", "--timeout", "60s")
        assert done.returncode == 0, done.stdout + done.stderr
        is_healthy(pair, "attach")
        dumps_are_clean(pair)
        done = pair.pdctl("attach", *pids, "--remove-agent")
        assert done.returncode == 0, done.stdout + done.stderr
        wait_for("they have left", lambda: not list(pair.run_dir.iterdir()), 30)
        assert pair.one_by_one(PROMPTS) == right
