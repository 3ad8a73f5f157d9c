"""A thread of the engine ends beside a scheduler that goes on: a lab without code for decode's aborts, and one with it."""

from __future__ import annotations

import json

import pytest

from tests.support.labs import Labs
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]

PATIENT = ("--rank-timeout", "60s", "--timeout", "60s")


def test_an_abort_that_ends_prefills_bootstrap_thread_is_refused_and_a_real_one_is_told() -> None:
    with Labs() as labs:
        lab = labs.up("--without", "aborts")
        assert lab.load(requests=4).completed == 4
        labs.cli("check", *PATIENT)
        labs.cli("heal", "--all")
        for rank in ("decode:tp1", "prefill:tp0"):
            refused = labs.cli("inject", "--abort", "--rank", rank, "--for", "5s", code=5)
            assert "ends prefill's bootstrap thread for good" in refused.stderr
        lab.load(requests=1, to="decode", abort_after_s=0.5)

        def told() -> bool:
            return '"PD117"' in labs.cli("ranks", "-o", "json", *PATIENT, code=None).stdout

        until("a finding", told)
        [found] = json.loads(labs.cli("check", "-o", "json", *PATIENT, code=1).stdout)["findings"][:1]
        assert found["code"] == "PD117"
        assert "The bootstrap thread of prefill dp0 pp0 tp0 ended" in found["summary"]
        assert "by UnexpectedMessageError" in found["summary"]
        assert "upgrade prefill to 0.5.18" in found["next_step"]
        left = labs.cli("heal", "--all")
        assert "bootstrap_thread had ended before by UnexpectedMessageError" in left.stderr
        recorded = labs.cli("check", "--from", labs.folder / "rec", code=1)
        assert "PD117" in recorded.stdout


def test_addresses_that_nobody_takes_since_the_thread_has_ended() -> None:
    with Labs() as labs:
        lab = labs.up("--without", "aborts")
        lab.load(requests=1, to="decode", abort_after_s=0.5)

        def told() -> list[tuple[str, list[int]]]:
            document = json.loads(labs.cli("check", "-o", "json", *PATIENT, code=1).stdout)
            return [(one["follows"], one["rooms"]) for one in document["findings"] if one["code"] == "PD155"]

        until("the end of the thread", lambda: '"PD117"' in labs.cli("ranks", "-o", "json", *PATIENT, code=None).stdout)
        with lab.waiting(82, "both"):
            assert until("a finding", told, 120, 1.0) == [("PD117", [82])]
        assert told() == []


def test_with_it_an_abort_ends_its_request_alone() -> None:
    with Labs() as labs:
        lab = labs.up()
        lab.load(requests=1, to="decode", abort_after_s=0.5)
        assert lab.load(requests=2).completed == 2
        assert '"PD117"' not in labs.cli("check", "-o", "json", *PATIENT, code=None).stdout
        labs.cli("heal", "--all")


@pytest.mark.long
def test_an_agent_that_comes_later_tells_of_it() -> None:
    with Labs() as labs:
        labs.env["PDCTL_AGENT"] = "off"
        lab = labs.up("--without", "aborts")
        lab.load(requests=1, to="decode", abort_after_s=0.5)
        prefill = lab.process("prefill dp0 pp0 tp0").pid
        labs.cli("attach", prefill, "--inject-agent", *PATIENT)
        until("a finding", lambda: '"PD117"' in labs.cli("ranks", "-o", "json", *PATIENT, code=None).stdout)
