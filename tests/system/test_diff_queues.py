"""diff-queues on labs: what each case is called, that its twin is clean, and that it works when hardly anything does."""

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
from pdctl.probes.queues.collect import collect
from pdctl.probes.queues.judge import judge
from pdctl.probes.view import View
from pdctl.report.findings import Level
from pdctl.targets.client import Client
from pdctl.targets.find import discover
from pdctl.targets.places import parse_places
from tests.support.labs import Lab, Labs, end_process
from tests.support.patience import until

pytestmark = pytest.mark.system

PATIENT = ("--rank-timeout", "60s", "--timeout", "60s")
TP0, TP1 = "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"
LOOKS = int(os.environ.get("PDCTL_TEST_LOOKS", "60"))
"""At one healthy lab; 1,000 for the record (docs/track-record.md)."""


def look(labs: Labs, *options: object, code: int | None) -> dict[str, Any]:
    """Return what ``diff-queues -o json`` says."""
    return json.loads(labs.cli("diff-queues", "-o", "json", *PATIENT, *options, code=code).stdout)


def group(document: dict[str, Any], role: str = "decode") -> dict[str, Any]:
    [found] = [g for g in document["groups"] if g["role"] == role and len(g["ranks"]) > 1]
    return found


def serious(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return causes. That ranks are stopped or killed, which a test does besides, are causes of their own."""
    return [
        finding
        for finding in document["findings"]
        if finding["level"] != "info"
        and not finding["follows"]
        and finding["code"] != "PD113"
        and "SIGSTOP" not in finding["summary"]
    ]


def in_background(lab: Lab, **how: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: lab.load(**how), daemon=True)
    thread.start()
    return thread


@pytest.fixture
def hung(labs: Labs) -> tuple[Labs, Lab]:
    """A lab without the gate, hung by metadata that came late on decode tp1."""
    lab = labs.up("--without", "gate")
    lab.inject_late_metadata(delay="10m")
    in_background(lab, requests=1, seconds=4)  # one: with more in flight, Gloo may kill the ranks instead
    until("what only one rank has acted on", lambda: len(set(map(len, transfers(lab)))) > 1)
    labs.cli("heal", "--all")
    # Both have left the polls for another collective, and the row has landed: nothing live shows the cause any more.
    until("a landing", lambda: lab.events(TP1, 13))
    return labs, lab


def transfers(lab: Lab) -> list[list[int]]:
    return [rooms["decode.transfer"] for rank, rooms in lab.queues().items() if rank.startswith("decode")]


def check_late_metadata(document: dict[str, Any]) -> None:
    report = group(document)
    assert (report["verdict"], report["queue"]) == ("DIVERGED", "decode.transfer")
    assert report["round"] >= 0
    [finding] = serious(document)
    assert finding["code"] == "PD101"
    assert "PR 26394" in finding["versions"]
    [split] = report["splits"]
    tp0, tp1 = split["sides"]
    assert (tp0["rank"], tp0["action"], tp0["found"]) == ("tp0", "committed", split["room"])
    assert (tp1["rank"], tp1["action"], tp1["found"]) == ("tp1", "kept", 0)
    assert tp0["slot"] == tp1["slot"] >= 0
    assert tp1["landed_s"] > 0
    [row] = [row for row in report["queues"] if row["queue"] == "decode.transfer"]
    assert row["lengths"][1] == row["lengths"][0] + 1
    assert row["text"] == f"room {split['room']} is on tp1 only"


def test_late_metadata_without_the_gate(hung: tuple[Labs, Lab]) -> None:
    labs, lab = hung
    document = look(labs, code=1)
    check_late_metadata(document)
    now = {rank["rank"]: rank["doing"] for rank in group(document)["now"]}
    room = group(document)["splits"][0]["room"]
    assert now["tp0"].startswith("model forward: all_reduce of ")
    assert f"with room {room} in its batch" in now["tp0"]
    assert now["tp1"].startswith("recv_requests: broadcast")
    # By sockets alone, by recordings alone, and in the look for people.
    check_late_metadata(look(labs, "--through", "sockets", code=1))
    check_late_metadata(look(labs, "--through", "recordings", code=1))
    text = labs.cli("diff-queues", *PATIENT, code=1).stdout
    assert f"room {room} is on tp1 only" in text
    assert "tp1 kept it" in text
    assert "metadata not written (it landed" in text
    # A stopped rank is not waited for; the others and its recording still tell.
    os.kill(lab.process(TP1).pid, signal.SIGSTOP)
    document = look(labs, code=1)
    check_late_metadata(document)
    assert [rank["state"] for rank in group(document)["now"]] == ["live", "silent"]
    assert any("stopped" in problem for problem in document["problems"])
    # After kill -9 of everything.
    for process in lab.processes:
        if process.alive:
            end_process(process)
    until("the end of all processes of the lab", lambda: not lab.left())
    document = look(labs, code=1)
    check_late_metadata(document)
    assert {rank["state"] for rank in group(document)["now"]} == {"dead"}
    check_late_metadata(look(labs, "--from", labs.folder / "rec", code=1))


def test_with_the_gate_it_is_held_and_in_step(labs: Labs) -> None:
    """The same hold is PD102, and PD148 once it has lasted: how old it is when it is looked at is the machine's matter."""
    lab = labs.up()
    lab.inject_late_metadata(delay="10m")
    load = in_background(lab, requests=4, concurrency=4)
    document = until(
        "a difference that is held", lambda: (d := look(labs, code=None)) and group(d)["verdict"] == "HELD" and d
    )
    held = {finding["code"]: finding for finding in document["findings"]}
    assert held.keys() <= {"PD102", "PD148"}
    assert "held by the gate on tp1 " in " ".join(finding["summary"] for finding in held.values())
    assert serious(document) == [finding for code, finding in held.items() if code == "PD148"]
    labs.cli("heal", "--all")
    load.join()
    document = until("agreement", lambda: (d := look(labs, code=None)) and group(d)["verdict"] == "AGREE" and d)
    assert document["findings"] == []
    assert look(labs, code=0)["findings"] == []


def test_one_rank_lost_its_only_request(labs: Labs) -> None:
    lab = labs.up()
    assert lab.load(requests=4).good
    lab.load(requests=1, to="decode", room=91, lost_on=0, seconds=1)
    document = until("a finding", lambda: (d := look(labs, code=None)) and serious(d) and d)
    report = group(document)
    [finding] = serious(document)
    assert (finding["code"], finding["ranks"], finding["rooms"]) == ("PD103", ["tp0"], [91])
    assert report["verdict"] == "DIVERGED"
    assert report["queue"] in ("decode.prealloc", "decode.transfer"), "how far it had come when it was lost"
    [row] = [row for row in report["queues"] if row["queue"] == report["queue"]]
    assert row["lengths"] == [0, 1]
    now = {rank["rank"]: rank["doing"] for rank in report["now"]}
    assert "broadcast" in now["tp0"]
    assert "all_reduce of 1, group attn-tp" in now["tp1"]
    mispaired, *flights = report["pairing"]
    assert mispaired.startswith("mispaired: ")
    assert "tp0 in broadcast" in mispaired
    assert "tp1 in all_reduce of 1" in mispaired
    # PyTorch's own record of the same: one number, two operations.
    assert [line.partition(": #")[0] for line in flights] == ["flight recorder of tp0", "flight recorder of tp1"]
    assert "broadcast" in flights[0]
    assert "all_reduce" in flights[1]


def test_n_against_m_names_the_request(labs: Labs) -> None:
    lab = labs.up()
    client = LabClient(lab.config, Load(to="decode", room=91))
    try:
        requests = [client.send() for _ in range(3)]  # nobody sends their KV: they wait on both ranks
        until("three requests in transfer on both ranks", lambda: transfers(lab) == [[91, 92, 93], [91, 92, 93]])
        assert serious(look(labs, code=0)) == []
        client.lose(requests[1], tp=1)
        document = until("a finding", lambda: (d := look(labs, code=None)) and serious(d) and d)
    finally:
        client.close()
    [finding] = serious(document)
    assert (finding["code"], finding["rooms"], finding["ranks"]) == ("PD104", [92], ["tp0", "tp1"])
    assert "tp0 3, tp1 2" in finding["summary"]
    assert "room 92 is on tp0 only" in finding["summary"]


@pytest.mark.timeout(1500)
def test_nothing_is_found_in_a_healthy_lab_under_load(labs: Labs) -> None:
    lab = labs.up("--prefill", "tp=2", "--decode", "tp=2")
    load = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pdctl.cli",
            "lab",
            "load",
            "-n",
            "0",
            "--seconds",
            "1400",
            "-c",
            "6",
            "--abort-after",
            "2",
        ],
        env=labs.env,
        stdout=subprocess.DEVNULL,
    )
    try:
        until("requests in transfer", lambda: any(transfers(lab)))
        compared = 0
        for number in range(LOOKS):
            if number % 50 == 0:
                document = look(labs, code=0)
                assert serious(document) == []
                continue
            found = discover(parse_places(labs.env)).require()
            with Client(timeout_s=60, rank_timeout_s=60) as client:
                judged = judge(collect(View(found, client)))
            assert [f for f in judged.findings if f.level is not Level.INFO] == []
            assert not judged.partial
            compared = max(compared, *(sum(g.compared.values()) for g in judged.groups))
        assert compared > LOOKS // 2
        assert load.poll() is None, "the load ended before the looks did"
    finally:
        load.kill()
        load.wait()


