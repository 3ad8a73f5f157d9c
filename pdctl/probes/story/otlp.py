"""A story as OpenTelemetry spans: OTLP/JSON, as a collector's file receiver and ``POST /v1/traces`` take it. Pure.

SGLang's own traces have random ids. What both have is the room: an attribute ``bootstrap_room`` of the root span, in hex.
Ids are made from the room and from what a span is, so that a second export of a story has the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from pdctl import __version__
from pdctl.probes.story.model import Entry, RankLine, RoomStory
from pdctl.probes.story.perfetto import arrows
from pdctl.protocol.numbers import whole

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_INTERNAL, _PRODUCER, _CONSUMER = 1, 4, 5
_OK, _ERROR = 1, 2
_BAD = {"failed", "aborted", "Failed"}


def spans(stories: Sequence[RoomStory]) -> dict[str, Any]:
    """Return ``stories`` as a request of OTLP/JSON: a trace a room, with a resource for each rank and log."""
    return {"resourceSpans": [one for story in stories for one in _Trace(story).resources()]}


class _Trace:
    """One room as a trace: a root span, a span a rank and log below it, and spans of what lasted below those."""

    def __init__(self, story: RoomStory) -> None:
        self._story = story
        self._start_ns = (datetime.fromisoformat(story.started) - _EPOCH) // timedelta(microseconds=1) * 1000
        self._id = _digest(16, "room", story.room)
        self._root = self._span_id("root")

    def resources(self) -> Iterator[dict[str, Any]]:
        story = self._story
        root = self._span("root", f"room {story.room}", "", 0.0, story.span_s, kind=_INTERNAL)
        root["attributes"] = _attributes(self._join() | {"rid": ",".join(story.rids), "pdctl.gaps": list(story.gaps)})
        yield _resource({"service.name": "pdctl story"}, [root])
        for line in story.ranks:
            if line.saw:
                who = {"service.name": f"pdctl {line.role}", "service.instance.id": line.label, "host.name": line.host}
                yield _resource(who | {"process.pid": line.pid}, list(self._rank(line)))
        for log in story.logs:
            entries = [e for e in story.entries if e.rank == log.name]
            if entries:
                who = {"service.name": f"pdctl log of {log.by or 'a server'}", "service.instance.id": log.path}
                yield _resource(who, [self._whole(log.name, entries, {"pdctl.clock": log.clock})])

    def _join(self) -> dict[str, Any]:
        return {"bootstrap_room": hex(self._story.room), "module": "pdctl"}

    def _rank(self, line: RankLine) -> Iterator[dict[str, Any]]:
        story = self._story
        entries = [e for e in story.entries if e.rank == line.rank]
        sure = {} if line.uncertainty_s is None else {"pdctl.clock_uncertainty_ns": round(line.uncertainty_s * 1e9)}
        whole = self._whole(line.rank, entries, {"pdctl.clock": line.clock, **sure, **_coordinates(line)})
        yield whole
        parent = whole["spanId"]
        for n, stay in enumerate(stay for stay in story.stays if stay.rank == line.rank):
            until = story.span_s if stay.until_s is None else stay.until_s
            key = f"stay {n} {stay.queue}"
            span = self._span(f"{line.rank} {key}", f"in {stay.queue}", parent, stay.since_s, until)
            how = stay.how or ("still there" if stay.until_s is None else "")
            span["attributes"] = _attributes({"pdctl.left": how, "pdctl.since_known": stay.since_known})
            span["status"] = {"code": _ERROR if stay.how in _BAD else _OK} if stay.how else {}
            yield span
        lasted = (e for e in entries if e.until_s is not None and e.kind in ("poll", "held"))
        for n, e in enumerate(lasted):
            name = f"held by the gate in {e.queue}" if e.kind == "held" else f"polls {e.value} in {e.queue}"
            span = self._span(f"{line.rank} {e.kind} {n}", name, parent, e.t_s, e.until_s or e.t_s)
            span["attributes"] = _attributes({"pdctl.text": e.text, "pdctl.round": e.round, "pdctl.rounds": e.rounds})
            yield span
        for sent, landed in arrows(story):
            for e, kind, name in ((sent, _PRODUCER, "metadata sent"), (landed, _CONSUMER, "metadata landed")):
                if e.rank == line.rank:
                    span = self._span(self._way(sent, e), name, parent, e.t_s, e.t_s, kind=kind)
                    span["attributes"] = _attributes({"pdctl.text": e.text, "pdctl.slot": e.slot})
                    if e is landed:
                        span["links"] = [{"traceId": self._id, "spanId": self._span_id(self._way(sent, sent))}]
                    yield span

    def _way(self, sent: Entry, e: Entry) -> str:
        return f"{sent.rank} to tp{sent.peer} slot {sent.slot} {e.kind}"

    def _whole(self, name: str, entries: Sequence[Entry], more: dict[str, Any]) -> dict[str, Any]:
        """Return the span of a rank or a log, with all that it has as events."""
        ends = [e.t_s if e.until_s is None else e.until_s for e in entries]
        span = self._span(name, name, self._root, min(e.t_s for e in entries), max(ends))
        span["attributes"] = _attributes(self._join() | more)
        span["events"] = [
            {
                "timeUnixNano": self._ns(e.t_s),
                "name": e.kind,
                "attributes": _attributes({"pdctl.text": e.text, "pdctl.value": e.value, "pdctl.queue": e.queue}),
            }
            for e in entries
        ]
        if any(e.kind == "failure" or e.value in _BAD for e in entries):
            span["status"] = {"code": _ERROR}
        return span

    def _span(
        self, key: str, name: str, parent: str, since_s: float, until_s: float, *, kind: int = _INTERNAL
    ) -> dict[str, Any]:
        span: dict[str, Any] = {"traceId": self._id, "spanId": self._span_id(key)}
        if parent:
            span["parentSpanId"] = parent
        return span | {
            "name": name, "kind": kind, "startTimeUnixNano": self._ns(since_s),
            "endTimeUnixNano": self._ns(max(since_s, until_s)),
        }  # fmt: skip

    def _span_id(self, key: str) -> str:
        return _digest(8, self._story.room, key)

    def _ns(self, t_s: float) -> str:
        return str(self._start_ns + round(t_s * 1e9))


def _coordinates(line: RankLine) -> dict[str, Any]:
    """Return the attributes that SGLang's own spans of a rank have."""
    parts = ((part[:2], part[2:]) for part in line.label.split() if part[:2] in ("tp", "pp", "dp"))
    return {f"{axis}_rank": number for axis, text in parts if (number := whole(text)) is not None}


def _resource(who: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, Any]:
    scope = {"name": "pdctl", "version": __version__}
    return {"resource": {"attributes": _attributes(who)}, "scopeSpans": [{"scope": scope, "spans": found}]}


def _digest(size: int, *parts: object) -> str:
    return hashlib.blake2b(" ".join(map(str, parts)).encode("utf-8", "backslashreplace"), digest_size=size).hexdigest()


def _attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return attributes as OTLP/JSON has them: whole numbers as text. What is empty is left out."""
    return [{"key": key, "value": _value(value)} for key, value in given.items() if value not in ("", None, [])]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": value}
