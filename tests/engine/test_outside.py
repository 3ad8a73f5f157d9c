"""A real pair that was started without pdctl, hung by late metadata, is read from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.env import ROOT, EngineNotInstalledError, Namespace, engine_env
from tests.engine.harness import Pair
from tests.support.patience import until

pytestmark = [pytest.mark.engine, pytest.mark.long]

READS = ("queues", "stack", "metadata")
PATIENT = ("--timeout", "240", "--rank-timeout", "100")


@pytest.fixture
def pair(namespace: Namespace, tmp_path: Path) -> Iterator[Pair]:
    try:
        env = engine_env("0.5.12.post1").with_patches("late-metadata")
    except EngineNotInstalledError as error:
        pytest.skip(str(error))
    find = [str(env.python), "-c", "import importlib.util; print(importlib.util.find_spec('pdctl'))"]
    there = subprocess.run(find, env=env.process_environ(), capture_output=True, text=True, check=True)
    assert there.stdout == "None\n", "the engine shall not know pdctl"
    late = {"PDCTL_TEST_LATE": str(tmp_path / "late")}
    with Pair.start(env, namespace, tmp_path, environ=late) as started:
        yield started


def asked(pids: dict[int, str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a command on these processes, with no directory of agents named."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PDCTL_")}
    env |= {"PDCTL_OUTSIDE": ",".join(map(str, pids)), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pdctl.cli", *arguments, "-o", "json", *PATIENT]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def attached(pids: dict[int, str]) -> dict[str, dict[str, Any]]:
    """Return label → row of these processes, as ``pdctl attach --all`` shows them among all of this host."""
    _, seen = asked(pids, "attach", "--all")
    return {row["rank"]: row for row in seen["processes"] if row["pid"] in pids}


def test_a_pair_without_pdctl_is_diagnosed_from_outside(pair: Pair, tmp_path: Path) -> None:
    assert all(pair.one_by_one(2))
    pids = pair.schedulers()
    assert sorted(pids.values()) == ["sglang::scheduler", "sglang::scheduler_TP0", "sglang::scheduler_TP1"]
    busy = pair.begin(4, tokens=64)
    labels = {"prefill dp0 pp0 tp0", "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"}

    def read() -> dict[str, dict[str, Any]] | None:
        found = attached(pids)
        unread = [row["reason"] for label, row in found.items() if not label]
        assert all(unread), "a row that could not be read says why"
        for row in found.values():
            said = {*row["reads"], *(lack.partition(":")[0] for lack in row["lacks"])}
            assert not row["rank"] or said >= set(READS), f"what could not be read is said: {row}"
        whole = all(set(row["reads"]) >= set(READS) for row in found.values())
        return found if set(found) == labels and whole else None

    for _ in range(3):  # while they work: a look may come in a bad moment, and says so
        for row in until("all three are read", read, 120, 0.5).values():
            assert (row["reason"], row["engine_version"], row["slots"]) == ("", "0.5.12.post1", 64)
            assert row["lacks"] == ["rounds: no agent counts them"]
    assert all(outcome().tokens for outcome in busy)

    (tmp_path / "late").write_text("6")
    pair.begin(1, limit_s=300)
    room = pair.rooms[-1]

    def parted() -> dict[str, Any] | None:
        status, seen = asked(pids, "diff-queues")
        doing = {(g["role"], now["rank"]): now["doing"] for g in seen["groups"] for now in g["now"]}
        hung = "all_reduce" in doing.get(("decode", "tp0"), "") and "broadcast" in doing.get(("decode", "tp1"), "")
        return seen if status == 1 and hung else None

    seen = until("diff-queues names the room and where both ranks hang", parted, 300, 1.0)
    [group] = [group for group in seen["groups"] if group["role"] == "decode"]
    assert (group["verdict"], group["ranks"]) == ("SKEWED", ["tp0", "tp1"])
    assert {now["state"] for now in group["now"]} == {"outside"}
    lengths = {row["queue"]: row["lengths"] for row in group["queues"]}
    assert lengths["decode.transfer"] == [0, 1]
    [finding] = [finding for finding in seen["findings"] if finding["code"] == "PD111"]
    assert f"tp0 has nothing, tp1 has room {room}" in finding["summary"]
    assert finding["ranks"] == ["tp0", "tp1"]

    rows = attached(pids)
    decode = [rows[f"decode dp0 pp0 tp{tp}"] for tp in range(2)]
    assert [row["requests"] for row in decode] == [1, 1]  # tp0 computes with it, tp1 still waits for its metadata
    assert [row["stopped_ms"] for row in decode] == [0.0, 0.0], "a rank that hangs needs not be stopped"
    assert "all_reduce" in decode[0]["where"]
    assert "broadcast" in decode[1]["where"]

    # What each other command knows of the hang: where the row is, and that both stand.
    def landed() -> bool:
        _, seen = asked(pids, "dump", "metadata")
        rows = [slot for slot in seen["slots"] if slot["expected"] == room and slot["rank"] == "decode dp0 pp0 tp1"]
        assert [slot["where"] for slot in rows] == ["decode.transfer"]
        return bool(rows[0]["found"] == room)  # 0 before: not written

    until("the late row lands, long after both ranks hang", landed, 120, 0.5)
    _, stacks = asked(pids, "stacks")
    moves = {row["rank"]: row["moves"] for row in stacks["ranks"]}
    assert moves["decode dp0 pp0 tp0"] == moves["decode dp0 pp0 tp1"] == "stuck"
    assert not list(pair.run_dir.iterdir()), "an agent was there after all"

    # An agent into both hung ranks: it answers what the outside could not tell, and leaves again.
    hung = [str(row["pid"]) for row in decode]
    where = ("--run-dir", str(pair.run_dir), "--record-dir", str(pair.record_dir))
    status, document = asked(pids, "attach", *hung, "--inject-agent", *where)
    assert status == 0, document
    assert [one["rank"] for one in document["processes"]] == ["decode dp0 pp0 tp0", "decode dp0 pp0 tp1"]
    assert not set(map(int, hung)) & {one["thread"] for one in document["processes"]}, "never the main thread"
    _, document = asked({int(pid): "" for pid in hung}, "ranks", *where)
    live = {row["rank"]: row for row in document["ranks"] if row["state"] == "live"}
    assert set(live) == {"decode dp0 pp0 tp0", "decode dp0 pp0 tp1"}
    assert {row["loaded_by"] for row in live.values()} == {"attach"}
    _, document = asked(pids, "dump", "queues", *where)
    assert [r["room"] for r in document["requests"] if r["queue"] == "decode.transfer"] == [room]
    status, document = asked(pids, "attach", *hung, "--remove-agent", *where)
    assert (status, [row["kept"] for row in document["ranks"]]) == (0, ["", ""])
    until("nothing is left of them", lambda: not list(pair.run_dir.iterdir()), 30)
