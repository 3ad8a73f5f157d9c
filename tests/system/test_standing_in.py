"""Ranks whose agent is silent, read from outside in its place: in their groups, marked, and not where that is not wanted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import patience, until
from tests.support.tiny_ranks import ROOT, TinyRanks

SILENT, PEER = "decode dp0 pp0 tp1", "decode dp0 pp0 tp0"


def patient_options() -> tuple[str, ...]:
    """Return time enough for a silent rank to be read from outside after it was waited for, on this machine."""
    return "--timeout", f"{patience(15):.1f}", "--rank-timeout", f"{patience(3):.1f}"


class Pair(TinyRanks):
    """Two ranks of one group with their agents: tp0 has room 12, tp1 has 12 and 77."""

    def up(self, then: str = "wait") -> subprocess.Popen[str]:
        """Start both and return the second."""
        self.env.pop("PDCTL_OUTSIDE", None)
        for tp, rooms, does in ((0, "12", "wait"), (1, "12,77", then)):
            words = ["--tp", str(tp), "--size", "2", "--rooms", rooms, "--then", does]
            command = [sys.executable, "-m", "tests.system.targets.silenced", *words]
            pipe = subprocess.PIPE
            self.children.append(subprocess.Popen(command, cwd=ROOT, env=self.env, stdin=pipe, stdout=pipe, text=True))
        for child in self.children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        return self.children[1]

    def socket(self, child: subprocess.Popen[str]) -> Path:
        [found] = self.run_dir.glob(f"{child.pid}-*.sock")
        return found

    def asked(self, *command: str, patient: tuple[str, ...] | None = None) -> tuple[int, dict[str, Any]]:
        done = self.pdctl(*command, "-o", "json", *(patient_options() if patient is None else patient))
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with Pair(tmp_path) as ranks:
        yield ranks


def its_socket_goes(pair: Pair) -> str:
    child = pair.up()
    path = pair.socket(child)
    path.unlink()
    path.mkdir()  # else it would listen there again
    return "nobody listens on its socket"


def its_agents_thread_ends(pair: Pair) -> str:
    child = pair.up()
    assert child.stdin is not None
    child.stdin.write("pdctl-agent\n")
    child.stdin.flush()
    until(
        "nobody listening on the socket of decode tp1",
        lambda: "nobody listens" in json.dumps(pair.asked("dump", "queues", "--rank", "decode:tp1")[1]),
    )
    return "nobody listens on its socket"


def something_holds_the_gil(pair: Pair) -> str:
    pair.up("gil")
    return "no answer within"


def it_is_stopped(pair: Pair) -> str:
    os.kill(pair.up().pid, signal.SIGSTOP)
    return "process is stopped"


@pytest.mark.parametrize(
    "silence",
    [its_socket_goes, its_agents_thread_ends, something_holds_the_gil, it_is_stopped],
    ids=lambda f: f.__name__,
)
def test_a_rank_with_a_silent_agent_is_read_from_outside(pair: Pair, silence: Any) -> None:
    why = silence(pair)
    status, seen = pair.asked("ranks")
    rows = {row["rank"]: row for row in seen["ranks"]}
    assert status == (1 if silence is it_is_stopped else 3), "a stopped process is a finding"
    assert {label: (row["state"], row["source"]) for label, row in rows.items()} == {
        PEER: ("live", "agent"),
        SILENT: ("silent", "outside"),
    }
    assert why in rows[SILENT]["reason"]
    assert "read from outside" in rows[SILENT]["reason"]
    assert rows[SILENT]["service"] == "decode@registered"
    assert rows[SILENT]["where"] == "scheduler loop"
    if silence is not its_socket_goes:
        return  # how a rank is silent makes no difference to what comes

    status, seen = pair.asked("dump", "queues")
    assert status == 3
    assert sorted((r["rank"], r["room"]) for r in seen["requests"]) == [(PEER, 12), (SILENT, 12), (SILENT, 77)]
    [row] = [row for row in seen["ranks"] if row["rank"] == SILENT]
    assert (row["state"], row["silence"], row["service"]) == ("outside", "", "decode@registered")
    assert why in row["missing"]["agent"]

    status, seen = pair.asked("diff-queues")
    [group] = seen["groups"]
    assert group["ranks"] == ["tp0", "tp1"], "one group, that of the registrations"
    assert {row["queue"]: row["lengths"] for row in group["queues"]}["decode.transfer"] == [1, 2]
    assert {now["rank"]: now["state"] for now in group["now"]} == {"tp0": "live", "tp1": "outside"}
    assert any("read from outside, its agent is silent" in problem and why in problem for problem in seen["problems"])

    status, seen = pair.asked("stuck", "--pause", "100ms")
    assert {request["room"] for request in seen["requests"]} == {12, 77}
    assert any(SILENT in problem and "read from outside" in problem for problem in seen["problems"])
    assert not [problem for problem in seen["problems"] if "did not answer" in problem]


@pytest.mark.parametrize("command", ["check", "dump metadata", "dump config", "dump leaks", "verify-routing", "stacks"])
def test_every_command_that_asks_ranks_reads_it_from_outside(pair: Pair, command: str) -> None:
    why = its_socket_goes(pair)
    pause = {"check": ("--pause", "100ms"), "dump leaks": ("--for", "100ms")}.get(command, ())
    status, seen = pair.asked(*command.split(), *pause)
    [problem] = [
        problem for problem in seen["problems"] if f"{SILENT}: read from outside, its agent is silent" in problem
    ]
    assert why in problem
    assert seen["partial"]
    # PD112 is in check; the agents of this test tell no settings, so that what is read of its peer differs from them.
    assert status == (1 if command in ("check", "dump config") else 3)
    if command == "check":
        assert SILENT in [
            rank for finding in seen["findings"] if finding["code"] == "PD112" for rank in finding["ranks"]
        ]
        levels = {row["stage"]: row["level"] for row in seen["stages"]}
        assert (levels["queues"], levels["stuck"], levels["stacks"]) == ("unknown", "unknown", "unknown")
    if command == "dump metadata":
        assert [(row["rank"], row["expected"]) for row in seen["slots"] if row["expected"]] == [
            (SILENT, 12),
            (SILENT, 77),
        ]
    if command == "stacks":
        assert {row["rank"]: row["source"] for row in seen["ranks"]} == {PEER: "agent", SILENT: "outside"}


@pytest.mark.parametrize("outside", ["off", "1"])
def test_it_is_left_where_that_is_not_wanted(pair: Pair, outside: str) -> None:
    its_socket_goes(pair)
    pair.env["PDCTL_OUTSIDE"] = outside
    status, seen = pair.asked("ranks")
    [row] = [row for row in seen["ranks"] if row["rank"] == SILENT]
    assert (status, row["state"], row["source"]) == (3, "silent", "recording")
    assert "read from outside" not in row["reason"]


def test_where_there_is_no_time_for_it_everybody_has_a_row_all_the_same(pair: Pair) -> None:
    something_holds_the_gil(pair)
    _, seen = pair.asked("ranks", patient=("--timeout", "3", "--rank-timeout", "3"))
    rows = {row["rank"]: row for row in seen["ranks"]}
    assert (rows[PEER]["state"], rows[SILENT]["state"]) == ("live", "silent")
    assert "no answer within" in rows[SILENT]["reason"]
    assert rows[SILENT]["source"] == "recording"
