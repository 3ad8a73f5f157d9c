"""``pdctl dump`` on labs: metadata, queues, groups, config and leaks, each case with its twin."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from pdctl.lab.client import Client as LabClient
from pdctl.lab.client import Load
from pdctl.protocol.model import EventKind
from tests.support.labs import Lab, Labs, end_process
from tests.support.patience import until

pytestmark = pytest.mark.system

PATIENT = ("--rank-timeout", "60s", "--timeout", "60s")
PREFILL, TP0, TP1 = "prefill dp0 pp0 tp0", "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"


def dump(labs: Labs, what: str, *options: object, code: int | None) -> dict[str, Any]:
    return json.loads(labs.cli("dump", what, "-o", "json", *PATIENT, *options, code=code).stdout)


def serious(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [found for found in document["findings"] if found["level"] != "info"]


def verdicts(document: dict[str, Any], room: int) -> dict[str, str]:
    """Return rank → verdict of the slot that a room owns there."""
    return {slot["rank"]: slot["verdict"] for slot in document["slots"] if slot["expected"] == room}


def in_background(lab: Lab, **how: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: lab.load(**how), daemon=True)
    thread.start()
    return thread


def test_a_row_that_is_held_back_on_two_of_four_ranks(labs: Labs) -> None:
    lab = labs.up("--decode", "tp=4")
    labs.cli("inject", "--delay-metadata", "25s", "--rank", "decode:tp[13]", "--allow-ranks", 2, "--detach")
    load = in_background(lab, requests=1, room=77)
    decode = {f"decode dp0 pp0 tp{n}": "landed" if n in (0, 2) else "not written" for n in range(4)}
    document = until(
        "the slots' verdicts on room 77, whose transfer is complete",
        lambda: (
            (d := dump(labs, "metadata", "--rank", "decode", code=0))
            and verdicts(d, 77) == decode
            and {slot["state"] for slot in d["slots"]} == {"Success"}
            and d
        ),
    )
    assert document["findings"] == []
    ranks = {rank["rank"]: rank for rank in document["ranks"]}
    assert set(ranks) == set(decode)
    assert {(rank["device"], rank["gate"], rank["zeroed"], rank["safe"]) for rank in ranks.values()} == {
        ("cpu", True, True, "yes")
    }
    by_rank = {slot["rank"]: slot for slot in document["slots"]}
    assert by_rank[TP1]["found"] == 0
    assert by_rank[TP1]["state"] == "Success"
    assert by_rank[TP1]["sent_s"] is None
    assert by_rank[TP0]["sent_s"] >= 0
    assert set(by_rank[TP0]["sums"]) == set(by_rank[TP1]["sums"])
    assert by_rank[TP0]["sums"] != by_rank[TP1]["sums"], "one row has landed, the other has not"
    assert by_rank[TP0]["sums"] == by_rank["decode dp0 pp0 tp2"]["sums"]
    # One rank stopped: it is not waited for, and the others still tell.
    os.kill(lab.process(TP1).pid, signal.SIGSTOP)
    part = dump(labs, "metadata", "--rank", "decode:tp[01]", code=3)
    assert verdicts(part, 77).get(TP0) in ("landed", None)
    assert "stopped" in " ".join(part["problems"])
    os.kill(lab.process(TP1).pid, signal.SIGCONT)
    load.join()
    landed = lab.events(TP1, EventKind.LANDED)
    assert [event.room for event in landed] == [77]
    assert until("slots that are zeroed", lambda: not dump(labs, "metadata", "--rank", "decode", code=0)["slots"]), (
        "slots are zeroed when freed"
    )


def late_in_a_used_slot(labs: Labs, lab: Lab) -> None:
    """Use the only slot twice, the second time with metadata that comes late on tp1."""
    assert lab.load(requests=1, room=100).good
    lab.inject_late_metadata("--room", 102)
    lab.load(requests=1, room=102, seconds=6)
    until(
        "the end of room 102 on decode tp1",
        lambda: any(item.room == 102 and item.action in (1, 3) for item in lab.items(TP1, "decode.transfer")),
    )


def test_the_room_of_a_finished_request_in_a_slot_is_stale_not_foreign(labs: Labs) -> None:
    sick = labs.up("--without", "zero-on-free", "--slots", 1)
    late_in_a_used_slot(labs, sick)
    document = dump(labs, "metadata", "--rank", "decode", code=1)
    [found] = serious(document)
    assert (found["code"], found["ranks"], sorted(found["rooms"])) == ("PD131", [TP1], [100, 102])
    assert "slot 0 on decode dp0 pp0 tp1 held room 100 when its owner, room 102, was decided on" in found["summary"]
    assert "the rank aborted it" in found["summary"]
    assert "room 100 owned this slot before" in found["summary"]
    assert "0.5.12.post1" in found["versions"]
    text = labs.cli("dump", "metadata", "--rank", "decode:tp1", code=1).stdout
    assert "PD131" in text
    for process in sick.left():
        end_process(process)
    until("the end of all processes of the lab", lambda: not sick.left())
    document = dump(labs, "metadata", "--from", labs.folder / "rec", code=1)
    assert [found["code"] for found in serious(document)] == ["PD131"], "of ranks that are gone, recordings tell it"
    assert not document["partial"]
    # With the slot zeroed nothing is stale: the row is not written, and then it has landed.
    well = labs.up("--slots", 1, name="well")
    assert well.load(requests=1, room=100).good
    labs.cli("inject", "--delay-metadata", "15s", "--rank", "decode:tp1:cluster=well", "--detach")
    load = in_background(well, requests=1, room=102)
    mine = ("--rank", "decode:cluster=well")
    until(
        "room 102 landed on decode tp0 only",
        lambda: verdicts(dump(labs, "metadata", *mine, code=0), 102) == {TP0: "landed", TP1: "not written"},
    )
    load.join()
    assert serious(dump(labs, "metadata", *mine, code=0)) == []


def test_a_foreign_room_is_named_and_so_is_the_fault(labs: Labs) -> None:
    lab = labs.up()
    assert lab.load(requests=2).good
    labs.cli("inject", "--corrupt-room", "--rank", "decode:tp1", "--detach", "--room", 55)
    lab.load(requests=1, room=55, seconds=4)
    document = until("a finding", lambda: (d := dump(labs, "metadata", code=None)) and serious(d) and d)
    [found] = serious(document)
    assert (found["code"], found["ranks"]) == ("PD133", [TP1])
    assert 55 in found["rooms"]


def test_bad_input(labs: Labs) -> None:
    lab = labs.up("--slots", 4)
    assert lab.load(requests=2, room=7001).good
    done = labs.cli("dump", "metadata", "--room", 7009, code=3)
    assert "nearest rooms that are known: 7002" in done.stderr or "7001" in done.stderr
    assert "Traceback" not in done.stderr
    assert "slots 0 to 3" in labs.cli("dump", "metadata", "--slot", 4, code=2).stderr
    assert "rank pattern" in labs.cli("dump", "metadata", "--rank", "nobody", code=2).stderr
    assert (
        "There are: decode dp0 tp0,1; prefill dp0 tp0."
        in labs.cli("dump", "queues", "--rank", "decode:tp7", code=2).stderr
    )
    assert "is in no queue" in labs.cli("dump", "queues", "--room", 7001, code=3).stderr
    [slot] = dump(labs, "metadata", "--slot", 0, "--rank", "decode:tp0", code=0)["slots"]
    assert (slot["slot"], slot["verdict"], slot["found"]) == (0, "free", 0)
    assert len(dump(labs, "metadata", "--all-slots", "--rank", "decode:tp0", code=0)["slots"]) == 4


def test_queues_groups_and_config(labs: Labs) -> None:
    lab = labs.up()
    lab.inject_late_metadata(delay="15s")
    load = in_background(lab, requests=1, room=31)
    document = until(
        "two requests of room 31",
        lambda: (
            (d := dump(labs, "queues", "--room", 31, code=None)) and len(d["requests"]) >= 2 and d
            if any(rooms["decode.transfer"] for rank, rooms in lab.queues().items() if rank == TP0)
            else None
        ),
    )
    [request] = [r for r in document["requests"] if r["rank"] == TP0]
    assert (request["queue"], request["room"], request["slot"]) == ("decode.transfer", 31, 0)
    assert request["age_s"] >= 0
    load.join()
    groups = dump(labs, "groups", code=0)["groups"]
    [tp] = [g for g in groups if (g["rank"], g["kind"]) == (TP0, "attn-tp")]
    assert (tp["size"], tp["members"], tp["labels"]) == (2, [0, 1], [TP0, TP1])
    assert tp["fr_id"] >= 0
    config = dump(labs, "config", code=0)
    assert config["findings"] == []
    assert {server["role"]: server["peers"] for server in config["servers"]} == {
        "prefill": ["decode@lab:lab"],
        "decode": ["prefill@lab:lab"],
    }
    [tp_size] = [s for s in config["settings"] if s["name"] == "tp_size"]
    assert (tp_size["verdict"], set(tp_size["servers"].values())) == ("differs", {"1", "2"})
    assert "tp_size" in labs.cli("dump", "config", code=0).stdout


# ---- leaks -----------------------------------------------------------------------------------------------------------


def test_a_request_that_is_lost_leaks_and_one_that_is_aborted_does_not(labs: Labs) -> None:
    lab = labs.up("--decode", "tp=1")
    client = LabClient(lab.config, Load(to="decode", room=91))
    try:
        aborted, lost = client.send(), client.send()
        until("both rooms in transfer", lambda: lab.queues()[TP0]["decode.transfer"] == [91, 92])
        client.abort(aborted, ("decode",))
        until("the abort of room 91", lambda: lab.queues()[TP0]["decode.transfer"] == [92])
        assert serious(dump(labs, "leaks", "--for", "1s", code=0)) == []
        client.lose(lost, tp=0)
        until("the loss of room 92", lambda: lab.queues()[TP0]["decode.transfer"] == [])
        document = dump(labs, "leaks", "--for", "1s", code=1)
    finally:
        client.close()
    codes = {found["code"]: found for found in document["findings"]}
    assert {"PD150", "PD151"} <= set(codes)
    assert codes["PD150"]["ranks"] == [TP0]
    [slot] = document["slots"]
    assert (slot["rank"], slot["slot"]) == (TP0, 1)
    assert slot["held_s"] > 0
    assert [(leak["rank"], leak["tokens"]) for leak in document["space"]] == [(TP0, 24)]
    assert {left["table"]: left["rooms"] for left in document["leftovers"] if left["rank"] == TP0}[
        "request_status"
    ] == [92]
    assert "has lost slot 1" in labs.cli("dump", "leaks", "--for", "500ms", code=1).stdout


def abort_in_bootstrap(lab: Lab) -> None:
    lab.load(requests=1, seconds=3, to="prefill", room=6, abort_after_s=0.5)
    until("an empty bootstrap queue", lambda: not lab.queues()[PREFILL]["prefill.bootstrap"])
    until("the abort on prefill pp1", lambda: lab.events("prefill dp0 pp1 tp0", EventKind.ABORT))


def test_an_orphan_of_a_later_stage_and_stages_a_round_apart(labs: Labs) -> None:
    sick = labs.up("--prefill", "pp=2", "--decode", "tp=1", "--without", "orphan-drain")
    abort_in_bootstrap(sick)
    document = dump(labs, "leaks", "--for", "1s", code=1)
    [found] = serious(document)
    assert (found["code"], found["ranks"], found["rooms"]) == ("PD152", ["prefill dp0 pp1 tp0"], [6])
    [orphan] = document["orphans"]
    assert orphan["failed_s"] > 0
    assert orphan["age_s"] > orphan["failed_s"] - 0.5
    labs.cli("lab", "down", "--name", "lab")
    well = labs.up("--prefill", "pp=2", "--decode", "tp=1", name="well")
    abort_in_bootstrap(well)
    load = in_background(well, requests=0, seconds=6, concurrency=4)
    for _ in range(3):
        # Under load a look may see a part only.
        assert serious(dump(labs, "leaks", "--for", "500ms", code=None)) == []
    load.join()


@pytest.mark.timeout(900)
def test_nothing_is_found_under_load_with_aborts(labs: Labs) -> None:
    labs.up("--prefill", "tp=2", "--decode", "tp=2", "--slots", 16)
    arguments = ["lab", "load", "-n", "0", "--seconds", "900", "-c", "12", "--rate", "40", "--abort-after", "0.05"]
    load = subprocess.Popen(
        [sys.executable, "-m", "pdctl.cli", *arguments],
        env=labs.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until("a request that waits", lambda: any(dump(labs, "queues", code=None)["requests"]))
        for _ in range(3):
            assert serious(dump(labs, "leaks", "--for", "500ms", code=None)) == []
            assert serious(dump(labs, "metadata", code=None)) == []
            assert serious(dump(labs, "config", code=None)) == []
        assert load.poll() is None, "the load ended before the looks did"
    finally:
        load.kill()
        load.wait()
    document = until(
        "no slot in use",
        lambda: (d := dump(labs, "leaks", "--for", "1s", code=None)) and not d["slots"] and not d["partial"] and d,
    )
    assert serious(document) == []
    assert document["space"] == []
