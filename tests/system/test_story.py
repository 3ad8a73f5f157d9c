"""``pdctl story`` on labs: a room followed through prefill and decode, after a kill, and from what is left of files."""

from __future__ import annotations

import json
import os
import signal
import threading
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pdctl.protocol.model import EventKind
from tests.support import cli_server
from tests.support.curve import Keyring
from tests.support.labs import Lab, Labs
from tests.support.patience import patience, until

pytestmark = pytest.mark.system

PREFILL = "prefill dp0 pp0 tp0"
TP0, TP1 = "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"


def story(labs: Labs, asked: object, *options: object, code: int = 0) -> dict[str, Any]:
    """Return the one story that ``story -o json`` tells of ``asked``."""
    [told] = json.loads(labs.cli("story", asked, "-o", "json", *options, code=code).stdout)["stories"]
    return told


def first(told: dict[str, Any], rank: str, *kinds: str, value: str = "", queue: str = "") -> float:
    """Return when the first entry of these kinds (and this value, in this queue) was on a rank."""
    found = [
        e["t_s"]
        for e in told["entries"]
        if e["rank"] == rank and e["kind"] in kinds and value in ("", e["value"]) and queue in ("", e["queue"])
    ]
    assert found, f"no {kinds} on {rank}: {[(e['rank'], e['kind'], e['text']) for e in told['entries']]}"
    return float(found[0])


def served(lab: Lab, label: str = TP0) -> list[int]:
    """Return the rooms that were committed on a decode rank, in order."""
    items = [e.room for e in lab.events(label, EventKind.SLOT_FREE) if e.room]
    return list(dict.fromkeys(items))


def test_a_room_from_arrival_to_commit(labs: Labs) -> None:
    """dp 2 with balancing by load, so that the room is registered, asked for and answered too."""
    lab = labs.up("--prefill", "tp=1,dp=2", "--load-balance", "total_requests")
    assert lab.load(requests=6, concurrency=3).completed == 6
    lab.inject_late_metadata("--hits", "1", "--rank-timeout", "30s", "--timeout", "60s", delay="1s")
    assert lab.load(requests=4, concurrency=2).completed == 4
    fired = [e for dp in (0, 1) for e in lab.events(f"prefill dp{dp} pp0 tp0", EventKind.FAULT_FIRED)]
    room = fired[0].room
    told = story(labs, room)
    assert told["gaps"] == []
    [prefill] = {e["rank"] for e in told["entries"] if e["rank"].startswith("prefill")}
    for rank in ("decode tp0", "decode tp1"):
        stations = [
            first(told, rank, "arrival"),
            first(told, rank, "query"),
            first(told, rank, "answer", value=f"dp {prefill.split()[1][2:]}"),
            first(told, rank, "handshake", value="WaitingForInput"),
            first(told, rank, "allocation"),
            first(told, rank, "enqueue", queue="decode.transfer"),
            first(told, rank, "state", value="Success"),
            first(told, rank, "landed"),
            first(told, rank, "decision", value="committed"),
        ]
        assert stations == sorted(stations), rank
        # From the other side: made before it was found, addresses before the transfer, sent before it was said to be.
        assert first(told, prefill, "state", value="Bootstrapping") <= stations[2]
        assert stations[4] <= first(told, prefill, "handshake", value="WaitingForInput")
        assert first(told, prefill, "sent") <= stations[6]
        assert [s["queue"] for s in told["stays"] if s["rank"] == rank and s["queue"] != "decode.pending"] == [
            "decode.prealloc",
            "decode.transfer",
        ]
    assert first(told, prefill, "registration") <= first(told, prefill, "arrival")
    assert first(told, prefill, "fault") <= first(told, "decode tp1", "landed")
    # tp0 may be held for a round as well: row and status come on two ways.
    held = max((e for e in told["entries"] if e["kind"] == "held"), key=lambda e: e["rounds"])
    assert held["rank"] == "decode tp1"
    assert held["rounds"] > 10
    assert held["until_s"] - held["t_s"] > 0.1
    lines = {line["rank"]: line for line in told["ranks"]}
    assert {line["uncertainty_s"] for line in lines.values() if line["saw"]} == {0.0}  # one host, one clock
    assert sum(line["saw"] for line in lines.values()) == 3  # the other prefill dp rank never saw it
    # The same by request id, from copies of the files alone, and for a room without a fault.
    assert story(labs, told["rids"][0])["entries"] == told["entries"]
    assert story(labs, room, "--from", labs.folder / "rec")["entries"] == told["entries"]
    calm = story(labs, next(r for r in served(lab) if r not in {e.room for e in fired}))
    assert not [e for e in calm["entries"] if e["kind"] in ("held", "fault", "missing", "abort")]
    _files(labs, room)
    _logs(labs, told)
    unknown = labs.cli("story", room + 1, code=3)
    assert str(room) in unknown.stderr


