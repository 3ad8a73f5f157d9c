"""What a request that waits holds of the prefix cache, read from real servers that have one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import engine
from tests.engine.env import Namespace
from tests.engine.harness import Pair
from tests.engine.injecting import fault
from tests.support.patience import until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]


def row(pair: Pair, *command: str) -> dict[str, Any]:
    """The row of the newest request on prefill."""
    requests = json.loads(pair.pdctl(*command, "-o", "json").stdout)["requests"]
    found: dict[str, Any] = next(r for r in requests if (r["room"], r["queue"]) == (pair.rooms[-1], "prefill.inflight"))
    return found


@pytest.mark.parametrize("version", ["0.5.13.post1", "0.5.23"])
def test_a_prompt_stays_in_the_prefix_cache_until_it_is_sent(
    version: str, site: Path, namespace: Namespace, tmp_path: Path
) -> None:
    env = engine(version, site)
    cached = tuple(argument for argument in env.server_args if argument != "--disable-radix-cache")
    assert len(cached) == len(env.server_args) - 1
    # No request before the one that is held: 0.5.23 sends a cached prefix with a CUDA event, which a CPU has not.
    with (
        Pair.start(replace(env, server_args=cached), namespace, tmp_path, decode_tp=1) as pair,
        fault(pair, "--flip-poll", "Transferring", rank="prefill") as placed,
    ):
        [answer] = pair.begin(1, limit_s=300)
        until("flip-poll has fired", placed.fired, 60, 0.5)
        held = row(pair, "dump", "queues")
        assert 0 < held["locked"] <= held["tokens"]
        assert held["kv"] >= held["tokens"]
        assert f"a lock on {held['locked']} tokens of the prefix cache" in row(pair, "stuck")["holds"]
        placed.heal()
        assert answer().tokens
