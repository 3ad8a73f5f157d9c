"""Agents that are put into the ranks of a running pair."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.checks import LABELS, dumps_are_clean, hooks_work, is_healthy
from tests.engine.conftest import EVERY_VERSION, engine
from tests.engine.env import Namespace
from tests.engine.harness import Outcome, Pair
from tests.engine.tokens import PROMPTS
from tests.support.patience import until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_agents_put_into_running_ranks(version: str, site: Path, namespace: Namespace, tmp_path: Path) -> None:
    """They go in and leave while the servers sleep and while they work, and the engine is as it was.

    Meanwhile they do what those do that came with the engine, but for the rounds; one version shows that.
    """
    env = engine(version, site)
    with Pair.start(env, namespace, tmp_path, environ={"PDCTL_AGENT": "off"}) as pair:
        right = pair.one_by_one(PROMPTS)
        assert all(right)
        put_in(pair)
        if version == "0.5.13.post1":
            is_healthy(pair, "attach")
            dumps_are_clean(pair)
        assert pair.one_by_one(PROMPTS) == right
        take_out(pair)
        with working(pair):
            put_in(pair)
            until("decode is seen at work", lambda: all(decodes(pair)), 60)
            take_out(pair)
        assert pair.one_by_one(PROMPTS) == right


@contextlib.contextmanager
def working(pair: Pair) -> Iterator[None]:
    """Requests, as long as the block lasts; all of them must be answered."""
    done = threading.Event()

    def ask() -> list[Outcome]:
        answers = []
        while not done.is_set():
            answers += pair.generate(3, tokens=200)
        return answers

    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(ask)
        try:
            yield
        finally:
            done.set()
        assert all(answer.tokens for answer in load.result())


def decodes(pair: Pair) -> list[set[int]]:
    """Return the requests that each decode rank computes now."""
    running = pair.queued("running")
    return [running.get(label, set()) for label in LABELS if label.startswith("decode")]


def put_in(pair: Pair) -> None:
    """Put an agent into each scheduler: it is who it says it is, and knows its queues."""
    assert not list(pair.run_dir.iterdir())
    pids = [str(pid) for pid in pair.schedulers()]
    done = pair.pdctl("attach", *pids, "--inject-agent", "--timeout", "60s")
    assert done.returncode == 0, done.stdout + done.stderr
    hooks_work(pair, "attach")


def take_out(pair: Pair) -> None:
    """Take the agents out again: nothing of them is left in the run directory."""
    done = pair.pdctl("attach", *[str(pid) for pid in pair.schedulers()], "--remove-agent")
    assert done.returncode == 0, done.stdout + done.stderr
    until("they have left", lambda: not list(pair.run_dir.iterdir()), 30)
