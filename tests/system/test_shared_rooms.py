"""One request id with two rooms, a room that another request had before, and a room whose metadata does not come."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cases import Cases
from tests.support.labs import Labs
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]  # the machine may be busy

PATIENT = "--rank-timeout 60s --timeout 60s"


def findings(cases: Cases, command: str) -> dict[str, dict[str, Any]]:
    document = json.loads(cases.run(f"{command} -o json {PATIENT}").stdout)
    return {found["code"]: found for found in document["findings"]}


def test_one_request_id_with_two_rooms() -> None:
    with Labs() as labs, Cases(labs) as cases:
        cases.make("One request id, two rooms")
        found = until("a finding", lambda: findings(cases, "check").get("PD147"))
        assert found["summary"] == "rid same-id has 2 rooms at the same time: 88001, 88002."
        told = " ".join(cases.run("story same-id", code=1).stdout.split())
        assert "room 88001 rid same-id" in told
        assert "room 88002 rid same-id" in told
        assert "PD147 rid same-id has 2 rooms at the same time: 88001, 88002." in told
        alone = " ".join(cases.run("story 88002", code=0).stdout.split())
        assert "noted rid same-id is also that of room 88001: pdctl story same-id tells all" in alone


def test_a_retry_under_an_id_of_its_own_and_a_room_used_again() -> None:
    with Labs() as labs, Cases(labs) as cases:
        cases.make("One request id, two rooms", twin=True)
        cases.run(f"check {PATIENT}", code=0)
        cases.run("story its-retry", code=0)
        cases.run("lab load -n 1 --rid first --room 500", code=0)
        cases.start("lab load -n 1 --rid second --room 500 --to decode --seconds 600")
        found = until("a finding", lambda: findings(cases, "stuck --pause 1s").get("PD147"))
        assert found["rooms"] == [500]
        assert "Room 500 of request second, which waits in decode." in found["summary"]
        assert "was that of request first" in found["summary"]


@pytest.mark.long
def test_a_room_that_the_gate_holds_for_long() -> None:
    with Labs() as labs, Cases(labs) as cases:
        cases.run("lab up")
        both = "--rank decode:tp0 --rank decode:tp1 --allow-ranks 2"
        cases.run(f"inject --drop-metadata --room 500 --for 10m {both} --detach", code=0)
        cases.start("lab load -n 1 --rid held --room 500 --seconds 600")
        until("a hold of the gate", lambda: "PD102" in findings(cases, "diff-queues"))
        cases.run(f"diff-queues {PATIENT}", code=0)
        found = until("a hold that lasts", lambda: findings(cases, "check").get("PD148"))
        assert found["rooms"] == [500]
        assert "room 500 has been held by the gate on every rank (tp0 and tp1) for 3" in found["summary"]
        cases.run("heal --all")
