"""``pdctl preflight`` on labs: fit, not fit, and followed through the queues by a request of its own."""

from __future__ import annotations

import json
import os
import signal
from importlib import metadata
from typing import Any

import pytest

from tests.support.labs import Lab, Labs
from tests.support.patience import patience

pytestmark = pytest.mark.system
PATIENT = ("--timeout", f"{patience(30):g}", "--rank-timeout", f"{patience(5):g}")


def preflight(lab: Lab, *options: object, code: int) -> dict[str, Any]:
    done = lab.labs.cli("preflight", "-o", "json", *PATIENT, *options, code=code)
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schema"] == "pdctl.preflight"
    return document


def lines(document: dict[str, Any], *verdicts: str) -> dict[str, str]:
    return {one["check"]: one["found"] for one in document["lines"] if one["verdict"] in verdicts}


def test_a_fit_deployment_and_what_becomes_of_it() -> None:
    with Labs() as labs:
        lab = labs.up("--prefill", "tp=1", "--decode", "tp=2")
        document = preflight(lab, "--handshake", code=0)
        assert (document["fit"], document["findings"]) == (True, [])
        assert set(lines(document, "unknown")) == {"kv-layout", "metadata-rows"}
        told = lines(document, "ok")
        assert "prefill tp0: prefill.bootstrap > prefill.inflight" in told["handshake"]
        assert "decode tp1: " in told["handshake"]
        assert "addresses of ranks accept connections" in told["ports"]
        assert "answers for prefill" in told["bootstrap"]
        if "mooncake" in told["transfer"]:
            [dist] = metadata.packages_distributions()["mooncake"]
            assert f"{dist} {metadata.version(dist)}" in told["transfer"]

        saved = labs.folder / "settings.json"
        saved.write_text(labs.cli("dump", "config", "-o", "json").stdout)
        assert preflight(lab, "--settings", saved, code=0)["fit"] is True
        both = json.loads(saved.read_text())
        [decode] = [one for one in both["servers"] if one["role"] == "decode"]
        decode["values"]["page_size"] = "64"
        decode["env"]["SGLANG_DISAGGREGATION_WAITING_TIMEOUT"] = "5"
        saved.write_text(json.dumps(both))
        assert set(lines(preflight(lab, "--settings", saved, code=1), "error", "warning")) == {"page-size", "time-outs"}

        stopped = lab.process("decode dp0 pp0 tp1")
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            held = preflight(lab, "--handshake", "--rank-timeout", "1s", code=1)
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        assert "PD114" in [one["code"] for one in held["findings"]]
        assert "not sent" in lines(held, "unknown")["handshake"]

        os.kill(lab.process("bootstrap").pid, signal.SIGKILL)
        gone = preflight(lab, code=1)
        assert [one["code"] for one in gone["findings"]] == ["PD145"]


def test_a_deployment_that_can_not_work_is_named_line_by_line() -> None:
    wrong = ("--decode-set", "page_size=16", "--decode-set", "num_hidden_layers=9")
    routed = ("--prefill", "dp=2", "--decode", "tp=2", "--force-query", "decode", "--without", "gate")
    with Labs() as labs:
        lab = labs.up(*routed, *wrong, "--waiting-timeout", "5s", "--no-armed")
        document = preflight(lab, code=1)
        assert set(lines(document, "error")) == {"page-size", "model", "routing"}
        assert set(lines(document, "warning")) == {"defects", "time-outs"}
        assert {one["code"] for one in document["findings"]} == {"PD123", "PD135", "PD171", "PD172"}
        assert all(one["cure"] and one["why"] for one in document["lines"] if one["verdict"] in ("error", "warning"))


def test_nothing_is_sent_through_ranks_that_are_not_armed() -> None:
    with Labs() as labs:
        lab = labs.up("--prefill", "tp=1", "--decode", "tp=1", "--no-armed")
        done = labs.cli("preflight", "--handshake", *PATIENT, code=5)
        assert "was not armed" in done.stderr
        assert preflight(lab, code=0)["fit"] is True
