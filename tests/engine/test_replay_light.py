"""C2, C7 and C8 on the engine's own queues, recorded and replayed: what parted there parts again, and in no other round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import Hosts
from tests.engine.env import ROOT
from tests.engine.light.host import LightHost, LightRun
from tests.engine.test_light import LATE, TRANSFERRING, USED_SLOT, WAITING
from tests.engine.test_replay import RUN
from tests.support.patience import patience, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

VERSION = "0.5.12.post1"
# The metadata of room 7001 lands on tp1 and tp3 17 turns after its KV.
FOUR = {
    "size": 4,
    "turns": 60,
    "requests": [
        {**LATE["requests"][0], "lands": [0, 20, 0, 20]},  # type: ignore[index,dict-item]
        {**LATE["requests"][1], "lands": [0, 0, 0, 0]},  # type: ignore[index,dict-item]
    ],
}
LOST = {
    "turns": 100_000,
    "requests": [{"room": 7001 + i, "polls": [[WAITING, TRANSFERRING]]} for i in range(3)],
    "drop": {"rank": 1, "turn": 10, "room": 7001},
}


@pytest.fixture(params=[VERSION])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pdctl(*arguments: object, light: LightRun | None = None, code: int | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pdctl.cli", *map(str, arguments)],
        env={**os.environ, **(light.environ if light else {})},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )
    assert code is None or done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def recorded(light: LightRun, file: Path) -> Path:
    pdctl("record", file, light=light)
    assert file.exists()
    return file


def runs(file: Path, *options: object) -> dict[str, dict[str, Any]]:
    """What replaying the transfer queue comes to, by gate."""
    words = (
        "replay",
        file,
        "--queue",
        "decode.transfer",
        "--round-timeout",
        f"{patience(5):g}s",
        *options,
        "-o",
        "json",
    )
    [group] = json.loads(pdctl(*words, code=1))["groups"]
    return {one["gate"]: one for one in group["runs"]}


def emitted(file: Path, hosts: Hosts, folder: Path, says: str) -> None:
    """The test made of a trace fails on the engine it was recorded from, saying so, and passes on the one with the fix."""
    test = folder / "test_ranks.py"
    pdctl("replay", file, "--emit-test", test, code=0)
    for version, fixed in ((VERSION, False), ("0.5.13.post1", True)):
        place = folder / version
        place.mkdir()
        done = hosts(version).program(place, "-c", RUN, test, place, env={"PDCTL_AGENT": "off"})
        assert done.returncode == (0 if fixed else 1), done.stderr[-4000:]
        assert fixed or says in done.stderr, done.stderr[-4000:]


def test_c2_two_of_four_ranks(host: LightHost, hosts: Hosts, tmp_path: Path) -> None:
    light = host.run(FOUR, "decode", tmp_path)
    until("they part", lambda: "PD101" in pdctl("diff-queues", light=light), 120)
    file = recorded(light, tmp_path / "c2.pdtrace")
    light.kill()
    found = runs(file)
    off, on = found["off"], found["on"]
    assert (off["verdict"], off["round"], off["rooms"]) == ("DIVERGES", 3, [7001])
    assert {side["rank"]: side["action"] for side in off["sides"]} == {
        "tp0": "committed", "tp1": "kept", "tp2": "committed", "tp3": "kept"
    }  # fmt: skip
    assert (on["verdict"], on["round"], on["held"]) == ("DIFFERS", 3, [7001])
    emitted(file, hosts, tmp_path, "the ranks' transfer queues are")


def test_c7_a_request_that_one_rank_lost(host: LightHost, tmp_path: Path) -> None:
    light = host.run(LOST, "decode", tmp_path)
    until("they part", lambda: "room 7001 is on tp0 only" in pdctl("diff-queues", light=light), 120)
    file = recorded(light, tmp_path / "c7.pdtrace")
    light.kill()
    for one in runs(file).values():  # no gate helps
        assert (one["verdict"], one["round"], one["rooms"]) == ("DIVERGES", 10, [7001])
        assert any(end["how"] != "done" for end in one["ends"]), "lists of different length in one collective"


def test_c8_a_slot_with_its_former_owners_room(host: LightHost, hosts: Hosts, tmp_path: Path) -> None:
    light = host.run(USED_SLOT, "decode", tmp_path)
    assert host.wait(light, 120), light.output()
    file = recorded(light, tmp_path / "c8.pdtrace")
    for one in runs(file).values():  # the gate looks for a row that is not there, and here is one
        assert (one["verdict"], one["rooms"]) == ("DIVERGES", [7002])
        assert {side["rank"]: side["action"] for side in one["sides"]} == {"tp0": "committed", "tp1": "aborted"}
        assert {end["how"] for end in one["ends"]} == {"done"}, "both have let it go: their lists do not differ"
    emitted(file, hosts, tmp_path, "the ranks took these requests over")