def _files(labs: Labs, room: int) -> None:
    trace, picture = labs.folder / "t.json", labs.folder / "p.svg"
    labs.cli("story", room, "--perfetto", trace, "--plot", picture)
    events = json.loads(trace.read_text())["traceEvents"]
    assert len({e["pid"] for e in events}) == 3
    assert {e["ph"] for e in events} == {"M", "X", "i", "s", "f"}
    assert len([e for e in events if e["ph"] == "s"]) == 2
    texts = [e.text or "" for e in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert any("held by the gate" in text for text in texts)
    assert "decode tp1" in texts


def _logs(labs: Labs, told: dict[str, Any]) -> None:
    """A router's log, as it writes them, with an id of its own, and a decode server's that has that id and the room."""
    [rid] = told["rids"]
    at = told["started"][:19].replace("T", " ")
    span = 'http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" request_id="client-0001"}'
    (labs.folder / "router.log").write_text(
        f"{at}  INFO {span}: smg::request: middleware.rs:310: started processing request\n"
    )
    (labs.folder / "decode.log").write_text(
        f"[{at}] Receive: obj=GenerateReqInput(rid='{rid}', bootstrap_room={told['room']}),"
        " headers={'x-request-id': 'client-0001'}\n"
    )
    given = (
        "--logs",
        labs.folder / "router.log",
        "--logs",
        labs.folder / "decode.log",
        "--otlp",
        labs.folder / "o.json",
    )
    found = story(labs, "client-0001", *given)
    assert found["room"] == told["room"]
    first_two = [(e["rank"], e["text"]) for e in found["entries"][:2]]
    assert first_two == [("router.log", "received it: started processing request"), ("decode.log", "received it")]
    assert [e["text"] for e in found["entries"] if e["kind"] != "log"] == [e["text"] for e in told["entries"]]
    resources = json.loads((labs.folder / "o.json").read_text())["resourceSpans"]
    spans = [span for one in resources for scope in one["scopeSpans"] for span in scope["spans"]]
    assert len({span["traceId"] for span in spans}) == 1
    rooms = {a["value"]["stringValue"] for span in spans for a in span["attributes"] if a["key"] == "bootstrap_room"}
    assert rooms == {hex(told["room"])}
    assert len(resources) == 6  # the room, three ranks, two logs


def test_through_sockets_alone(labs: Labs) -> None:
    lab = labs.up()
    lab.load(requests=1)
    [room] = served(lab)
    told = story(labs, room)
    for file in (labs.folder / "rec").glob("*.pdrec"):
        file.rename(file.with_suffix(".away"))  # the ranks go on writing to them
        file.write_text("nothing of use")
    assert story(labs, room, "--through", "sockets", code=3)["entries"] == told["entries"]  # files are not understood
    assert "no recording can be read" in labs.cli("story", room, "--through", "recordings", code=4).stderr


def test_over_tcp_it_is_told_as_by_files(labs: Labs, ring: Keyring) -> None:
    labs.env |= ring.env
    lab = labs.up("--listen", "tcp://127.0.0.1")
    lab.load(requests=3)
    where = [json.loads(path.read_text())["tcp"] for path in (labs.folder / "run").glob("*.json")]
    reach = [word for one in where for word in ("--endpoint", one)]
    reach += ["--server-key", ring.server.public, "--key", "alice"]
    away = {name: value for name, value in labs.env.items() if name not in ("PDCTL_RUN_DIR", "PDCTL_RECORD_DIR")}
    limits = ["--timeout", f"{patience(20):.0f}", "--rank-timeout", f"{patience(5):.0f}"]

    def far(asked: object) -> dict[str, Any]:
        done = cli_server.run([*reach, "story", str(asked), "-o", "json", *limits], away)
        assert done.returncode == 0, done
        [told] = json.loads(done.stdout)["stories"]
        return dict(told)

    for room in served(lab):
        told = story(labs, room)
        assert [far(asked)["entries"] for asked in (room, told["rids"][0])] == [told["entries"]] * 2
        assert far(room)["gaps"] == told["gaps"] == []
    with lab.waiting(4711, "decode"):
        until("it waits", lambda: any(4711 in rooms for queues in lab.queues().values() for rooms in queues.values()))
        told, told_far = story(labs, 4711), far(4711)
        assert not [gap for gap in told_far["gaps"] if "can't be read" in gap]
        both = [sorted((e["rank"], e["kind"]) for e in one["entries"]) for one in (told, told_far)]
        assert both[0] == both[1]


def test_a_hung_room_with_a_killed_rank_and_with_half_of_the_files(labs: Labs, tmp_path: Path) -> None:
    lab = labs.up("--without", "gate")
    assert lab.load(requests=2, concurrency=1).completed == 2
    before = served(lab)
    lab.inject_late_metadata("--rank-timeout", "30s", "--timeout", "60s", delay="1s")
    threading.Thread(target=lambda: lab.load(requests=1, seconds=4), daemon=True).start()
    until("a landing on decode tp1", lambda: lab.events(TP1, EventKind.LANDED))
    room = lab.events(TP1, EventKind.LANDED)[0].room
    killed = lab.process(TP1)
    os.kill(killed.pid, signal.SIGKILL)
    until("the death of decode tp1", lambda: not killed.alive)
    told = story(labs, room)
    lines = {line["rank"]: line for line in told["ranks"]}
    assert (lines["decode tp1"]["state"], lines["decode tp1"]["saw"]) == ("dead", True)
    assert any(gap.startswith("decode tp1 is dead: its recording ends at ") for gap in told["gaps"])
    # What no snapshot of the hung ranks shows any more: tp0 committed, tp1 saw 0, and the row came later.
    committed = first(told, "decode tp0", "decision", value="committed")
    missing = first(told, "decode tp1", "missing")
    landed = first(told, "decode tp1", "landed")
    assert missing < landed
    assert committed < landed
    assert not [e for e in told["entries"] if e["rank"] == "decode tp1" and e["value"] == "committed"]
    [last] = [e for e in told["entries"] if e["rank"] == "decode tp1" and e["kind"] == "last"]
    assert last["queue"] == "decode.transfer"
    # Half of a file: its events are gone and that is said; rounds in the half that is left are told.
    half = tmp_path / "half"
    half.mkdir()
    for file in (labs.folder / "rec").glob("*.pdrec"):
        data = file.read_bytes()
        (half / file.name).write_bytes(data[: len(data) // 2] if file.name.startswith(f"{killed.pid}-") else data)
    cut = story(labs, room, "--from", half)
    assert any(gap.startswith("decode tp1: cut off: ") for gap in cut["gaps"])
    assert "decode tp1: no events can be read: arrival, states and messages are not known" in cut["gaps"]
    assert first(cut, "decode tp1", "missing") == pytest.approx(missing, abs=0.001)
    assert first(cut, "decode tp0", "decision", value="committed") == pytest.approx(committed, abs=0.001)
    # A file that does not say whose it is: its rank has no recording, the rest is told.
    for file in half.glob(f"{killed.pid}-*"):
        file.write_bytes(file.read_bytes()[:1000])
    left = story(labs, room, "--from", half, code=3)
    assert "decode tp1 has no recording: no recording of this rank in " in "".join(left["gaps"])
    assert first(left, "decode tp0", "decision", value="committed") == pytest.approx(committed, abs=0.001)
    assert story(labs, before[0])["room"] == before[0]
