"""Many looks of ``check`` at labs that are busy and well: it finds nothing that is a warning or worse."""

from __future__ import annotations

import json
import os

import pytest

from tests.support.cases import Cases
from tests.support.labs import Labs

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(7200, method="signal")]

LOOKS = int(os.environ.get("PDCTL_TEST_BUSY_LOOKS", "200"))
"""How many looks each of the labs gets."""
PATIENT = "--rank-timeout 60s --timeout 300s"
BUSY = {
    "forwards take long": (
        "lab up --step prefill=8s",
        "lab load -n 0 -c 6 --seconds 100000",
    ),
    "decode is full": (
        "lab up --kv-tokens 1024 --slots 16",
        "lab load -n 0 -c 48 --prompt-tokens 100 --new-tokens 60 --seconds 100000",
    ),
    "clients abort": (
        "lab up --kv-tokens 2048 --slots 32",
        "lab load -n 0 -c 64 --prompt-tokens 100 --new-tokens 60 --abort-after 0.4 --seconds 100000",
    ),
    "answers outgrow the pool": (
        "lab up --kv-tokens 768 --step decode=20ms",
        "lab load -n 0 -c 12 --prompt-tokens 40 --new-tokens 150 --seconds 100000",
    ),
    "stages work": (  # no aborts: on a busy machine one of them parts the stages, as in the engine (issue 30476)
        "lab up --prefill pp=2 --decode tp=1",
        "lab load -n 0 -c 16 --prompt-tokens 40 --new-tokens 20 --seconds 100000",
    ),
    "stages of both sides work": (
        "lab up --prefill pp=2 --decode pp=2",
        "lab load -n 0 -c 16 --prompt-tokens 40 --new-tokens 20 --seconds 100000",
    ),
    "dp ranks meet in each turn": (
        "lab up --prefill tp=1 --decode dp=2,tp=1 --dp-attention",
        "lab load -n 0 -c 16 --prompt-tokens 40 --new-tokens 20 --seconds 100000",
    ),
    "servers are restarted, with nothing in flight": (
        "lab up --prefill tp=2",
        "",
    ),
    "prefill servers are restarted beside one that serves": (
        "lab up --prefills 3",
        "lab load -n 0 -c 6 --prefill-server 0 --seconds 100000",
    ),
    "nobody asks for anything, whatever a gauge says": (
        "lab up",
        "lab load -n 64 -c 16 --abort-after 0.1",
    ),
}
RESTARTED = {  # decode after prefill: it keeps what it was told of the processes before
    "servers are restarted, with nothing in flight": ("prefill", "decode"),
    "prefill servers are restarted beside one that serves": ("prefill1", "prefill2"),
}


@pytest.mark.parametrize("name", BUSY)
def test_nothing_is_found(labs: Labs, name: str) -> None:
    up, load = BUSY[name]
    with Cases(labs) as cases:
        cases.run(f"{up} --owner {os.getpid()}", code=0)
        if "100000" in load:
            cases.start(load)
        elif load:
            cases.run(load)
        for look in range(LOOKS):
            for server in RESTARTED.get(name, ()):
                cases.run(f"lab restart {server}", code=0)
            if not load:
                cases.run("lab load -n 4", code=0)
            done = cases.run(f"check --pause 300ms -o json {PATIENT}")
            found = [
                f"{row['code']} {row['summary']}"
                for row in json.loads(done.stdout)["findings"]
                if row["level"] != "info"
            ]
            assert (done.returncode, found) == (0, []), f"look {look}: {done.stdout}{done.stderr}"
