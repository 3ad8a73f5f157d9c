"""Situations with one cause and several findings: one next step stands on top, and what follows is folded under its cause."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.support.labs import Lab, Labs
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(3600, method="signal")]  # the machine may be busy

PATIENT = ("--rank-timeout", "60s", "--timeout", "120s")


def sending(lab: Lab, **how: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: lab.load(**how), daemon=True)
    thread.start()
    return thread


def check(lab: Lab, *options: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab.labs.cli("check", "-o", "json", *PATIENT, *options, code=None).stdout)
    return found


def test_a_full_batch_whose_clients_are_gone() -> None:
    with Labs() as labs:
        lab = labs.up("--max-running", 2, "--step", "decode=500ms")
        # Twin: full for a moment, and somebody waits for everything.
        busy = sending(lab, requests=4, concurrency=4, new_tokens=3)
        until("a request that runs", lambda: lab.queues()["decode dp0 pp0 tp0"]["running"])
        document = check(lab, "--only", "stuck", "--pause", "500ms")
        assert (document["failed"], document["level"] in ("ok", "info")) == (False, True), document
        busy.join()
        # Two clients leave, and their requests go on.
        gone = lab.load(requests=2, concurrency=2, rids=("gone",), new_tokens=2000, give_up_s=1.0)
        assert gone.given_up == 2
        sending(lab, requests=1, rids=("late",), seconds=600, new_tokens=2)
        document = until("a warning", lambda: d if (d := check(lab, "--only", "stuck"))["failed"] else None)
        [finding] = document["findings"]
        assert (finding["code"], finding["level"]) == ("PD146", "warning")
        assert "The running batch of decode dp0 pp0 is full: 2 of 2 places are taken, by" in finding["summary"]
        assert "Nobody waits for 2 of those that run: rid gone-" in finding["summary"]
        text = labs.cli("check", "--only", "stuck", *PATIENT, code=1).stdout.splitlines()
        assert text[0].startswith("PD146  The running batch of decode dp0 pp0 is full")
        assert any(line.startswith("Next: Abort the requests that nobody waits for") for line in text)
        assert sum(line.strip().startswith("Next:") for line in text) == 1
