"""A pair without the metadata gate: healthy, then hung by late metadata (C1), which is recorded, diagnosed and read again.

One pair a version, which the tests share in their order; the last one hangs it and kills its ranks.

``PDCTL_TEST_KEEP_TRACE=DIR`` keeps the trace there: tests/data has one, so that what reads traces can be tested without
an engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import pdctl
from tests.engine.checks import document, dumps_are_clean, is_healthy, late_metadata
from tests.engine.conftest import engine
from tests.engine.env import ROOT, Namespace
from tests.engine.harness import Pair, patiently
from tests.engine.tokens import PROMPTS, right_tokens
from tests.support.patience import patience, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=["0.5.12.post1", pytest.param("0.5.10.post1", marks=pytest.mark.long)])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pair(version: str, site: Path, namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    env = engine(version, site)
    size = {"PDCTL_RECORD_SIZE": str(1 << 20)}
    with Pair.start(env, namespace, tmp_path_factory.mktemp("pair"), wrap=env.wrap, environ=size) as started:
        yield started


def test_tokens_are_those_without_pdctl(version: str, pair: Pair) -> None:
    assert pair.one_by_one(PROMPTS) == right_tokens(version)
    # 0.5.10.post1 has no plug-ins: `pdctl run` reaches the schedulers, which are spawned children of the server.
    assert ("pdctl run:" in pair.servers[0].log.read_text().splitlines()[0]) == bool(pair.env.wrap)


def test_it_is_healthy(pair: Pair) -> None:
    is_healthy(pair, "run" if pair.env.wrap else "plugin")
    dumps_are_clean(pair)


@pytest.mark.long
def test_a_thousand_looks_find_nothing(pair: Pair) -> None:
    is_healthy(pair, "run" if pair.env.wrap else "plugin", 1000)


def test_a_hang_is_recorded_and_diagnosed(version: str, pair: Pair, tmp_path: Path) -> None:
    """While hung, by who watches, with a rank stopped, from the trace made as it came, and from recordings of killed ranks."""
    file = tmp_path / f"sglang-{version}-c1.pdtrace"
    words = patiently("record", str(file), "--trigger", "diverged", "--for", "10m", "-o", "json")
    recording = subprocess.Popen(
        pair.ns.argv([sys.executable, "-m", "pdctl.cli", *words]),
        env={**os.environ, **pair.agent_environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with watched(pair, tmp_path / "kept") as told, late_metadata(pair, "5s"):
        pair.begin(1, limit_s=300)  # one: with more in flight, lists of unequal length may kill the ranks instead

        def diverged() -> dict[str, Any] | None:
            status, seen = document(pair)
            doing = {now["rank"]: now["doing"] for group in seen["groups"] for now in group["now"]}
            hung = "all_reduce" in doing.get("tp0", "") and "broadcast" in doing.get("tp1", "")
            return seen if status == 1 and hung else None

        seen = until("diff-queues reports the divergence, and where both ranks hang", diverged, 90, 1.0)
        room = is_c1(seen)
        assert room in pair.rooms
        out, _ = recording.communicate(timeout=patience(60))
        assert recording.returncode == 0, out
        is_in_trace(version, pair, json.loads(out)["trace"]["divergence"], file, room)
        stacks_name_both(pair)
        is_told(pair, told, tmp_path / "kept", room)
        tp1 = pair.rank("decode dp0 pp0 tp1").identity.pid
        os.kill(tp1, signal.SIGSTOP)
        try:
            status, stopped = document(pair, "--rank-timeout", "3s")
            assert status == 1
            assert is_c1(stopped) == room
        finally:
            os.kill(tp1, signal.SIGCONT)

    pids = [rank.identity.pid for rank in pair.ranks()]
    processes = [psutil.Process(pid) for pid in pids]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, patience(30))
    status, dead = document(pair, "--from", str(pair.record_dir))
    assert status == 1
    assert is_c1(dead) == room


@contextlib.contextmanager
def watched(pair: Pair, kept: Path) -> Iterator[list[dict[str, Any]]]:
    """Have ``pdctl watch`` look at the pair meanwhile, and yield its lines. It has seen all ranks then."""
    words = ["watch", "-o", "jsonl", "--on-finding", f"record={kept}"]
    process = subprocess.Popen(
        pair.ns.argv([sys.executable, "-m", "pdctl.cli", *words]),
        env={**os.environ, **pair.agent_environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    told: list[dict[str, Any]] = []

    def read() -> None:
        for line in process.stdout or ():
            told.append(json.loads(line))  # noqa: PERF401  # it is looked at meanwhile

    thread = threading.Thread(target=read)
    thread.start()
    try:
        until("it sees all ranks", lambda: any("3 live" in one["summary"] for one in told))
        yield told
    finally:
        process.terminate()
        process.wait(patience(60))
        thread.join()


def is_told(pair: Pair, told: list[dict[str, Any]], kept: Path, room: int) -> None:
    """The watch has told the hang once, with its cause, and has kept its evidence while both ranks hang."""
    place = until("the evidence", lambda: next((one for one in kept.glob("*-PD101-*")), None), 180)
    [alarm] = [one for one in told if one["change"] == "began"]
    assert (alarm["code"], alarm["rooms"], alarm["queue"]) == ("PD101", [room], "decode.transfer")
    print(f"watch: alarm {alarm['age_s']:.2f} s after the first round that differs")
    assert {one.name for one in place.iterdir()} == {"finding.json", "settings.json", "stacks.json", "trace.pdtrace"}
    _, seen = document(pair, "--from", str(place / "trace.pdtrace"))
    assert is_c1(seen) == room
    stacks = json.loads((place / "stacks.json").read_text())
    assert "PD161" in [found["code"] for found in stacks["findings"]]


def is_in_trace(version: str, pair: Pair, seen: dict[str, Any], file: Path, room: int) -> None:
    """The trace tells what the pair tells."""
    assert (seen["queue"], seen["findings"], seen["rooms"]) == ("decode.transfer", ["PD101"], [room])
    _, live = document(pair)
    _, told = document(pair, "--from", str(file))
    for each in (live, told):
        assert is_c1(each) == room
        [group] = [group for group in each["groups"] if group["verdict"] == "DIVERGED"]
        assert group["round"] == seen["round"]
    trace = pdctl.load_trace(file)
    assert set(trace.ranks["engine_version"]) == {version}
    split = trace.items[(trace.items["queue"] == "decode.transfer") & (trace.items["room"] == room)]
    assert split.groupby("rank", observed=True)["action"].agg("last").to_dict() == {
        "decode dp0 pp0 tp0": "committed",
        "decode dp0 pp0 tp1": "kept",
    }
    folder = os.environ.get("PDCTL_TEST_KEEP_TRACE")
    if folder:
        shutil.copyfile(file, Path(folder) / file.name)


def stacks_name_both(pair: Pair) -> None:
    """``pdctl stacks`` says that the model's all_reduce and the broadcast of new requests wait for each other."""
    done = pair.pdctl("stacks", "-o", "json", "--timeout", "40s", "--rank-timeout", "20s")
    assert done.returncode == 1, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    [finding] = [found for found in seen["findings"] if found["code"] != "PD114"]  # that the loops stand is said, too
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
