"""``pdctl verify-routing`` on each version's own bootstrap server, registration, formula and query.

Prefill has two dp ranks, decode two tp ranks; rooms wait for ever, since nothing is transferred. What a version does with
a room is the version's own doing: the tests say what pdctl must make of it.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pdctl.protocol.requests import FORCE_QUERY
from tests.engine.light.host import LightHost, LightRun
from tests.support.patience import until

VERSIONS = ("0.5.10.post1", "0.5.12.post1", "0.5.13.post1", "0.5.23")
UP_S = 90
FOLLOW = "follow_bootstrap_room"
_ports = itertools.count(30300)


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Cluster = Callable[..., LightRun]


@pytest.fixture
def cluster(host: LightHost, tmp_path: Path) -> Iterator[Cluster]:
    """Starts a bootstrap server, two prefill dp ranks and two decode tp ranks that have these rooms."""
    runs: list[LightRun] = []

    def start(rooms: dict[int, int], *, balance: str = FOLLOW, env: dict[str, str] | None = None) -> LightRun:
        folder = tmp_path / f"run{len(runs)}"
        folder.mkdir()
        script = {"routing": True, "dp": 2, "balance": balance, "port": next(_ports), "rooms": rooms}
        run = host.prepare(script, folder)
        runs.append(run)
        first = host.add(run, "bootstrap", 0)
        until("the bootstrap server serves", lambda: says(run, first, "serves"), UP_S)
        names = [host.add(run, role, rank, env) for role in ("prefill", "decode") for rank in (0, 1)]
        for name in names:
            until(f"{name} has its rooms", lambda name=name: says(run, name, "took"), UP_S)
        return run

    yield start
    for run in runs:
        run.kill()


def says(run: LightRun, name: str, word: str) -> bool:
    assert name not in run.ended, run.output()
    path = run.folder / f"{name}.out"
    assert not path.exists() or "Traceback" not in path.read_text(), run.output()
    return path.exists() and any(said[0] == word for said in run.said(name))


def verify(run: LightRun, *options: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "pdctl.cli", "verify-routing", "-o", "json", "--rank-timeout", "30s"]
    command += ["--timeout", "90s", *map(str, options)]
    done = subprocess.run(
        command, env={**os.environ, **run.environ}, capture_output=True, text=True, timeout=300, check=False
    )
    # 1 with a finding, 0 without: which one is right says each test, by the code it is given below.
    assert done.returncode in (0, 1), f"{done.returncode}\n{done.stdout}{done.stderr}{run.output()}"
    return {**json.loads(done.stdout), "code": done.returncode}


def settled(run: LightRun, rooms: set[int]) -> dict[str, Any]:
    """Return the document once every decode rank has been told of the prefill server, and these rooms are there."""

    def look() -> dict[str, Any] | None:
        document = verify(run)
        sides = [side for side in document["sides"] if side["role"] == "decode"]
        old = all(asker["age_s"] > 3 for row in document["rooms"] for asker in row["decode"])
        there = {row["room"] for row in document["rooms"]}
        return document if all(side["believes"] for side in sides) and there >= rooms and old else None

    found: dict[str, Any] = until("decode knows prefill", look, UP_S)
    return found


def found(document: dict[str, Any]) -> dict[str, list[int]]:
    return {finding["code"]: finding["rooms"] for finding in document["findings"]}


def beliefs(document: dict[str, Any]) -> dict[int, tuple[Any, ...]]:
    """Return room → (registered, dp ranks of prefill, of decode, verdict)."""
    return {
        row["room"]: (
            row["bootstrap"],
            sorted(holder["dp"] for holder in row["prefill"]),
            [asker["dp"] for asker in row["decode"] for _ in asker["ranks"]],
            row["verdict"],
        )
        for row in document["rooms"]
    }


def test_a_room_routed_against_the_formula(version: str, cluster: Cluster) -> None:
    document = settled(cluster({6: 0, 7: 0}), {6, 7})
    [server] = document["servers"]
    assert (server["info"]["dp_size"], server["info"]["follow_bootstrap_room"]) == ("2", "True")
    assert (server["silence"], server["rooms_asked"]) == ("", 2)
    assert beliefs(document)[6] == (None, [0], [0, 0], "AGREE")
    if version == "0.5.10.post1":
        assert beliefs(document)[7] == (None, [0], [1, 1], "CONFLICT")
        assert found(document) == {"PD120": [7]}
        summary = document["findings"][0]["summary"]
        assert "dispatched 0, implied 1, registered none, receiver expects 1" in summary
    else:  # the engine notices it itself
        assert beliefs(document)[7] == (None, [], [1, 1], "REFUSED")
        assert found(document) == {"PD121": [7]}
        assert "the engine failed it" in document["findings"][0]["summary"]


def test_force_query_on_both_sides(version: str, cluster: Cluster) -> None:
    document = settled(cluster({6: 0, 7: 0}, env={FORCE_QUERY: "1"}), {6, 7})
    if version == "0.5.10.post1":  # which does not know the variable
        assert found(document) == {"PD120": [7]}
        assert beliefs(document)[6] == (None, [0], [0, 0], "AGREE")
        return
    assert beliefs(document)[7] == (0, [0], [0, 0], "AGREE"), "a conflict is registered"
    if version == "0.5.23":
        assert beliefs(document)[6] == (0, [0], [0, 0], "AGREE")
        assert (found(document), document["code"]) == ({}, 0)
    else:
        assert beliefs(document)[6] == (None, [0], [None, None], "UNREGISTERED")
        assert found(document) == {"PD124": [6]}


def test_registered_by_load(cluster: Cluster) -> None:
    document = settled(cluster({6: 1, 7: 0}, balance="total_requests"), {6, 7})
    assert beliefs(document) == {6: (1, [1], [1, 1], "AGREE"), 7: (0, [0], [0, 0], "AGREE")}
    assert (found(document), document["code"]) == ({}, 0)
    [side] = [side for side in document["sides"] if side["role"] == "prefill"]
    assert (side["dp_size"], side["balance"], side["registers"]) == (2, "total_requests", "every room")
    assert all(row["registered_s"] is not None for row in document["rooms"])
