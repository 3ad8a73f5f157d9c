"""A server that changes its role while it runs, there and back (SGLang 0.5.23): followed, and diagnosed as before.

One pair; the last test hangs it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdctl.protocol.notes import ROLE_CHANGED
from tests.engine.checks import document, late_metadata
from tests.engine.conftest import engine
from tests.engine.env import Namespace
from tests.engine.harness import Pair, Server
from tests.engine.tokens import PROMPTS, right_tokens
from tests.support.patience import patience, until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]

VERSION = "0.5.23"
PREFILL, TP0, TP1 = "prefill dp0 pp0 tp0", "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"
READY_S = 300.0


@pytest.fixture(scope="module")
def switching(site: Path, namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Decode may change its role; its gate is taken out, so that late metadata parts its ranks."""
    env = engine(VERSION, site)
    args = ("--enable-pd-role-switch", "--disaggregation-bootstrap-port", "30400")
    env = replace(env, decode_args=(*env.decode_args, *args))
    with Pair.start(
        env,
        namespace,
        tmp_path_factory.mktemp("switching"),
        prefill_args=("--enable-pd-role-switch",),
        environ={"PDCTL_REVERT": "gate"},
        ready_s=READY_S,
    ) as started:
        yield started


def roles(pair: Pair) -> dict[int, tuple[str, str]]:
    """Return pid → (role, state) of every rank that is found."""
    return {rank.identity.pid: (rank.identity.role, rank.state) for rank in pair.ranks()}


@contextlib.contextmanager
def watched(pair: Pair) -> Iterator[Counter[tuple[int, str, str]]]:
    """Run ``diff-queues`` again and again; yield how often it gave which exit code, findings, and verdicts."""
    seen: Counter[tuple[int, str, str]] = Counter()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            status, told = document(pair)
            codes = ",".join(found["code"] for found in told["findings"])
            seen[status, codes, "; ".join(f"{group['title']} {group['verdict']}" for group in told["groups"])] += 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def switch(pair: Pair, server: Server, role: str) -> None:
    asked = {"new_role": role, "decode_cuda_graph_memory_gb": 0.0}
    answer = pair._post(server, "/pd_role_switch", asked, patience(120))
    assert answer["success"], answer


def test_a_role_that_changes_there_and_back_is_followed(switching: Pair) -> None:
    pair = switching
    assert pair.one_by_one(PROMPTS) == right_tokens(VERSION)
    [server] = [server for server in pair.servers if server.role == "decode"]
    before = roles(pair)
    pids = {pid for pid, (role, _) in before.items() if role == "decode"}
    assert len(pids) == 2
    with watched(pair) as seen:
        for role in ("prefill", "decode"):
            switch(pair, server, role)
            new = {pid: (role, "live") if pid in pids else was for pid, was in before.items()}
            until(f"both ranks are {role}", lambda new=new: roles(pair) == new, 60, 0.2)
            looked = sum(seen.values())
            until("it has been looked at", lambda least=looked + 10: sum(seen.values()) >= least, 120, 0.5)
    assert {(status, codes) for status, codes, _ in seen} == {(0, "")}, seen
    there = {verdicts for _, _, verdicts in seen}
    assert any(verdicts.count("prefill") == 2 for verdicts in there), "the switch was seen"
    assert any("decode" in verdicts and "AGREE" in verdicts for verdicts in there)
    notes = {
        label: [event.text for event in recording.events() if event.text.startswith(ROLE_CHANGED)]
        for label, recording in pair.recordings().items()
    }
    both = [f"{ROLE_CHANGED}: decode to prefill", f"{ROLE_CHANGED}: prefill to decode"]
    assert notes == {PREFILL: [], TP0: both, TP1: both}
    assert pair.one_by_one(PROMPTS) == right_tokens(VERSION)
    done = pair.pdctl("check")
    assert done.returncode == 0, done.stdout


def test_late_metadata_after_the_switch_is_diagnosed(switching: Pair) -> None:
    pair = switching
    with late_metadata(pair, "5s"):
        pair.begin(1, limit_s=300)

        def diverged() -> dict[str, Any] | None:
            status, seen = document(pair)
            return seen if status == 1 and [g for g in seen["groups"] if g["verdict"] == "DIVERGED"] else None

        seen = until("diff-queues reports it", diverged, 90, 1.0)
    [group] = [group for group in seen["groups"] if group["verdict"] == "DIVERGED"]
    assert group["queue"] == "decode.transfer"
    [found] = [one for one in seen["findings"] if one["level"] == "error"]
    assert (found["code"], found["rooms"]) == ("PD101", [pair.rooms[-1]]), found
    [split] = group["splits"]
    assert {side["rank"]: side["action"] for side in split["sides"]} == {"tp0": "committed", "tp1": "aborted"}
