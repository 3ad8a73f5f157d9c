"""A lab of several servers: some share a bootstrap server, are slow, are restarted, killed or fail."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import zmq

from pdctl.lab import messages, rank, state
from tests.support.labs import Lab, Labs
from tests.support.patience import patience, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900, method="signal")]


def load(labs: Labs, *options: object, code: int | None = 0) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads(labs.cli("lab", "load", *options, "-o", "json", code=code).stdout)
    return outcome


def servers(labs: Labs) -> dict[str, set[str]]:
    """Return the instances of each service, as live ranks say."""
    found: dict[str, set[str]] = {}
    for row in json.loads(labs.cli("ranks", "-o", "json", code=None).stdout)["ranks"]:
        found.setdefault(row["service"], set()).add(row["instance"])
    return found


def test_servers_are_apart_and_can_be_restarted_killed_and_made_to_fail(labs: Labs) -> None:
    lab = labs.up("--prefills", 2, "--slow-bootstrap", "100ms", "--heartbeat", "10m", "--decode-set", "dtype=float16")
    settings = json.loads(labs.cli("dump", "config", "-o", "json").stdout)["settings"]
    assert [set(row["servers"].values()) for row in settings if row["name"] == "dtype"] == [{"not set", "float16"}]
    assert load(labs, "-n", 4)["completed"] == 4
    before = servers(labs)
    assert set(before) == {"prefill@lab:lab", "prefill1@lab:lab", "decode@lab:lab"}
    address = lab.process("bootstrap1").endpoint

    labs.cli("lab", "restart", "prefill1")
    after = servers(labs)
    assert {name for name in after if after[name] != before[name]} == {"prefill1@lab:lab"}
    assert Lab(labs, "lab").process("bootstrap1").endpoint == address
    with lab.waiting(41, "decode", rids=("held",)):
        until("the request", lambda: 41 in lab.queues()["decode dp0 pp0 tp0"]["decode.transfer"])
        assert (
            labs.cli("lab", "abort", "held", "unknown", "--to", "decode").stdout
            == "decode told to abort held, unknown\n"
        )
        until("its end", lambda: not any(lab.queues()["decode dp0 pp0 tp0"].values()))
    assert "no request id" in labs.cli("lab", "abort", "", code=2).stderr
    # Decode keeps the ranks it knows of that address. Nobody is there any more.
    assert load(labs, "-n", 1, "--prefill-server", 1, "--seconds", 1, code=1)["unfinished"] == 1

    crashed = labs.cli("lab", "crash", "decode:tp0").stdout
    assert "RuntimeError: this scheduler was told to fail" in " ".join(crashed.split())
    log = (lab.folder / "decode-dp0-pp0-tp0.log").read_text()
    assert "Scheduler hit an exception: Traceback" in log
    until("the end of decode tp1, too", lambda: not lab.process("decode dp0 pp0 tp1").alive)
    assert "has ended" in labs.cli("lab", "crash", "decode:tp0", code=4).stderr
    labs.cli("lab", "restart", "decode")
    assert load(labs, "-n", 1, "--prefill-server", 1)["completed"] == 1

    killed = json.loads(labs.cli("lab", "kill", "prefill", "-o", "json").stdout)
    assert [(row["process"], row["state"]) for row in killed["processes"]] == [
        ("bootstrap", "ended"),
        ("prefill dp0 pp0 tp0", "ended"),
    ]
    assert "ended before" in labs.cli("lab", "kill", "prefill", code=4).stderr
    assert "decode" in labs.cli("lab", "restart", "decode:tp0", code=2).stderr
    assert load(labs, "-n", 1, "--prefill-server", 1)["completed"] == 1
    assert len(state.past(lab.folder)) == 4
    labs.cli("lab", "down")
    assert labs.files() == []


def test_servers_share_a_bootstrap_server_and_clients_do_what_they_like(labs: Labs) -> None:
    lab = labs.up("--prefills", 2, "--shared-bootstrap", "--step", "prefill=50ms,decode=20ms", "--max-running", 1)
    assert load(labs, "-n", 2, "--prefill-server", 1)["completed"] == 2, "the last one to register is known"
    assert load(labs, "-n", 1, "--prefill-server", 0, "--seconds", 1, code=1)["unfinished"] == 1

    ask: tuple[object, ...] = ("--prefill-server", 1, "--rid", "same", "--rid", "same", "--room", 11, "--room", 12)
    assert load(labs, *ask)["completed"] == 2
    long = ("-n", 2, "--prefill-server", 1, "--room", 21, "--new-tokens", 2000, "--give-up", "1s")
    gone = load(labs, *long, code=1)
    assert (gone["given_up"], gone["unfinished"]) == (2, 0)

    def places() -> list[list[int]]:
        queues = lab.queues()["decode dp0 pp0 tp0"]
        return [queues["running"], queues["waiting"]]

    until("one that runs and one that waits for its place", lambda: sorted(places()) == [[21], [22]])

    no_such = load(labs, "-n", 1, "--to", "decode", "--bootstrap", "127.0.0.1:1", "--seconds", 1, code=1)
    assert no_such["unfinished"] == 1
    log = lab.folder / "decode-dp0-pp0-tp0.log"
    until("a refused connection", lambda: "127.0.0.1:1: [Errno 111]" in log.read_text())

    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = int(1000 * patience(5))
        socket.connect(rank.request_endpoint(lab.config, "prefill1", 0))
        for bad in (b"", b"\xc1", msgspec.msgpack.encode({"op": "generate", "rid": "x", "room": (1 << 64) - 1})):
            socket.send(bad)
        socket.send(messages.encode(messages.Abort("nobody")))
    prefill = lab.folder / "prefill1-dp0-pp0-tp0.log"
    until("dropped messages", lambda: prefill.read_text().count("a message that is no request was dropped") == 3)
    assert lab.process("prefill1 dp0 pp0 tp0").alive

    labs.cli("lab", "kill", "supervisor")
    until("the end of all ranks", lambda: not lab.left())
    again = labs.cli("lab", "up")
    assert "lab 'lab' had died. Its recordings stay" in again.stderr
    dead = [
        row
        for row in json.loads(labs.cli("ranks", "--all", "-o", "json", code=None).stdout)["ranks"]
        if row["state"] == "dead"
    ]
    assert len(dead) == 4
    labs.cli("lab", "down")
    assert [file for file in labs.files() if not file.startswith("rec/")] == []
    assert len(labs.files()) == 4, "recordings of the lab that had died"
