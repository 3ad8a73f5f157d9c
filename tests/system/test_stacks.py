"""stacks on labs: the rank that stands elsewhere is named, and a busy lab has no finding."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pdctl.probes.stacks.collect import collect
from pdctl.probes.stacks.judge import judge
from pdctl.probes.view import View
from pdctl.targets.client import Client
from pdctl.targets.find import discover
from pdctl.targets.places import parse_places
from tests.support.labs import Labs
from tests.support.patience import until
from tests.support.tiny_ranks import TinyRanks, patient

pytestmark = pytest.mark.system

TP0, TP1 = "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"
RUNS = 20


def look(labs: Labs, *options: object, code: int | None) -> dict[str, Any]:
    """Return what ``stacks -o json`` says; ranks are given the time that a busy machine takes."""
    return json.loads(labs.cli("stacks", "-o", "json", *patient(), *options, code=code).stdout)


def rows(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["rank"]: row for row in document["ranks"]}


def test_a_hung_group(labs: Labs) -> None:
    lab = labs.up("--without", "gate")
    lab.inject_late_metadata(delay="2s")
    # One: with more in flight, Gloo may kill the ranks instead.
    threading.Thread(target=lambda: lab.load(requests=1, seconds=4), daemon=True).start()

    def is_hung() -> dict[str, Any] | None:
        document = look(labs, code=None)
        return document if document["findings"] else None

    document = until("the hang", is_hung)
    [finding] = document["findings"]
    assert finding["code"] == "PD161"
    assert finding["ranks"] == [TP0, TP1]
    assert "tp0 waits in all_reduce #" in finding["summary"]
    assert "tp1 waits in broadcast #" in finding["summary"]
    [group] = [g for g in document["groups"] if g["size"] == 2]
    assert group["reason"] == "tp0 waits in all_reduce of the model, tp1 waits in broadcast of new requests"
    assert (rows(document)[TP0]["moves"], rows(document)[TP1]["moves"]) == ("stuck", "stuck")
    assert rows(document)["prefill dp0 pp0 tp0"]["moves"] == "moving"
    assert document["span_s"] >= 2.0
    of_kind = {group["kind"]: group for group in document["collectives"]}
    [attn] = [row for row in of_kind["attn-tp"]["rows"] if row["ranks"] == "tp1"]
    assert (attn["current"]["op"], attn["current"]["inside"]) == ("broadcast", "recv_requests")
    assert attn["last"]["source"] == "flight recorder"
    assert attn["last"]["seq"] == attn["current"]["seq"] - 1
    [model] = [row for row in of_kind["tp"]["rows"] if row["ranks"] == "tp0"]
    assert (model["current"]["op"], of_kind["tp"]["in_step"]) == ("all_reduce", False)

    text = labs.cli("stacks", *patient(), code=1).stdout
    assert "tp1  stuck  waits in broadcast of new requests" in text
    assert "recv_requests (" in text
    # Without the group there is nothing to compare with, and nothing is made up.
    assert look(labs, "--rank", "decode:tp1", code=0)["findings"] == []

    os.kill(lab.process(TP1).pid, signal.SIGKILL)
    until("the death of decode tp1", lambda: not lab.process(TP1).alive)
    document = look(labs, "--no-collectives", code=1)
    row = rows(document)[TP1]
    assert (row["state"], row["source"]) == ("dead", "")
    assert "decode.transfer" in row["last_round"]
    assert document["collectives"] == []
    assert document["findings"][0]["code"] == "PD113"


@pytest.mark.timeout(900)
def test_a_busy_lab_has_no_finding_and_a_stopped_rank_has_a_row(labs: Labs) -> None:
    lab = labs.up("--prefill", "pp=2", "--decode", "tp=2")
    command = ("lab", "load", "-n", "0", "--seconds", "800", "-c", "6", "--abort-after", "2")
    load = subprocess.Popen([sys.executable, "-m", "pdctl.cli", *command], env=labs.env, stdout=subprocess.DEVNULL)
    try:
        until("requests on decode tp0", lambda: any(lab.queues()[TP0].values()))
        inside = 0
        for number in range(RUNS):
            if number % 10 == 0:
                document = look(labs, "--collectives", code=0)
                assert document["findings"] == []
                assert {group["kind"] for group in document["collectives"]} == {"attn-tp", "tp", "pp", "world"}
                continue
            found = discover(parse_places(labs.env)).require()
            with Client(timeout_s=60, rank_timeout_s=30) as client:
                judged = judge(collect(View(found, client)))
            assert judged.findings == ()
            assert not judged.partial
            inside += sum(rank.call is not None and bool(rank.call.op) for rank in judged.ranks)
        assert inside, "no rank was ever seen in a collective"
        assert load.poll() is None, "the load ended before the looks did"
        os.kill(lab.process(TP1).pid, signal.SIGSTOP)
        until(
            "decode tp0 to be stuck", lambda: look(labs, "--rank", "decode:tp0", code=0)["ranks"][0]["moves"] == "stuck"
        )
        document = json.loads(labs.cli("stacks", "-o", "json", "--timeout", "60s", code=1).stdout)
        assert [one["code"] for one in document["findings"]] == ["PD114"]
        row = rows(document)[TP1]
        assert row["state"] == "silent"
        assert "stopped" in row["reason"]
        assert row["last_round"]
        [reason] = [g["reason"] for g in document["groups"] if g["title"].startswith("decode")]
        assert "tp1 does not answer" in reason
        assert "tp0 waits in" in reason
    finally:
        load.kill()
        load.wait()


def test_without_the_flight_recorder_the_stack_tells(tmp_path: Path) -> None:
    with TinyRanks(tmp_path) as ranks:
        ranks.group(2, "collective")

        def stuck() -> dict[str, Any] | None:
            document = json.loads(ranks.pdctl("stacks", "-o", "json", "--timeout", "60", "--rank-timeout", "3").stdout)
            return document if rows(document)[TP0]["moves"] == "stuck" and rows(document)[TP0]["call"]["op"] else None

        document = until("the hang", stuck)
        [attn] = [group for group in document["collectives"] if group["kind"] == "attn-tp"]
        tp0, tp1 = attn["rows"]
        assert (tp0["ranks"], tp0["current"]["op"], tp0["current"]["size"]) == ("tp0", "all_reduce", "7")
        assert (tp0["current"]["source"], tp1["current"], attn["in_step"]) == ("stack", None, False)
        [note] = document["notes"]
        assert note.startswith("decode dp0 tp0,1: the flight recorder's buffer is off")
        assert document["findings"] == []  # tp1 is in no collective: it is late
        assert "tp0 waits in all_reduce of the polls of decode.transfer" in document["groups"][0]["reason"]
        assert "less: decode dp0 tp0,1: the flight recorder" in ranks.pdctl("stacks", *patient()).stderr


def test_a_rank_that_holds_the_gil(tmp_path: Path) -> None:
    with TinyRanks(tmp_path) as ranks:
        ranks.start("--then", "gil")
        done = ranks.pdctl("stacks", "-o", "json", "--no-outside")
        [row] = json.loads(done.stdout)["ranks"]
        assert row["state"] == "silent"
        assert "GIL" in row["reason"]
        assert row["stack"] == []
        [row] = json.loads(ranks.pdctl("stacks", "-o", "json", "--timeout", "60", "--rank-timeout", "3").stdout)[
            "ranks"
        ]
        assert row["source"] == "outside"
        assert ["main", "targets/tiny.py"] in [frame[:2] for frame in row["stack"]]


def test_bad_input(tmp_path: Path) -> None:
    with TinyRanks(tmp_path) as ranks:
        done = ranks.pdctl("stacks")
        assert (done.returncode, "no ranks found" in done.stderr) == (4, True)
        ranks.start("--then", "sleep")
        for options, said in (
            (("--rank", "decode:tp9"), "no rank matches 'decode:tp9'"),
            (("--rank", "decode::"), "a part is empty"),
            (("--samples", "40", "--every", "1s"), "longer than --timeout"),
            (("--samples", "0"), "--samples"),
            (("--every", "-1s"), "--every"),
        ):
            done = ranks.pdctl("stacks", *options)
            assert done.returncode == 2, done.stderr
            assert said in done.stderr
            assert "Traceback" not in done.stderr
