"""Scheduler loops that stand are an error wherever one looks, and what only takes long is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pdctl.protocol.model import KVPoll
from tests.support.labs import Lab, Labs
from tests.support.patience import until

pytestmark = pytest.mark.system


def look(labs: Labs, *command: object, code: int | None = None) -> dict[str, Any]:
    """Return what a command says as JSON."""
    found: dict[str, Any] = json.loads(labs.cli(*command, "-o", "json", code=code).stdout)
    return found


def causes(document: dict[str, Any]) -> list[str]:
    return [one["code"] for one in document["findings"] if not one["follows"] and one["level"] == "error"]


@pytest.fixture(scope="module")
def well() -> Iterator[tuple[Labs, Lab]]:
    with Labs() as labs:
        yield labs, labs.up("--prefill", "tp=1", "--decode", "tp=2")


@pytest.mark.parametrize("rank", ["decode:tp1", "prefill"])
def test_a_stopped_rank_is_the_cause_everywhere_until_it_goes_on(well: tuple[Labs, Lab], rank: str) -> None:
    labs, lab = well
    labs.cli("lab", "kill", rank, "--signal", "STOP", "--name", lab.name)
    document = until("the loop stands", lambda: (d := look(labs, "check")) and causes(d) == ["PD114"] and d)
    first = document["findings"][0]
    role = rank.partition(":")[0]
    assert first["code"] == "PD114"
    assert f"of {role} dp0 tp" in first["summary"]
    assert "its process is stopped (SIGSTOP)" in first["summary"]
    assert "kill -CONT" in first["next_step"]
    assert document["failed"]
    assert {
        stage["level"] for stage in document["stages"] if stage["stage"] in ("ranks", "queues", "stuck", "stacks")
    } == {"error"}
    queues = look(labs, "diff-queues", code=1)
    verdicts = {group["role"]: group["verdict"] for group in queues["groups"]}
    assert verdicts[role] == "WAITING"
    ranks = look(labs, "ranks", code=1)["ranks"]
    assert [row["stands"] for row in ranks if row["role"] != role] == [False] * (2 if role == "prefill" else 1)
    shown = labs.cli("ranks", code=1).stdout
    assert shown.startswith("PD114")
    assert shown.index("stands") < shown.index("live ")
    labs.cli("lab", "kill", rank, "--signal", "CONT", "--name", lab.name)
    until("it turns again", lambda: labs.cli("check", code=None).returncode == 0)
    assert lab.load(requests=4).completed == 4


def test_stages_that_parted_at_a_request_stand_for_good(labs: Labs) -> None:
    """An abort that reached the second stage alone, in the round in which the first one took the request on."""
    lab = labs.up("--prefill", "pp=2", "--decode", "tp=1")
    assert lab.load(requests=4).completed == 4
    assert look(labs, "check", code=0)["findings"] == []
    labs.cli("inject", "--abort", "--rank", "prefill:pp1", "--hits", "1", "--for", "10m", "--detach")
    room = 7
    with lab.waiting(room, "decode", seed=1):  # decode is ready before prefill gets the request
        until("decode's addresses", lambda: lab.queues()["decode dp0 pp0 tp0"]["decode.transfer"] == [room])
        assert lab.load(requests=1, room=room, seed=1, to="prefill", seconds=2).unfinished_rooms == [room]
        document = until("both stages stand", lambda: (d := look(labs, "check")) and "PD115" in causes(d) and d)
    first = document["findings"][0]
    assert (first["code"], first["rooms"], causes(document)) == ("PD115", [room], ["PD115"])
    assert "prefill dp0 pp0 tp0 took it on in round" in first["summary"]
    assert "prefill dp0 pp1 tp0 failed it in round" in first["summary"]
    assert "Restart this server" in first["next_step"]

    def follows() -> set[str]:
        return {one["code"] for one in look(labs, "check", code=1)["findings"] if one["follows"] == "PD115"}

    until("that their loops stand follows from it", lambda: "PD114" in follows())
    report = compared(look(labs, "diff-queues", code=1), "stages")
    assert (report["verdict"], report["queue"]) == ("DIVERGED", "prefill.bootstrap")
    [split] = report["splits"]
    sides = [(side["rank"], side["action"]) for side in split["sides"]]
    assert (split["room"], sides) == (room, [("pp0", "moved on"), ("pp1", "failed")])
    offline = look(labs, "diff-queues", "--through", "recordings", code=1)
    assert ("PD115", [room]) in [(one["code"], one["rooms"]) for one in offline["findings"]]


@pytest.mark.parametrize("what", ["kept", "failed"])
def test_stages_of_decode_that_decide_differently_stand_for_good(labs: Labs, what: str) -> None:
    """They agree on transfers that ended. One without its metadata keeps such a request; one whose transfer failed fails it."""
    lab = labs.up("--prefill", "pp=2", "--decode", "pp=2")
    assert lab.load(requests=12, concurrency=4).completed == 12
    assert look(labs, "check", code=0)["findings"] == []
    before = compared(look(labs, "diff-queues", code=0), "stages", "decode")
    assert before["verdict"] == "AGREE"
    assert before["compared"]["decode.transfer"] > 0
    fault = "--delay-metadata" if what == "kept" else "--stall-transfer"
    labs.cli("inject", fault, "10m", "--rank", "decode:pp1", "--for", "10m", "--detach")
    room, (first, second) = 7, (f"decode dp0 pp{pp} tp0" for pp in (0, 1))
    assert lab.load(requests=1, room=room, seconds=2).unfinished_rooms == [room]
    if what == "failed":
        until("the first stage has all", lambda: lab.items(first, "decode.transfer")[-1].local == KVPoll.SUCCESS)
        abort = ("--abort", "--hits", "1", "--allow-ranks", "2")
        labs.cli("inject", *abort, "--rank", "decode:pp1", "--for", "10m", "--detach")
    document = until("both stages stand", lambda: (d := look(labs, "check")) and "PD115" in causes(d) and d)
    found = document["findings"][0]
    assert (found["code"], found["rooms"], causes(document)) == ("PD115", [room], ["PD115"])
    assert f"parted at room {room}: {first} ended it well in round" in found["summary"]
    assert f"of decode.transfer, {second} {what} it in round" in found["summary"]
    report = compared(look(labs, "diff-queues", code=1), "stages", "decode")
    assert (report["verdict"], report["queue"]) == ("DIVERGED", "decode.transfer")
    [split] = report["splits"]
    sides = [(side["rank"], side["action"]) for side in split["sides"]]
    assert (split["room"], sides) == (room, [("pp0", "committed"), ("pp1", what)])
    offline = look(labs, "diff-queues", "--through", "recordings", code=1)
    assert ("PD115", [room]) in [(one["code"], one["rooms"]) for one in offline["findings"]]


def test_aborts_of_requests_that_run_part_no_stages(labs: Labs) -> None:
    """A later stage hears of an abort a turn later. Its batches have to be those of the first one all the same."""
    lab = labs.up("--prefill", "pp=2", "--decode", "pp=2", "--step", "decode=100ms")
    decode = [f"decode dp0 pp{pp} tp0" for pp in (0, 1)]
    with lab.waiting(70, "both", new_tokens=3000), lab.waiting(71, "both", new_tokens=3000):
        until("both are computed", lambda: all(len(lab.queues()[rank]["running"]) == 2 for rank in decode))
    assert lab.load(requests=4).completed == 4
    assert look(labs, "check", code=0)["findings"] == []


def test_a_stage_of_decode_that_is_not_told_of_a_failed_transfer_keeps_it(labs: Labs) -> None:
    lab = labs.up("--prefill", "pp=2", "--decode", "pp=2", "--without", "transfer-drain")
    assert lab.load(requests=4).completed == 4
    room, second = 7, "decode dp0 pp1 tp0"
    assert lab.load(requests=1, room=room, to="decode", abort_after_s=0.5).failed == 1
    document = until("the second stage has it alone", lambda: (d := look(labs, "check")) and causes(d) and d)
    found = document["findings"][0]
    assert (found["code"], found["rooms"], found["ranks"], causes(document)) == ("PD116", [room], [second], ["PD116"])
    assert "decode.transfer of decode dp0 pp1 tp0; decode dp0 pp0 tp0 failed it in round" in found["summary"]
    assert compared(look(labs, "diff-queues", code=1), "stages", "decode")["verdict"] == "KEPT"
    assert lab.load(requests=4).completed == 4


def compared(document: dict[str, Any], kind: str, role: str = "") -> dict[str, Any]:
    """Return what is said of the one group of a kind, on the side of ``role``."""
    [report] = [group for group in document["groups"] if group["kind"] == kind and group["role"].startswith(role)]
    return report


def test_a_dp_rank_that_does_not_come_to_where_the_others_meet_it(labs: Labs) -> None:
    lab = labs.up("--prefill", "tp=1", "--decode", "dp=2,tp=1", "--dp-attention")
    assert lab.load(requests=4).completed == 4
    until("every loop turns", lambda: compared(look(labs, "diff-queues", code=0), "lockstep")["verdict"] == "AGREE")
    labs.cli("lab", "kill", "decode:dp1", "--signal", "STOP", "--name", lab.name)
    document = until("the loop stands", lambda: (d := look(labs, "diff-queues")) and "PD110" in codes(d) and d)
    report = compared(document, "lockstep")
    assert (report["verdict"], report["leaders"], report["stragglers"]) == (
        "WAITING", ["dp0 tp0"], ["dp1 tp0 (DP1 TP1)"],
    )  # fmt: skip
    assert {one["code"]: one["follows"] for one in document["findings"]}["PD110"] == "PD114"
    labs.cli("lab", "kill", "decode:dp1", "--signal", "CONT", "--name", lab.name)
    until("it turns again", lambda: labs.cli("check", code=None).returncode == 0)
    assert lab.load(requests=4).completed == 4


def codes(document: dict[str, Any]) -> list[str]:
    return [one["code"] for one in document["findings"]]


@pytest.mark.long
def test_a_forward_that_takes_long_is_no_loop_that_stands(labs: Labs) -> None:
    labs.up("--prefill", "pp=2", "--decode", "tp=2", "--step", "prefill=14s")
    load = labs.start("lab", "load", "-n", "0", "-c", "2", "--seconds", "3600")  # one forward comes after another
    try:

        def old() -> bool:
            document = look(labs, "ranks", code=0)
            assert document["findings"] == []
            assert not any(row["stands"] for row in document["ranks"])
            return any((row["tick_age_s"] or 0) > 11 for row in document["ranks"] if row["role"] == "prefill")

        until("a turn that began long ago", old, limit_s=90)
    finally:
        load.kill()
        load.communicate()
