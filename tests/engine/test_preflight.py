"""Pairs of real servers that start and can't work, or will not for long: what `preflight` says before any request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.engine.conftest import engine
from tests.engine.env import Namespace
from tests.engine.harness import Pair

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]
WAITING = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"


def told(pair: Pair, *options: str) -> list[tuple[str, str, str]]:
    """Return check, verdict and code of what is not well."""
    done = pair.pdctl("preflight", *options, "-o", "json")
    assert done.returncode == 1, f"{done.stdout}{done.stderr}"
    lines = json.loads(done.stdout)["lines"]
    return [(one["check"], one["verdict"], one["code"]) for one in lines if one["verdict"] in ("error", "warning")]


def start_decode(pair: Pair, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Start decode anew with these arguments behind its own."""
    [decode] = [server for server in pair.servers if server.role == "decode"]
    decode.argv = [*decode.argv, *arguments]
    pair.restart("decode", environ=environ)


def test_decode_with_another_kv_dtype_and_no_time_for_prefill(site: Path, namespace: Namespace, tmp_path: Path) -> None:
    with Pair.start(engine("0.5.13.post1", site), namespace, tmp_path) as pair:
        start_decode(pair, ("--kv-cache-dtype", "bfloat16"), {WAITING: "5"})
        assert told(pair) == [("kv-dtype", "error", "PD135"), ("time-outs", "warning", "PD171")]
        assert told(pair, *pair.urls) == [("kv-dtype", "error", "PD135")]
        pair.servers[0].stop()
        assert told(pair, *pair.urls) == [("servers", "error", "PD170")]


def test_a_version_without_the_gate(site: Path, namespace: Namespace, tmp_path: Path) -> None:
    env = engine("0.5.12.post1", site)
    with Pair.start(env, namespace, tmp_path, wrap=env.wrap) as pair:
        assert told(pair) == [("defects", "warning", "PD172")]
        assert told(pair, *pair.urls) == [("defects", "warning", "PD172")]
        assert pair.pdctl("preflight", "--fail-on", "error").returncode == 0
