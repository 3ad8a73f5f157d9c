"""``pdctl record --for`` and ``--trigger`` on labs: more than the ring holds, ended by time, size, signal or divergence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import pdctl
from tests.support.following import followed
from tests.support.labs import Lab, Labs
from tests.support.patience import patience, until

pytestmark = pytest.mark.system

PREFILL, TP0, TP1 = "prefill dp0 pp0 tp0", "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"


@pytest.fixture
def labs(labs: Labs) -> Labs:
    labs.env["PDCTL_RECORD_SIZE"] = str(256 * 1024)
    return labs


def recording(labs: Labs, file: Path, *options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pdctl.cli", "record", str(file), "-o", "json", *map(str, options)]
    return subprocess.Popen(command, env=labs.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str], code: int) -> dict[str, Any]:
    out, err = process.communicate(timeout=patience(200))
    assert process.returncode == code, f"{process.returncode}\n{out}{err}"
    trace: dict[str, Any] = json.loads(out)["trace"]
    return trace


def ordinals(file: Path, rank: str, queue: str) -> list[int]:
    rounds = pdctl.load_trace(file).rounds
    mine = rounds[(rounds["rank"] == rank) & (rounds["queue"] == queue)]
    return sorted(n for a, b in zip(mine["ordinal"], mine["last"], strict=True) for n in range(a, b + 1))


def test_for_a_while_keeps_what_the_ring_loses(labs: Labs) -> None:
    lab = labs.up()
    file = labs.folder / "x.pdtrace"
    process = recording(labs, file, "--for", "10m", "--keep-names")
    followed(process)
    while not _lapped(lab):
        assert lab.load(requests=100, concurrency=8).completed
    process.send_signal(signal.SIGINT)
    result(process, 0)
    loaded = pdctl.load_trace(file)
    assert loaded.rounds["items_known"].all()
    for rank, queue in ((TP0, "decode.transfer"), (TP1, "decode.transfer"), (PREFILL, "prefill.inflight")):
        rounds = ordinals(file, rank, queue)
        assert rounds == list(range(len(rounds)))  # from the first one on, none lost
    # Every request of the load is in it, from the first: the rank's own file has lost the oldest.
    enqueued = loaded.events[(loaded.events["kind"] == "ENQUEUE") & (loaded.events["queue"] == "decode.transfer")]
    in_trace = set(enqueued.loc[enqueued["rank"] == TP0, "text"])
    now = {e.text for e in lab.events(TP0, 1) if e.queue == "decode.transfer"}
    assert in_trace - now
    assert labs.cli("diff-queues", "--from", file).stdout.count("AGREE") == 1


def _lapped(lab: Lab) -> bool:
    events = lab.recording(TP0).events()
    return bool(events) and events[0].seq > 1


def test_a_signal_ends_it_and_keeps_what_there_is(labs: Labs) -> None:
    lab = labs.up()
    for number, ending in enumerate((signal.SIGINT, signal.SIGTERM)):
        file = labs.folder / f"{number}.pdtrace"
        process = recording(labs, file, "--for", "10m")
        followed(process)
        assert lab.load(requests=3).good
        if ending == signal.SIGTERM:
            os.kill(lab.process(TP1).pid, signal.SIGKILL)  # it is followed to its death, and is whole
            until("the death of decode tp1", lambda: not lab.process(TP1).alive)
        process.send_signal(ending)
        trace = result(process, 0)
        assert trace["stopped"] == "interrupted"
        assert ordinals(file, TP0, "decode.transfer") == ordinals(file, TP1, "decode.transfer") != []
        states = {rank["rank"]: rank["state"] for rank in trace["ranks"]}
        if ending == signal.SIGINT:
            assert (states[TP0], states[TP1]) == ("live", "live")
        else:  # Gloo may have ended tp0 too by now, its peer's connection being gone
            assert states[TP1] == "dead"


def test_a_size_ends_it(labs: Labs) -> None:
    lab = labs.up()
    file = labs.folder / "x.pdtrace"
    process = recording(labs, file, "--for", "10m", "--max-size", "256KiB", "--through", "sockets")
    followed(process)
    while process.poll() is None:
        assert lab.load(requests=50, concurrency=8).good
    trace = result(process, 0)
    assert trace["stopped"].endswith("reached --max-size")
    assert {rank["through"] for rank in trace["ranks"]} == {"socket"}
    assert max(rank["size"] for rank in trace["ranks"]) > 256 * 1024
    assert ordinals(file, TP0, "decode.transfer") == list(range(len(ordinals(file, TP0, "decode.transfer"))))


def test_trigger_stops_at_the_divergence(labs: Labs) -> None:
    lab = labs.up("--without", "gate")
    file = labs.folder / "x.pdtrace"
    process = recording(labs, file, "--trigger", "diverged", "--for", "3m")
    followed(process)
    assert lab.load(requests=4).good
    assert process.poll() is None
    lab.inject_late_metadata(delay="1s")
    threading.Thread(target=lambda: lab.load(requests=1, seconds=3), daemon=True).start()
    trace = result(process, 0)
    assert trace["stopped"] == "the ranks diverged"
    seen = trace["divergence"]
    assert (seen["queue"], seen["ranks"], seen["findings"]) == ("decode.transfer", ["tp0", "tp1"], ["PD101"])
    document = json.loads(labs.cli("diff-queues", "-o", "json", "--from", file, code=1).stdout)
    [group] = [g for g in document["groups"] if g["verdict"] == "DIVERGED"]
    assert group["round"] == seen["round"]
    assert [split["room"] for split in group["splits"]] == seen["rooms"]
    # A second one sees it at once, and says so for people, too.
    done = labs.cli("record", file, "--force", "--trigger", "diverged", "--for", "1m")
    assert f"round {seen['round']} of decode.transfer" in done.stdout
    assert str(seen["rooms"][0]) in done.stdout


def test_trigger_that_saw_nothing_is_code_3_and_keeps_the_trace(labs: Labs) -> None:
    lab = labs.up()
    assert lab.load(requests=2).good
    file = labs.folder / "x.pdtrace"
    done = labs.cli("record", file, "--trigger", "diverged", "--for", "1s", code=3)
    assert "the ranks did not diverge" in done.stderr
    assert "--for was over" in done.stdout
    assert labs.cli("diff-queues", "--from", file).stdout


def test_a_rank_that_stops_answering_is_partial(labs: Labs) -> None:
    lab = labs.up()
    assert lab.load(requests=2).good
    file = labs.folder / "x.pdtrace"
    process = recording(labs, file, "--for", "10m", "--through", "sockets")
    followed(process)
    time.sleep(1)  # the first look is over, most likely; if not, the rank is missing instead
    os.kill(lab.process(TP1).pid, signal.SIGSTOP)
    try:
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        trace = result(process, 3)
    finally:
        os.kill(lab.process(TP1).pid, signal.SIGCONT)
    rank = {r["rank"]: r for r in trace["ranks"]}[TP1]
    assert rank["kept"] in ("partial", "missing")
    assert "no answer" in rank["reason"]


def test_wrong_options_are_named(labs: Labs) -> None:
    file = labs.folder / "x.pdtrace"
    for options, words in (
        (["--trigger", "later"], "diverged"),
        (["--for", "soon"], "--for"),
        (["--max-size", "lots"], "a size like 64MiB"),
        (["--max-size", "1K"], "from 256KiB to 1GiB"),
        (["--from", labs.folder, "--for", "1s"], "do not grow"),
        (["--through", "wires"], "sockets or recordings"),
    ):
        done = labs.cli("record", file, *options, code=2)
        assert words in done.stderr, options
    assert not file.exists()
