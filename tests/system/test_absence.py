"""A request that one side does not have: it never came, or nobody can know, since the loop there has not turned since."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cases import Cases
from tests.support.labs import Labs
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]  # the machine may be busy


def stuck(cases: Cases, code: int | None = None) -> dict[str, Any]:
    patient = "--rank-timeout 60s --timeout 60s"
    done = cases.run(f"stuck -o json --stuck-after 2s --pause 1s {patient}", code=code)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_requests_that_reach_decode_only_never_came_to_prefill() -> None:
    with Labs() as labs, Cases(labs) as cases:
        cases.run("lab up", code=0)
        cases.run("lab load -n 8", code=0)
        nothing_there(cases)
        cases.start("lab load -n 5 -c 5 --to decode --seconds 600")
        found = until("a finding", lambda: (document := stuck(cases))["findings"] and document)
        [finding] = found["findings"]
        assert (finding["code"], len(finding["rooms"])) == ("PD143", 5)
        assert "it never came to prefill (prefill dp0 pp0 tp0 only got decode's addresses for it" in finding["summary"]
        assert {request["peer_is"] for request in found["requests"]} == {"never"}
        room = finding["rooms"][0]
        story = " ".join(cases.run(f"story {room}", code=0).stdout.split())
        assert "noted it never came to prefill: prefill tp0 took in requests until" in story
        assert "prefill tp0 told by decode: state WaitingForInput" in story
        unknown_everywhere(cases)


def nothing_there(cases: Cases) -> None:
    """An idle server has no request, whatever a gauge says."""
    until("the end of all", lambda: "no rank has a request" in cases.run("dump queues", code=0).stderr)
    checked = " ".join(cases.run("check --only stuck", code=0).stdout.split())
    assert "no request waits; if a gauge shows some, it is stale" in checked


def unknown_everywhere(cases: Cases) -> None:
    """A room and a request id that nobody has: one wording, and where to ask next."""
    for command in ("dump queues --room 12345", "dump metadata --room 12345", "verify-routing 12345"):
        said = " ".join(cases.run(command, code=3).stderr.split())
        assert "room 12345 is unknown here: " in said, command
        assert "pdctl story 12345 tells whether it ever came here" in said, command
    for asked, name in (("12345", "room 12345"), ("no-such-rid", "rid no-such-rid")):
        said = " ".join(cases.run(f"story {asked}", code=3).stderr.split())
        assert f"{name} never came here: 3 recordings, complete since " in said
        assert "Look in the router's log for the servers that it was sent to" in said


def test_what_waits_behind_a_long_forward_is_not_missed() -> None:
    with Labs() as labs, Cases(labs) as cases:
        lab = cases.make("A long forward on prefill")

        def waiting() -> dict[str, Any] | None:
            document = stuck(cases)
            small = [request for request in document["requests"] if request["room"] > 9010]
            assert document["findings"] == []
            return document if small and min(request["age_s"] for request in small) > 4 else None

        document = until("small requests that have waited for longer than a request takes to come", waiting)
        peers = {request["room"]: request["peer"] for request in document["requests"] if request["role"] == "decode"}
        kinds = {request["room"]: request["peer_is"] for request in document["requests"] if request["role"] == "decode"}
        if lab.queues()["prefill dp0 pp0 tp0"]["prefill.bootstrap"] == []:  # it is in the first forward still
            assert kinds[9011] == "unread", peers
            assert "has been in model forward for" in peers[9011]
        cases.run("check --rank-timeout 60s --timeout 60s", code=0)
