"""``pdctl replay TRACE``: real workers on a real Gloo group do what was recorded, and part where it parted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import psutil
import pytest

from pdctl.commands.schema import load_schema
from pdctl.lab.client import Client as LabClient
from pdctl.lab.client import Load
from pdctl.recording.reader import read
from pdctl.replay import position
from pdctl.replay.judge import judge
from pdctl.replay.plan import plan
from pdctl.replay.run import Workers
from pdctl.replay.worker_log import Options
from pdctl.trace.reader import open_trace
from tests.support import cli_server
from tests.support.labs import Labs
from tests.support.patience import patience, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]  # the machine may be busy

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "tests" / "data" / "sglang-0.5.12.post1-c1.pdtrace"
ROOM = 16851422098683615
SCHEMA = load_schema("pdctl.replay")


def replay(*arguments: object, code: int | None) -> dict[str, Any]:
    done = pdctl("replay", *arguments, "-o", "json")
    assert code is None or done.returncode == code, f"{done.returncode}\n{done.stdout}{done.stderr}"
    document: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    return document


def pdctl(*arguments: object) -> subprocess.CompletedProcess[str]:
    return cli_server.run([*map(str, arguments)], {**os.environ, "COLUMNS": "100"}, limit_s=500)


def group(document: dict[str, Any], queue: str = "decode.transfer") -> dict[str, Any]:
    [found] = [each for each in document["groups"] if each["queue"] == queue]
    return found  # type: ignore[no-any-return]


def runs(document: dict[str, Any], queue: str = "decode.transfer") -> dict[str, dict[str, Any]]:
    return {one["gate"]: one for one in group(document, queue)["runs"]}


def test_c1_of_real_sglang() -> None:
    """Without the gate the ranks part in the recorded round and their collective fails for real; with it they do not."""
    document = replay(REAL, "--queue", "decode.transfer", code=1)
    found = runs(document)
    assert group(document)["recorded_gate"] is False
    off, on = found["off"], found["on"]
    assert (off["verdict"], off["round"], off["rooms"]) == ("DIVERGES", 247, [ROOM])
    assert [(side["rank"], side["action"]) for side in off["sides"]] == [("tp0", "committed"), ("tp1", "kept")]
    assert any(end["how"] != "done" for end in off["ends"]), "lists of different length in one collective"
    assert (on["verdict"], on["round"], on["held"]) == ("DIFFERS", 247, [ROOM])
    assert {end["how"] for end in on["ends"]} == {"done"}
    # As people see it, with the gate alone: in step.
    done = pdctl("replay", REAL, "--queue", "decode.transfer", "--gate", "on", "--repeats", 3)
    assert done.returncode == 0, done.stderr
    assert "the ranks stay in step" in done.stdout
    assert "that repeat others left out" in done.stdout


def recorded(labs: Labs, name: str) -> Path:
    file = labs.folder / f"{name}.pdtrace"
    labs.cli("record", file, code=None)
    return file


def test_a_healthy_lab_and_a_held_request_come_out_as_recorded(labs: Labs) -> None:
    lab = labs.up()
    lab.inject_late_metadata(delay="2s")
    assert lab.load(requests=8, concurrency=4).good
    document = replay(recorded(labs, "held"), code=1)
    found = runs(document)
    assert (found["on"]["verdict"], len(found["on"]["held"])) == ("AS RECORDED", 1)
    assert found["off"]["verdict"] == "DIVERGES", "the same schedule without the gate"
    assert found["off"]["rooms"] == found["on"]["held"]
    for queue in ("decode.prealloc",):
        assert runs(document, queue)["off"]["verdict"] == "AS RECORDED"


def test_c2_two_of_four_ranks(labs: Labs) -> None:
    lab = labs.up("--decode", "tp=4", "--without", "gate")
    labs.cli("inject", "--delay-metadata", "8s", "--rank", "decode:tp[13]", "--allow-ranks", 2, "--detach")
    threading.Thread(target=lambda: lab.load(requests=3, concurrency=3, seconds=20), daemon=True).start()
    until("PD101", lambda: "PD101" in labs.cli("diff-queues", code=None).stdout)
    document = replay(recorded(labs, "c2"), "--queue", "decode.transfer", "--repeats", 20, code=1)
    off, on = runs(document)["off"], runs(document)["on"]
    [room] = off["rooms"]
    assert off["verdict"] == "DIVERGES"
    assert {side["rank"]: side["action"] for side in off["sides"]} == {
        "tp0": "committed", "tp1": "kept", "tp2": "committed", "tp3": "kept"
    }  # fmt: skip
    assert (on["verdict"], on["held"]) == ("DIFFERS", [room])


def test_pipeline_stages_come_out_as_recorded(labs: Labs) -> None:
    lab = labs.up("--prefill", "tp=2,pp=2")
    assert lab.load(requests=6, concurrency=3).good
    document = replay(recorded(labs, "pp"), "--gate", "on", code=0)
    assert {one["verdict"] for each in document["groups"] for one in each["runs"]} == {"AS RECORDED"}
    assert "prefill.inflight" in {each["queue"] for each in document["groups"]}


@pytest.mark.parametrize("earlier", [0, 4])
def test_c7_a_request_that_one_rank_lost(labs: Labs, earlier: int) -> None:
    """Also where that rank has never had any, so that its recording has no round of the queue."""
    lab = labs.up()
    if earlier:
        assert lab.load(requests=earlier).good
    lab.load(requests=1, to="decode", room=91, lost_on=0, seconds=1)
    until("PD103", lambda: "PD103" in labs.cli("diff-queues", code=None).stdout)
    groups = json.loads(labs.cli("diff-queues", "-o", "json", code=1).stdout)["groups"]
    [queue] = [one["queue"] for one in groups if one["verdict"] == "DIVERGED"]  # how far it had come when it was lost
    document = replay(recorded(labs, "c7"), "--queue", queue, "--round-timeout", "3s", code=1)
    found = group(document, queue)["runs"][-1]
    assert (found["verdict"], found["rooms"]) == ("DIVERGES", [91])
    assert {end["rank"]: end["how"] for end in found["ends"]} == {"tp0": "done", "tp1": "hung"}
    assert "tp1 in round" in found["text"]


def test_c7_a_request_that_one_rank_lost_after_rounds_with_it_on_both(labs: Labs) -> None:
    """That rank has no round without it: its queue is empty, and it goes on."""
    lab = labs.up()
    client = LabClient(lab.config, Load(to="decode", room=91))
    try:
        request = client.send()  # nobody sends its KV: it waits on both ranks
        for label in ("decode dp0 pp0 tp0", "decode dp0 pp0 tp1"):
            until("room 91 in transfer", lambda: any(item.room == 91 for item in lab.items(label, "decode.transfer")))  # noqa: B023
        client.lose(request, tp=0)
        until("PD103", lambda: "PD103" in labs.cli("diff-queues", code=None).stdout)
    finally:
        client.close()
    document = replay(recorded(labs, "c7"), "--queue", "decode.transfer", "--round-timeout", "3s", code=1)
    for one in runs(document).values():
        assert (one["verdict"], one["rooms"]) == ("DIVERGES", [91])
        assert {end["rank"]: end["how"] for end in one["ends"]} == {"tp0": "done", "tp1": "hung"}


def test_c8_a_slot_with_its_former_owners_room(labs: Labs) -> None:
    lab = labs.up("--without", "zero-on-free", "--slots", 1)
    assert lab.load(requests=1, room=100).good
    lab.inject_late_metadata("--room", 102)
    lab.load(requests=1, room=102, seconds=6)
    until(
        "the end of room 102 on decode tp1",
        lambda: any(
            item.room == 102 and item.action in (1, 3) for item in lab.items("decode dp0 pp0 tp1", "decode.transfer")
        ),
    )
    document = replay(recorded(labs, "c8"), "--queue", "decode.transfer", code=1)
    for one in runs(document).values():  # the gate looks for a row that is not there, and here is one
        assert (one["verdict"], one["rooms"]) == ("DIVERGES", [102])
        assert {side["rank"]: side["action"] for side in one["sides"]} == {"tp0": "committed", "tp1": "aborted"}
        assert {end["how"] for end in one["ends"]} == {"done"}, "both have let it go: their lists do not differ"


def planned() -> Any:
    with open_trace(REAL) as there:
        folder = there.folder
        found = sorted((read(path) for path in folder.glob("*.pdrec")), key=lambda r: r.identity.tp)
        return plan([r for r in found if r.identity.role == "decode"], "decode.transfer", "decode", repeats=10**6)


def test_a_worker_killed_in_the_middle() -> None:
    made = msgspec.structs.replace(planned(), tail=10**6)  # long enough to be in the middle of it
    options = Options(gate=True, stall_s=3.0)

    def kill(pids: list[int], folder: Path) -> None:
        def later() -> None:
            until("round 20 of the worker", lambda: position.read(folder / "1.position").round >= 20)
            os.kill(pids[1], signal.SIGKILL)

        threading.Thread(target=later).start()

    with Workers() as workers:
        result = judge(made, options, workers.execute(made, options, started=kill))
    assert result.verdict == "FAILED"
    ends = {end.rank: end for end in result.ends}
    assert (ends["tp1"].how, ends["tp1"].text) == ("died", "by SIGKILL")
    assert ends["tp1"].round >= 20
    assert "tp1 died by SIGKILL" in result.text


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_what_ends_the_command_ends_its_workers(how: signal.Signals, tmp_path: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "pdctl.cli", "replay", str(REAL), "--queue", "decode.transfer", "--gate", "off"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    me = psutil.Process(command.pid)
    workers = until("both workers", lambda: found if len(found := me.children(recursive=True)) == 3 else None)
    command.send_signal(how)
    command.wait(patience(60))
    until(
        "the end of both workers and of what has forked them",
        lambda: not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers),
    )
    if how is not signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []


def test_a_rank_is_missing(tmp_path: Path) -> None:
    with open_trace(REAL) as there:
        folder = there.folder
        for path in folder.glob("*.pdrec"):
            identity = read(path).identity
            if not (identity.role == "decode" and identity.tp == 1):
                shutil.copy(path, tmp_path)
    done = pdctl("replay", tmp_path)
    assert done.returncode == 3
    assert "has no rounds of several ranks to replay" in done.stderr
    assert "no recording of rank 1" in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_input(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pdtrace"
    cut.write_bytes(REAL.read_bytes()[:5000])
    foreign = tmp_path / "foreign.pdtrace"
    foreign.write_text("hello")
    for words, code, said in (
        (("replay", cut), 3, "cut.pdtrace is cut off"),
        (("replay", foreign), 4, "foreign.pdtrace"),
        (("replay", tmp_path / "nowhere.pdtrace"), 4, "nowhere.pdtrace"),
        (("replay", REAL, "--gate", "maybe"), 2, "on, off, both"),
        (("replay", REAL, "--queue", "waiting"), 2, "has no rounds"),
        (("replay", REAL, "--device", "tpu"), 2, "cpu, cuda or cuda:N"),
        (("replay", REAL, "--engine", "vllm"), 2, "sglang"),
        (("replay", REAL, "--engine", "sglang"), 2, "SGLang can't be imported here"),
        (("replay",), 2, "Missing argument 'TRACE'"),
    ):
        done = pdctl(*words)
        assert done.returncode == code, (words, done.returncode, done.stderr)
        assert said in " ".join(done.stderr.split()), words
        assert "Traceback" not in done.stderr


def test_without_cuda_it_says_so() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    for words in (("--device", "cuda"), ("--backend", "nccl")):
        done = pdctl("replay", REAL, *words)
        assert done.returncode == 2
        assert "CUDA devices here" in done.stderr or "sees none here" in done.stderr
        assert "Next: " in done.stderr


@pytest.mark.long
def test_torchrun_starts_the_ranks() -> None:
    for gate, code, said in (("off", 1, "DIVERGES at round 247"), ("on", 0, "the ranks stay in step")):
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
             "--master-port", "29517", "-m", "pdctl.commands.replay_torchrun", str(REAL), "--gate", gate],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=patience(300),
            check=False,
        )  # fmt: skip
        assert said in done.stdout, done.stdout + done.stderr
        assert (done.returncode == 0) == (code == 0)
    alone = subprocess.run(
        [sys.executable, "-m", "pdctl.commands.replay_torchrun", str(REAL)],
        capture_output=True,
        text=True,
        timeout=patience(300),
        check=False,
    )
    assert alone.returncode == 2
    assert "torchrun sets them" in alone.stderr
