"""A room of a real server pair as ``pdctl story`` tells it, with its picture and its trace."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from tests.engine.harness import Pair

PREFILL, DECODE = "prefill tp0", ("decode tp0", "decode tp1")


def story(pair: Pair, room: int, *options: str) -> dict[str, Any]:
    """Return what ``pdctl story ROOM -o json`` tells of one room."""
    done = pair.pdctl("story", str(room), "-o", "json", *options)
    assert done.returncode == 0, done.stderr
    [told] = json.loads(done.stdout)["stories"]
    return dict(told)


def first(told: dict[str, Any], rank: str, kind: str, value: str = "", queue: str = "") -> float:
    """Return when the first entry of this kind (value, queue) was on a rank; it must be there."""
    found = [
        entry["t_s"]
        for entry in told["entries"]
        if (entry["rank"], entry["kind"]) == (rank, kind)
        and value in ("", entry["value"])
        and queue in ("", entry["queue"])
    ]
    assert found, (rank, kind, value, [(e["rank"], e["kind"], e["text"]) for e in told["entries"]])
    return float(found[0])


def is_held(told: dict[str, Any]) -> None:
    """The room is in flight: its metadata has not come to decode tp1, whose gate holds both ranks back."""
    # Several, where something else about the request changed meanwhile.
    held = [entry for entry in told["entries"] if entry["kind"] == "held"]
    assert {entry["rank"] for entry in held} == {DECODE[1]}, held
    for rank in DECODE:
        assert first(told, rank, "last", queue="decode.transfer") >= held[0]["t_s"]
        assert not [e for e in told["entries"] if e["rank"] == rank and e["value"] == "committed"]
    assert first(told, PREFILL, "fault", "delay-metadata") <= held[-1]["until_s"]


def is_whole(told: dict[str, Any], *, late: bool) -> None:
    """Every station of a room that went through prefill and decode is there, and what leads to another comes first."""
    assert told["gaps"] == []
    assert {line["uncertainty_s"] for line in told["ranks"]} == {0.0}  # one host, one clock
    assert first(told, PREFILL, "arrival") <= first(told, PREFILL, "decision", queue="prefill.bootstrap")
    for rank in DECODE:
        handshake = first(told, rank, "handshake")
        stations = [
            handshake,
            first(told, rank, "allocation"),
            first(told, rank, "enqueue", queue="decode.transfer"),
            first(told, rank, "state", "Success"),
            first(told, rank, "decision", "committed"),
        ]
        assert stations == sorted(stations)
        assert first(told, rank, "arrival", queue="decode.prealloc") <= stations[1]
        assert handshake <= first(told, PREFILL, "handshake") <= first(told, PREFILL, "sent") <= stations[3]
        assert stations[3] <= first(told, rank, "landed") <= stations[4]
    assert bool([e for e in told["entries"] if e["kind"] == "held"]) is late


def has_files(pair: Pair, room: int, folder: Path) -> None:
    """The trace and the picture of the room: tracks for every rank, an arrow to each decode rank, and the words."""
    trace, picture, image = folder / "story.json", folder / "story.svg", folder / "story.png"
    story(pair, room, "--perfetto", str(trace), "--plot", str(picture))
    story(pair, room, "--plot", str(image))
    events = json.loads(trace.read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {PREFILL, *DECODE}
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"events", "state", "in prefill.bootstrap", "in prefill.inflight", "in decode.transfer"} <= tracks
    assert sorted(e["ph"] for e in events if e["ph"] in "sf") == ["f", "f", "s", "s"]
    texts = {element.text or "" for element in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")}
    assert {PREFILL, *DECODE, "metadata sent", "committed"} <= texts
    assert image.read_bytes().startswith(b"\x89PNG")
