"""A server that ended: what is said of it, until it is back; and what is said where nobody is left."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.labs import Labs
from tests.support.patience import until

pytestmark = pytest.mark.system


def look(labs: Labs, *command: object, code: int | None = None) -> dict[str, Any]:
    """Return what a command says as JSON."""
    found: dict[str, Any] = json.loads(labs.cli(*command, "-o", "json", code=code).stdout)
    return found


def test_a_server_that_ended_is_the_cause_until_it_is_back(labs: Labs) -> None:
    """A restart with nothing in flight is none; what waits for a killed server is named, and ages grow."""
    lab = labs.up("--prefill", "tp=2", "--decode", "tp=2", "--heartbeat", "600s")
    assert lab.load(requests=4).good
    labs.cli("lab", "restart", "prefill")
    codes = [one["code"] for one in look(labs, "check")["findings"]]
    assert "PD113" not in codes, "a server that came back at its address"
    with lab.waiting(4601, "decode"):
        until("the room", lambda: lab.queues()["decode dp0 pp0 tp0"]["decode.transfer"] == [4601])
        labs.cli("lab", "kill", "prefill:tp1")

        def ended() -> dict[str, Any] | None:
            found = [one for one in look(labs, "check")["findings"] if one["code"] == "PD113"]
            return found[0] if found and len(found[0]["ranks"]) == 2 else None

        first = until("both ranks gone", ended)
        assert first["summary"].startswith("Server prefill ended")
        assert "prefill dp0 pp0 tp1 first, killed by SIGKILL (the engine's log says so)" in first["summary"]
        assert "1 room of decode waits for it; SGLANG_DISAGGREGATION_WAITING_TIMEOUT ends 1 in" in first["summary"]
        assert first["rooms"] == [4601]
        assert any("tp0" in line and "scheduler ended: RuntimeError" in line for line in first["evidence"])
        document = look(labs, "check", code=1)
        assert document["findings"][0]["code"] == "PD113"
        assert {one["code"] for one in document["findings"] if one["follows"] == "PD113"} >= {"PD112"}
        assert "Server prefill ended" in labs.cli("stuck", code=1).stdout
        ages = [
            next(row["tick_age_s"] for row in look(labs, "ranks", code=1)["ranks"] if row["state"] == "dead")
            for _ in "ab"
        ]
        assert ages[1] > ages[0], "ages count to now"
    labs.cli("lab", "kill", "decode")
    until("nobody left", lambda: not [one for one in lab.left() if one.label.startswith(("prefill", "decode"))])
    for command in (("faults",), ("heal", "--all"), ("record", "x.pdtrace", "--for", "5s")):
        labs.cli(*command, code=4)
