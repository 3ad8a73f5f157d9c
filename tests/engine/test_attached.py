"""Agents that are put into the ranks of a running pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.checks import dumps_are_clean, is_healthy
from tests.engine.conftest import engine
from tests.engine.env import Namespace
from tests.engine.harness import Pair
from tests.engine.tokens import PROMPTS, right_tokens
from tests.support.patience import until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]


def test_agents_put_into_running_ranks(site: Path, namespace: Namespace, tmp_path: Path) -> None:
    """They do what those do that came with the engine, but for the rounds; and the engine is as it was when they have left."""
    env = engine("0.5.13.post1", site)
    right = right_tokens("0.5.13.post1")
    with Pair.start(env, namespace, tmp_path, environ={"PDCTL_AGENT": "off"}) as pair:
        assert pair.one_by_one(PROMPTS) == right
        assert not list(pair.run_dir.iterdir())
        pids = [str(pid) for pid in pair.schedulers()]
        done = pair.pdctl("attach", *pids, "--inject-agent", "--timeout", "60s")
        assert done.returncode == 0, done.stdout + done.stderr
        is_healthy(pair, "attach")
        dumps_are_clean(pair)
        done = pair.pdctl("attach", *pids, "--remove-agent")
        assert done.returncode == 0, done.stdout + done.stderr
        until("they have left", lambda: not list(pair.run_dir.iterdir()), 30)
        assert pair.one_by_one(PROMPTS) == right
