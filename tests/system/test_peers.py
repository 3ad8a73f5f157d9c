"""What each side uses of the other, against who is there: servers that were replaced, and restarts that everybody noticed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdctl.probes.routing.peers import SLACK_S
from pdctl.protocol.requests import Rooms
from pdctl.targets.client import Client
from pdctl.targets.find import discover
from pdctl.targets.places import parse_places
from tests.support.labs import Lab, Labs
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]  # the machine may be busy

PATIENT = ("--rank-timeout", "30s", "--timeout", "60s")


@pytest.fixture
def labs() -> Iterator[Labs]:
    with Labs() as labs:
        yield labs


def found(labs: Labs, *more: str, command: str = "verify-routing") -> dict[str, dict[str, object]]:
    done = labs.cli(command, "-o", "json", *PATIENT, *more, code=None)
    assert done.stdout, done.stderr
    return {one["code"]: one for one in json.loads(done.stdout)["findings"]}


def queue(lab: Lab, rank: str, name: str) -> list[int]:
    return lab.queues()[rank][name]


def waiting(labs: Labs, room: int, *how: str) -> subprocess.Popen[str]:
    return labs.start("lab", "load", "-n", "1", "--room", str(room), "--seconds", "600", *how)


def test_a_restart_that_decode_has_noticed_is_clean_and_one_that_it_has_not_is_found(
    labs: Labs, tmp_path: Path
) -> None:
    lab = labs.up("--heartbeat", "2s", "--heartbeat-failures", "2")
    assert lab.load(requests=2).good
    assert found(labs) == {}

    labs.cli("lab", "kill", "bootstrap", "--signal", "STOP")  # its heartbeats fail, and decode gives prefill up
    until("decode to forget its prefill server", lambda: not told(lab))
    labs.cli("lab", "restart", "prefill")
    assert found(labs) == {}
    assert lab.load(requests=2).good
    assert found(labs) == {}

    labs.cli("lab", "down")
    lab = labs.up("--heartbeat", "600s")
    assert lab.load(requests=2).good
    load = waiting(labs, 4101, "--to", "decode")  # its addresses go to the process that is there now
    until("the room in decode.transfer", lambda: queue(lab, "decode dp0 pp0 tp1", "decode.transfer") == [4101])
    time.sleep(2 * SLACK_S)  # recordings have times alone, and a request that is younger may be of the same moment
    labs.cli("lab", "restart", "prefill")
    now = found(labs)
    assert now["PD144"]["rooms"] == [4101]
    assert "1 request waits for an answer that will not come" in str(now["PD144"]["summary"])
    assert found(labs, command="stuck")["PD144"]["rooms"] == [4101]
    assert labs.cli("check", "--probe", *PATIENT, code=1).returncode == 1
    trace = tmp_path / "x.pdtrace"
    labs.cli("record", trace)
    recorded = found(labs, "--from", str(trace))  # there, times tell
    assert recorded["PD144"]["rooms"] == [4101]
    assert "sent its addresses for 1 request before prefill@lab:lab started" in str(recorded["PD144"]["summary"])
    assert found(labs, "--from", str(trace), command="stuck")["PD144"] == recorded["PD144"]
    load.kill()
    load.wait()


def told(lab: Lab) -> bool:
    """Return whether a decode rank knows a prefill server."""
    ranks = [rank for rank in discover(parse_places(lab.labs.env)).ranks if rank.identity.role == "decode"]
    with Client() as client:
        return any(answer.body is not None and answer.body.prefills for answer in client.ask(ranks, "rooms", Rooms))


def test_decode_was_restarted_with_requests_in_flight_and_without(labs: Labs) -> None:
    lab = labs.up("--heartbeat", "600s")
    assert lab.load(requests=2).good
    labs.cli("lab", "restart", "decode")  # nothing was in flight
    assert found(labs) == {}
    assert lab.load(requests=2).good

    load = waiting(labs, 4201, "--to", "prefill")
    until("the room at prefill", lambda: queue(lab, "prefill dp0 pp0 tp0", "prefill.bootstrap") == [4201])
    assert "PD144" not in found(labs)  # this decode process was there before the room
    labs.cli("lab", "restart", "decode")
    now = found(labs)
    assert now["PD144"]["rooms"] == [4201]
    assert found(labs, command="stuck")["PD144"]["rooms"] == [4201]
    assert "holds 1 request from before decode@lab:lab started" in str(now["PD144"]["summary"])
    load.kill()
    load.wait()


def test_a_bootstrap_server_that_refuses_is_the_cause_whoever_is_asked(labs: Labs) -> None:
    lab = labs.up()
    labs.cli("lab", "kill", "bootstrap")
    load = waiting(labs, 4301)
    until("the request at prefill", lambda: queue(lab, "prefill dp0 pp0 tp0", "prefill.bootstrap") == [4301])
    until("PD145 of it", lambda: found(labs, command="stuck").get("PD145", {}).get("rooms") == [4301])
    gave_up = "no client aborted it"
    until("decode to give up", lambda: gave_up in str(found(labs, command="stuck")["PD145"]["summary"]), every_s=2.0)
    now = found(labs, command="stuck")
    assert [code for code, one in now.items() if not one["follows"]] == ["PD145"]
    load.kill()
    load.wait()


def test_a_slow_bootstrap_server_and_two_prefill_servers_are_clean(labs: Labs) -> None:
    lab = labs.up("--prefills", "2", "--slow-bootstrap", "300ms")
    load = labs.start("lab", "load", "-n", "8", "--seconds", "600")
    until(
        "requests that wait for it",
        lambda: queue(lab, "decode dp0 pp0 tp0", "decode.pending") or load.poll() is not None,
    )
    assert found(labs) == {}
    assert load.wait() == 0
    done = labs.cli("check", *PATIENT)
    assert "2 of 2 bootstrap servers heard" in done.stdout