def test_two_labs_side_by_side_do_not_mix(labs: Labs) -> None:
    labs.up("--without", "gate", name="sick")
    well = labs.up(name="well")
    sick = Lab(labs, "sick")
    labs.cli("inject", "--delay-metadata", "2s", "--rank", "decode:tp1:cluster=sick", "--detach")
    in_background(sick, requests=1, seconds=4)  # one, as in ``hung``
    assert well.load(requests=8).good
    until("a landing on decode tp1", lambda: sick.events(TP1, 13))
    document = until("a finding", lambda: (d := look(labs, code=None)) and serious(d) and d)
    verdicts = {g["cluster"]: g["verdict"] for g in document["groups"] if len(g["ranks"]) > 1}
    assert verdicts == {"sick": "DIVERGED", "well": "AGREE"}


def test_no_ranks_and_unreadable_ones(labs: Labs) -> None:
    done = labs.cli("diff-queues", code=4)
    assert "no ranks found" in done.stderr
    assert "Next:" in done.stderr
    lab = labs.up()
    (labs.folder / "rec" / "1-1.pdrec").write_bytes(b"GIF89a" * 100)
    file = lab.recording(TP0).path
    os.truncate(file, 100)
    done = labs.cli("diff-queues", code=3)
    assert "not a pdctl recording" in done.stderr
    assert "Traceback" not in done.stderr
    assert "tp1" in done.stdout
