"""What logs of routers and engines add to a story. The lines of routers and engines are true ones, with other times and ids."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pdctl.probes.story.cancelled import left_running, named_by
from pdctl.probes.story.judge import story
from pdctl.probes.story.loglines import Names, linked, parse
from pdctl.probes.story.model import RoomStory
from pdctl.probes.story.otlp import spans
from pdctl.probes.story.perfetto import trace
from pdctl.protocol.model import EventKind
from pdctl.targets.logtext import LogText
from tests.support.story_world import Rank, Request, World, served

ROOM, RID = 8224971673282503175, "0b7cf6a1d83b4c0a9c7a4b1f5f2d9e10"
SPAN = (
    'http_request{method=POST uri=/v1/chat/completions version=HTTP/1.1 module="smg"'
    ' request_id="client-7" request_id="client-7"'
)
STARTED = f"  INFO {SPAN}}}: smg::request: /home/runner/work/src/middleware.rs:310: started processing request"
FINISHED = (
    f"  INFO {SPAN} status_code=200 status_code=200 latency=245204 latency=245204}}: smg::response:"
    " /home/runner/work/src/middleware.rs:359: finished processing request"
)
CLOSED = (
    '  INFO http_request{method=POST path=/v1/chat/completions version=HTTP/1.1 module="smg" request_id="client-7"'
    " status_code=200 latency=204046}: smg::response: model_gateway/src/middleware/logging.rs:399: client closed the"
    " connection before the response stream ended"
)
GONE = f"[http_server] Error: Request is disconnected from the client side (type 3). Abort request obj.rid='{RID}'"
RECEIVE = (
    f"Receive: obj=GenerateReqInput(rid='{RID}', http_worker_ipc=None, video_data=None, sampling_params={{}},"
    f" text='my secret', bootstrap_host='10.0.0.1', bootstrap_room={ROOM}), headers={{'x-request-id': 'client-7'}}"
)
AT = datetime(2026, 11, 30, 1, 51, 45, tzinfo=timezone.utc)
NS = 10**9
AT_NS = 1796003505 * NS


@pytest.mark.parametrize(
    ("line", "wall_ns", "every_ns", "zoned", "by", "who", "says"),
    [
        (f"2026-11-30 01:51:45{STARTED}", AT_NS, NS, True, "router", "", "received"),
        (f"\x1b[2m2026-11-30 01:51:45\x1b[0m{STARTED}", AT_NS, NS, True, "router", "", "received"),
        (f"2026-11-30 01:51:45{FINISHED}", AT_NS, NS, True, "router", "", "answered"),
        (f"2026-11-30 01:51:45{CLOSED}", AT_NS, NS, True, "router", "", "cancelled"),
        (f"2026-11-30T01:51:45.250125Z{STARTED}", AT_NS + 250125000, 1000, True, "router", "", "received"),
        (f"[2026-11-30 01:51:45] {GONE}", AT_NS, NS, False, "engine", "", "cancelled"),
        (
            f"[2026-11-30 01:51:45.123 DP0 TP1] Request {ROOM} timed out",
            AT_NS + 123000000, 10**6, False, "engine", "DP0 TP1", "failed",
        ),
        (f"[2026-11-30 01:51:45+02:00 TP0] {GONE}", AT_NS - 7200 * NS, NS, True, "engine", "TP0", "cancelled"),
        (f"[2026-11-30 01:51:45] {RECEIVE}", AT_NS, NS, False, "engine", "", "received"),
        (
            f"2026-11-30T01:51:46.5Z stdout F [2026-11-30 03:51:45] {GONE}",
            AT_NS + NS + NS // 2, 10**8, True, "engine", "", "cancelled",
        ),
        (f"2026-11-30T01:51:45.000000001Z [2026-11-30 03:51:45] {GONE}", AT_NS + 1, 1, True, "engine", "", "cancelled"),
        (
            json.dumps({"log": f"[2026-11-30 03:51:45 TP0] {GONE}\n", "stream": "stderr", "time": "2026-11-30T01:51:45.5Z"}),
            AT_NS + NS // 2, 10**8, True, "engine", "TP0", "cancelled",
        ),
        (
            json.dumps({
                "timestamp": "2026-11-30 01:51:45", "level": "INFO", "message": "started processing request",
                "target": "smg::request", "span": {"request_id": "client-7", "name": "http_request"},
            }),
            AT_NS, NS, True, "router", "", "received",
        ),
        (
            json.dumps({
                "timestamp": "2026-11-30 01:51:45", "level": "INFO", "target": "smg::response", "line_number": 392,
                "message": "client closed the connection before the response",
                "span": {"latency": 1001549, "request_id": "client-7", "status_code": 499, "name": "http_request"},
            }),
            AT_NS, NS, True, "router", "", "cancelled",
        ),
        (
            '[2026-11-30 01:51:45] {"timestamp": "2026-11-30T01:51:45.111", "event": "request.finished", "rid": "x"}',
            AT_NS, NS, False, "engine", "", "answered",
        ),
        (
            '10.0.0.9 - - [30/Nov/2026:03:51:45 +0200] "POST /v1/chat/completions HTTP/1.1" 499 0 "-" "curl" "client-7"',
            AT_NS, NS, True, "", "", "cancelled",
        ),
        (
            '[2026-11-30T01:51:45.000Z] "POST /v1/chat/completions HTTP/1.1" 0 DC 120 0 1503 - "-" "curl" "client-7"',
            AT_NS, 10**6, True, "", "", "cancelled",
        ),
        (
            f"[2026-11-30 01:51:45 TP0] Abort transfer queue request. decode_req.req.rid='{RID}'",
            AT_NS, NS, False, "engine", "TP0", "aborted",
        ),
        ("no time at all", None, 0, False, "", "", "named"),
        ("[2026-13-45 99:99:99] no such time", None, 0, False, "engine", "", "named"),
        ("9999-12-31T23:59:59-01:00 no such time", None, 0, False, "", "", "named"),
        ("0001-01-01T00:00:00+01:00 no such time", None, 0, False, "", "", "named"),
        (f"[2026-11-30 01:51:45 ATTN_{'1' * 60_000}", AT_NS, NS, False, "", "", "named"),
        (f"2026-11-30 01:51:45  INFO {'a' * 60_000}", AT_NS, NS, True, "router", "", "named"),
        (f"2026-11-30 01:51:45  INFO h{{{'a' * 60_000}}}: m", AT_NS, NS, True, "router", "", "named"),
        ('{"a": ' * 5000, None, 0, False, "", "", "named"),
    ],
)  # fmt: skip
def test_lines(line: str, wall_ns: int | None, every_ns: int, zoned: bool, by: str, who: str, says: str) -> None:
    found = parse(line.encode())
    assert (found.wall_ns, found.every_ns, found.by, found.who, found.says) == (wall_ns, every_ns, by, who, says)
    assert found.zoned is zoned


def test_what_a_line_says_without_what_a_client_wrote() -> None:
    assert (
        parse(f"2026-11-30 01:51:45{FINISHED}".encode()).quoted
        == "finished processing request, status 200, after 0.2 s"
    )
    assert parse(f"[2026-11-30 01:51:45] {RECEIVE}".encode()).quoted == ""
    for text in (
        'Prefill server returned error status prefill_url=http://p status=500 body={"prompt": "my secret"}',
        "Failed: messages=[{'role': 'user', 'content': 'my secret'}]",
        "[http_server] Error: bad text: my secret",
        '{"timestamp": "2026-11-30T01:51:45", "event": "request.received", "obj": {"text": "my secret"}}',
    ):
        assert "secret" not in parse(f"[2026-11-30 01:51:45] {text}".encode()).quoted
    assert len(parse(b"x" * 10**6).quoted) < 200
    odd = {"status_code": "5²", "latency": "²", "request_id": "client-7"}
    finished = json.dumps({"message": "finished processing request", "target": "smg::response", "span": odd})
    assert parse(finished.encode()).quoted == "finished processing request"


@pytest.mark.parametrize(
    ("rooms", "ids", "line", "named"),
    [
        ([ROOM], [], f"Failed to send kv chunk of {ROOM} to 10.0.0.2", True),
        ([ROOM], [], f"room 1{ROOM}", False),
        ([ROOM], [], f"room {ROOM}.5", False),
        ([7], [], "#running-req: 7, #token: 7", False),
        ([7], [], "Request with bootstrap_room=7 already failed", True),
        ([7], [], "Received abort notification for room 7, marked", True),
        ([], [RID], f"obj.rid='{RID}'", True),
        ([], [RID], f"obj.rid='{RID}_1'", False),
        ([], ["r1"], "r1 is a short word", False),
        ([], ["r1"], "Receive: obj=GenerateReqInput(rid='r1', ", True),
        ([], ["client-7"], STARTED, True),
        ([], ["a.b*c[0]"], "request_id=\"a.b*c[0]\"", True),
    ],
)  # fmt: skip
def test_a_request_is_named_and_not_by_chance(rooms: list[int], ids: list[str], line: str, named: bool) -> None:
    assert Names(rooms, ids).in_line(line.encode()) is named


def test_what_else_a_line_calls_a_request() -> None:
    assert linked([RECEIVE.encode()]) == ({RID, "client-7"}, {ROOM})
    assert linked(
        [f'{{"event": "request.received", "rid": "{RID}", "obj": {{"bootstrap_room": {ROOM}}}}}'.encode()]
    ) == (
        {RID},
        {ROOM},
    )
    more = RECEIVE.replace("my secret", "rid='other' bootstrap_room=5 bootstrap_room=6")
    assert linked([more.encode()])[0] == {RID, "client-7"}
    assert linked([b"bootstrap_room=0 rid=bare", b"bootstrap_room=99999999999999999999"]) == (set(), set())


# ---- a story with logs -----------------------------------------------------------------------------------------------


def pair(world: World) -> tuple[Rank, list[Rank]]:
    return world.rank("prefill", host="p"), [world.rank("decode", tp, tp_size=2, host="d") for tp in (0, 1)]


def log(
    told: RoomStory, name: str, lines: Iterable[tuple[float, str]], *, zone_h: int = 0, last: bytes = b""
) -> LogText:
    """A log with lines at seconds after the first entry of the ranks; ``{at}`` in them is the time."""
    start = datetime.fromisoformat(told.started) + timedelta(hours=zone_h)
    made = [text.replace("{at}", f"{start + timedelta(seconds=at):%Y-%m-%d %H:%M:%S}").encode() for at, text in lines]
    return LogText(Path(name), tuple(made), last=last)


def test_a_log_s_lines_are_told_among_those_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    served(world, *pair(world), ROOM, RID, late_ms=3000)
    bare = story(world.pasts(), ROOM)
    logs = [
        log(bare, "router.log", [(-2, "{at}" + STARTED), (2, "{at}" + FINISHED)]),
        log(
            bare,
            "d/server.log",
            [(2, f"[{{at}} TP0] {RECEIVE}"), (2, "[{at}] other"), *[(3, f"[{{at}} TP1] {ROOM} waits")] * 3],
            zone_h=2,
        ),
    ]
    told = story(world.pasts(), ROOM, logs, ["client-7"])
    mine = [e for e in told.entries if e.kind == "log"]
    assert [(e.rank, e.value, e.text, e.rounds) for e in mine] == [
        ("router.log", "received", "received it: started processing request", 0),
        ("router.log", "answered", "answered it: finished processing request, status 200, after 0.2 s", 0),
        ("server.log", "received", "TP0: received it", 0),
        ("server.log", "named", f"TP1: {ROOM} waits (3 times)", 3),
    ]
    assert told.entries[0] is mine[0]
    assert told.entries[0].t_s == 0.0
    assert next(e for e in told.entries if e.kind != "log").time == bare.started
    assert told.started < bare.started
    assert all(e.t_s >= 0 for e in told.entries)
    assert told.span_s >= bare.span_s
    [router, server] = told.logs
    assert (router.by, router.lines, router.every_s, router.clock) == (
        "router",
        2,
        1.0,
        "wall clock of its host, to the second",
    )
    assert (server.by, server.lines) == ("engine", 4)
    assert server.clock.endswith("taken as UTC+02:00")
    assert any(note.startswith("server.log names no time zone") for note in told.notes)
    assert told.ranks == bare.ranks
    assert not left_running([told], logs, {RID: 1})
    names = {m["args"]["name"] for m in trace([told])["traceEvents"] if m["name"] == "process_name"}
    assert any(name.startswith("router.log") for name in names)


def test_what_of_logs_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    served(world, *pair(world), ROOM, RID)
    bare = story(world.pasts(), ROOM)
    late = f"{datetime.fromisoformat(bare.started) + timedelta(seconds=99):%Y-%m-%d %H:%M:%S}  INFO smg::server: a.rs:1: more"
    logs = [
        LogText(
            Path("a/x.log"),
            (f"{ROOM} is named".encode(),),
            unread="its first 3 GiB: of a log 256 MiB are read",
            dropped=4,
        ),
        LogText(Path("b/x.log"), why_not="Permission denied"),
        log(bare, "router.log", [(3, "{at}" + STARTED)], last=late.encode()),
        log(bare, "lost.log", [(30 * 3600, f"[{{at}}] {GONE}")]),
    ]
    told = story(world.pasts(), ROOM, logs, ["client-7"])
    assert told.gaps[len(bare.gaps) :] == (
        "x.log: not read: its first 3 GiB: of a log 256 MiB are read",
        "x.log: 4 more lines that name it are left out: those in the middle",
        f"x.log: a line names it without a time that is understood: {ROOM} is named",
        "b/x.log: can't be read: Permission denied",
    )
    said = "\n".join(told.notes)
    assert "router.log has no answer to it, and goes on for 96.0 s" in said
    assert "router.log has it " in said  # after a rank: its clock is ahead
    assert "lost.log names no time zone, and none puts its lines near the room's" in said


def waits(world: World, ms: float, *, abort_after: int = -1) -> list[Rank]:
    """A room that prefill never sends: decode polls it for so long, and goes on."""
    prefill, decode = pair(world)
    prefill.event(EventKind.STATE, room=ROOM, a=1)
    prefill.enter("prefill.bootstrap", Request(ROOM, f"p-{RID}"))
    for rank in decode:
        rank.event(EventKind.STATE, room=ROOM, a=2)
        rank.enter("decode.transfer", Request(ROOM, RID, slot=3, poll=2))
    for n in range(10):
        world.round("decode.transfer", decode, reduced=2)
        world.wait(ms / 10)
        if n == abort_after:
            for rank in decode:
                rank.event(EventKind.ABORT, text=RID)
    world.round("decode.transfer", decode, reduced=2)
    return decode


def test_cancelled_in_front_and_running_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    waits(world, 60_000)
    bare = story(world.pasts(), ROOM)
    gone = log(bare, "prefill.log", [(2, f"[{{at}}] {GONE.replace(RID, f'p-{RID}')}")])
    told = story(world.pasts(), ROOM, [gone])
    [found] = left_running([told], [gone], {RID: 1})
    assert found.code == "PD149"
    assert found.rooms == (ROOM,)
    assert "by prefill.log, and decode tp" in found.summary
    assert "57.0 s" in found.summary
    assert any("no abort of" in line for line in found.evidence)


@pytest.mark.parametrize(
    "twin",
    ["soon over", "aborted", "answered", "lost", "late", "cancelled before it came", "another try", "another room"],
)
def test_twins_that_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twin: str) -> None:
    world = World(tmp_path, monkeypatch)
    waits(world, 8_000 if twin == "soon over" else 60_000, abort_after=1 if twin == "aborted" else -1)
    bare = story(world.pasts(), ROOM)
    text = "{at}" + FINISHED.replace("client-7", RID) if twin == "answered" else f"[{{at}}] {GONE}"
    at = {"late": 58, "cancelled before it came": -3}.get(twin, 2)
    lines = [(at, text), *([(0, f"[{{at}}] {RECEIVE.replace(str(ROOM), '77')}")] if twin == "another try" else [])]
    logs = [log(bare, "router.log", lines)]
    told = story(world.pasts(), ROOM, logs)
    assert any(e.kind == "log" for e in told.entries)
    if twin == "lost":
        told = replace(told, gaps=("decode tp0: older events are overwritten",))
    assert left_running([told], logs, {RID: 2 if twin == "another room" else 1}) == ()


def test_what_logs_say_of_a_request_that_no_rank_has() -> None:
    lines = (f"2026-11-30 01:51:45{STARTED}".encode(), f"2026-11-30 01:51:45{FINISHED}".encode())
    assert list(
        named_by(
            "client-7", [LogText(Path("/x/router.log"), lines), LogText(Path("no.log"), unread="its first 1.0 KiB")]
        )
    ) == [
        "router.log names it 2 times, at last: finished processing request, status 200, after 0.2 s",
        "no.log does not name it (not read: its first 1.0 KiB)",
    ]


# ---- as spans --------------------------------------------------------------------------------------------------------


def check_otlp(document: Any) -> list[dict[str, Any]]:
    """Hold a document against the rules of OTLP/JSON, and return its spans."""
    found = []
    assert set(document) == {"resourceSpans"}
    for resource in document["resourceSpans"]:
        assert set(resource) == {"resource", "scopeSpans"}
        check_attributes(resource["resource"]["attributes"])
        assert any(a["key"] == "service.name" for a in resource["resource"]["attributes"])
        for scope in resource["scopeSpans"]:
            assert set(scope) == {"scope", "spans"}
            assert scope["scope"]["name"]
            found += scope["spans"]
    for span in found:
        assert set(span) <= {
            "traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano", "attributes",
            "events", "links", "status",
        }  # fmt: skip
        check_id(span["traceId"], 32)
        check_id(span["spanId"], 16)
        assert span["kind"] in range(1, 6)
        assert span["name"]
        assert check_time(span["startTimeUnixNano"]) <= check_time(span["endTimeUnixNano"])
        check_attributes(span["attributes"])
        assert span.get("status", {}).get("code", 0) in (0, 1, 2)
        for event in span.get("events", ()):
            assert set(event) == {"timeUnixNano", "name", "attributes"}
            assert (
                check_time(span["startTimeUnixNano"])
                <= check_time(event["timeUnixNano"])
                <= check_time(span["endTimeUnixNano"])
            )
            check_attributes(event["attributes"])
        for link in span.get("links", ()):
            check_id(link["traceId"], 32)
            check_id(link["spanId"], 16)
    ids = [(span["traceId"], span["spanId"]) for span in found]
    assert len(set(ids)) == len(ids)
    for span in found:
        if "parentSpanId" in span:
            assert (span["traceId"], span["parentSpanId"]) in ids
        for link in span.get("links", ()):
            assert (link["traceId"], link["spanId"]) in ids
    return found


def test_a_rank_that_calls_itself_by_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    served(world, *pair(world), ROOM, RID)
    told = story(world.pasts(), ROOM)
    told = replace(told, ranks=tuple(replace(line, label="decode tp²") for line in told.ranks))
    assert "tp_rank" not in json.dumps(spans([told]))
    assert trace([told])


def check_id(text: str, length: int) -> None:
    assert len(text) == length
    assert set(text) <= set(string.hexdigits.lower())
    assert set(text) != {"0"}


def check_time(text: str) -> int:
    assert isinstance(text, str)
    assert text.isdigit()
    assert len(text) == 19
    return int(text)


def check_attributes(given: list[dict[str, Any]]) -> None:
    assert len({one["key"] for one in given}) == len(given)
    for one in given:
        assert set(one) == {"key", "value"}
        [(kind, value)] = one["value"].items()
        assert kind in ("stringValue", "intValue", "boolValue", "arrayValue")
        if kind == "intValue":
            assert isinstance(value, str)
            int(value)


def test_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID, late_ms=3000)
    served(world, prefill, decode, ROOM + 1, "other", slot=4)
    bare = story(world.pasts(), ROOM)
    told = [
        story(world.pasts(), ROOM, [log(bare, "router.log", [(0, "{at}" + STARTED)])], ["client-7"]),
        story(world.pasts(), ROOM + 1),
    ]
    document = json.loads(json.dumps(spans(told)))
    found = check_otlp(document)
    assert document == spans(told)  # a second export is the same
    roots = [span for span in found if "parentSpanId" not in span]
    assert [span["name"] for span in roots] == [f"room {ROOM}", f"room {ROOM + 1}"]
    room = {"key": "bootstrap_room", "value": {"stringValue": hex(ROOM)}}
    assert room in roots[0]["attributes"]
    assert {"key": "rid", "value": {"stringValue": RID}} in roots[0]["attributes"]
    assert len({span["traceId"] for span in found}) == 2
    mine = [span for span in found if span["traceId"] == roots[0]["traceId"]]
    names = [span["name"] for span in mine]
    assert names.count("metadata sent") == names.count("metadata landed") == 2
    assert sum(bool(span.get("links")) for span in mine) == 2
    assert "in decode.transfer" in names
    assert any(name.startswith("held by the gate") for name in names)
    [router] = [span for span in mine if span["name"] == "router.log"]
    assert [event["name"] for event in router["events"]] == ["log"]
    start = datetime.fromisoformat(told[0].started)
    assert int(roots[0]["startTimeUnixNano"]) == round(start.timestamp() * 1e6) * 1000
