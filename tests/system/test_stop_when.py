"""``--stop-when``: a fault ends by what it does to the ranks, and says so."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.labs import Lab, Labs
from tests.support.patience import patience, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def begin(lab: Lab, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "pdctl.cli", "inject", "--rank", "decode:tp1", "--for", "10m", *arguments],
        env=lab.labs.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until("the fault", lambda: lab.labs.cli("faults", "-o", "json").stdout.count('"fault"'))
    return process


def test_so_many_failed_rooms_end_it():
    with Labs() as labs:
        lab = labs.up("--prefill", "tp=1", "--decode", "tp=2")
        command = begin(lab, "--fail-transfer", "--hits", "1000", "--stop-when", "failed:3")
        assert lab.load(requests=3, concurrency=1).failed == 3
        out, err = command.communicate(timeout=patience(120))
        assert "stop condition: 3 rooms have failed" in out, err
        assert command.returncode == 0
        assert lab.load(requests=3).good, "it is healed"


def test_the_rank_itself_ends_a_detached_fault_after_so_many():
    with Labs() as labs:
        lab = labs.up("--prefill", "tp=1", "--decode", "tp=2")
        labs.cli(
            "inject", "--rank", "decode:tp1", "--fail-transfer", "--hits", "1000", "--for", "10m",
            "--stop-when", "failed:2", "--detach",
        )  # fmt: skip
        assert lab.load(requests=6, concurrency=1).failed == 2
        [past] = json.loads(labs.cli("faults", "--past", "-o", "json").stdout)["faults"]
        assert past["ended"] == "stop condition: 2 rooms have failed"
        refused = labs.cli(
            "inject", "--rank", "decode:tp1", "--fail-transfer", "--stop-when", "diverged", "--detach", code=2
        )
        assert "none knows the queues of another" in " ".join(refused.stderr.split())
        assert json.loads(labs.cli("faults", "-o", "json").stdout)["faults"] == []


def test_a_divergence_ends_it_and_keeps_another_from_being_placed():
    with Labs() as labs:
        lab = labs.up("--prefill", "tp=1", "--decode", "tp=2", "--without", "gate")
        command = begin(lab, "--delay-metadata", "2m", "--stop-when", "diverged")
        lab.load(requests=1, seconds=3)  # one: lists of unequal length may kill the ranks instead of hanging them
        out, err = command.communicate(timeout=patience(120))
        assert "stop condition: diverged" in out, err
        again = labs.cli("inject", "--rank", "decode:tp1", "--delay-metadata", "1s", "--stop-when", "diverged", code=5)
        assert "nothing was injected, diverged" in again.stderr
