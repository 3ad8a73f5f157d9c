"""``pdctl check`` on a lab: quiet on a healthy cluster under load, loud and right on a broken one."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import pytest

from pdctl.probes.check.probe import run
from pdctl.probes.registry import stages
from pdctl.probes.view import View
from pdctl.targets.client import Client
from pdctl.targets.find import discover
from pdctl.targets.places import parse_places
from tests.support.labs import Lab, Labs
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(3600, method="signal")]  # the machine may be busy

PATIENT = ("--rank-timeout", "60s", "--timeout", "60s")
LOOKS = int(os.environ.get("PDCTL_TEST_CHECKS", "5"))
"""Runs on the healthy cluster; 1000 for the record."""


def check(lab: Lab, *options: object, code: int) -> dict[str, Any]:
    done = lab.labs.cli("check", "-o", "json", *PATIENT, *options, code=code)
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schema"] == "pdctl.check"
    return document


def test_a_healthy_cluster_under_load_with_aborts() -> None:
    """C11: no finding above info, however often one looks."""
    with Labs() as labs:
        lab = labs.up("--prefill", "tp=1", "--decode", "tp=2", "--kv-tokens", 400)
        over = threading.Event()
        sent = [0]

        def load() -> None:
            while not over.is_set():
                sent[0] += lab.load(requests=20, concurrency=8, new_tokens=12).completed
                lab.load(requests=6, concurrency=6, new_tokens=40, abort_after_s=0.1)

        thread = threading.Thread(target=load, daemon=True)
        thread.start()
        try:
            until("the first requests", lambda: sent[0])
            for number in range(LOOKS):
                with Client(timeout_s=60, rank_timeout_s=60) as client:
                    outcomes = list(run(View(discover(parse_places(labs.env)).require(), client), stages(), 0.5))
                bad = [f for outcome in outcomes for f in outcome.findings if f.level.value != "info"]
                assert not bad, f"look {number}: {bad}"
        finally:
            over.set()
            thread.join()
        until("a check without a failure", lambda: check_any(lab)["level"] in ("ok", "info"))


def test_a_lost_message_a_stopped_rank_and_what_is_suppressed() -> None:
    with Labs() as labs:
        lab = labs.up("--prefill", "tp=1", "--decode", "tp=2")
        labs.cli("inject", "--drop-status", "--rank", "decode:tp1", "--for", "10m", "--detach", "--room", 4000)
        thread = threading.Thread(target=lambda: lab.load(requests=1, room=4000), daemon=True)
        thread.start()
        until("room 4000 in transfer", lambda: lab.queues()["decode dp0 pp0 tp1"]["decode.transfer"] == [4000])
        document = until("a failed check", lambda: found if (found := check_any(lab))["failed"] else None)
        assert [f["code"] for f in document["findings"]] == ["PD142"]
        levels = {row["stage"]: row["level"] for row in document["stages"]}
        assert (levels["ranks"], levels["queues"], levels["stuck"]) == ("ok", "ok", "error")
        assert not check(lab, "--suppress", "PD142=4000", code=0)["failed"]
        assert check(lab, "--suppress", "PD142=4001", code=1)["failed"]
        assert [row["stage"] for row in check(lab, "--only", "queues", code=0)["stages"]] == ["queues"]
        assert "stuck" not in [row["stage"] for row in check(lab, "--skip", "stuck", code=0)["stages"]]
        drawn = labs.cli("check", *PATIENT, code=1).stdout
        assert " ".join(drawn.split()).startswith("PD142 Room 4000")
        labs.cli("heal", "--all")
        thread.join()

        tp1 = lab.process("decode dp0 pp0 tp1")
        os.kill(tp1.pid, signal.SIGSTOP)
        try:
            document = json.loads(labs.cli("check", "-o", "json", "--rank-timeout", "1s", code=1).stdout)
            assert [f["code"] for f in document["findings"]][:2] == ["PD114", "PD112"]
            assert document["partial"]
        finally:
            os.kill(tp1.pid, signal.SIGCONT)
        until("a check without a finding", lambda: check_any(lab)["level"] == "ok")


def check_any(lab: Lab) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(lab.labs.cli("check", "-o", "json", *PATIENT, code=None).stdout)
    return document


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "everything"], "there is no stage 'everything': ranks, config, queues, routing"),
        (["--skip", "nothing"], "there is no stage"),
        (["--fail-on", "fatal"], "info, warning, error"),
        (["--suppress", "PD999"], "there is no finding 'PD999'"),
        (["--suppress", "PD142=seven"], "is no room"),
    ],
)
def test_bad_options(words: list[str], said: str) -> None:
    with Labs() as labs:
        done = labs.cli("check", *words, code=2)
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
