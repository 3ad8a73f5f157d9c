"""One line of a log, of a router, a gateway or an engine: when it was written, by its clock, and what it says. Pure.

Lines may hold prompts. So what is quoted of a line ends where a field begins that may hold one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from pdctl.protocol import structs
from pdctl.protocol.durations import seconds

MOST_QUOTED = 160
_LONG = 8
"""Characters from which on a name is not found in a text by chance."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_TIME = r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?"
_ZONE = r"(Z|[+-]\d\d:?\d\d)"
_RUNTIME = re.compile(rf"{_TIME}{_ZONE} (?:std(?:out|err) [FP] )?(?=\S)")
"""What a container's runtime, or ``kubectl logs --timestamps``, puts before a line."""
_RUST = re.compile(rf"{_TIME}{_ZONE}? +(TRACE|DEBUG|INFO|WARN|ERROR) +")
_PYTHON = re.compile(rf"\[{_TIME}(?: ?{_ZONE})?((?: (?:DP|TP|PP|EP|CP|ATTN_[A-Z]{{1,8}})\d{{1,6}})*)[^\]]{{0,80}}\] ")
_ACCESS = re.compile(r"\S+ \S+ \S+ \[(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d:\d\d:\d\d) ([+-]\d{4})\] ")
"""How web servers write a request that is over: the common log format."""
_BARE = re.compile(rf"\[?{_TIME} ?{_ZONE}?\]?[ :|-]*")
_SPAN = re.compile(r"((?:[a-z_]\w*(?:\{[^{}]*\})?:)+) ")
_WHERE = re.compile(r"[a-z_]\w*(?:::[\w-]+)+: (?:\S+?\.rs:\d+: )?")
"""What the Rust router writes before its message: spans with their fields, the module, the place in the source."""
_FIELD = re.compile(r"\b(\w+)=(\"[^\"]*\"|[^\s{}]+)")
_PRIVATE = re.compile(
    r"\bobj=|\bbody=|\b(?:text|prompt|messages?|content|input|output|input_ids|output_ids|headers)['\"]?\s*[=:]"
)
"""From here on a line may hold what a client wrote."""
_WHOLE = re.compile(r"(?:Receive|Finish): obj=|request\.(?:received|finished)$")
"""What the engine's log of requests begins with: there is nothing to quote of it."""
_SAYS = (
    ("aborted", re.compile(r"Abort (?:\w+ queue|queued|running|waiting|grammar) request|Received abort notification")),
    (
        "cancelled",
        re.compile(
            r"disconnected from the client side|client (?:has )?(?:disconnected|went away|closed)|client_cancell?ed"
            r"|cancell?ing upstream|cancell?ed by (?:the )?client|sending abort request for|request (?:was )?cancell?ed"
            r"|HTTP/\d[.\d]*\" (?:499\b|0 DC\b)",  # nginx, Envoy
            re.IGNORECASE,
        ),
    ),
    ("received", re.compile(r"started processing request|^Receive: obj=|^request\.received$")),
    ("answered", re.compile(r"finished processing request|^Finish: obj=|^request\.finished$")),
    (
        "failed",
        re.compile(
            r"request failed with |transfer failed|handshake failed|bootstrap(?:ping)? failed|timed out"
            r"|failed to send|node failure|server returned error|mismatch",
            re.IGNORECASE,
        ),
    ),
)
"""What lines of routers and engines say of a request, the first that fits."""


@dataclass(frozen=True)
class LogLine:
    """A line. wall_ns: when it was written, by the log's clock, not later than it was; None where no time is understood.

    zoned: the time says its zone, or is of a format that has UTC; else ``wall_ns`` is as if it were UTC. every_ns: the time's
    resolution. by: ``router``, ``engine``, or "". who: the rank of an engine as its log has it. says: one of ``cancelled``,
    ``aborted``, ``received``, ``answered``, ``failed``, ``named``. quoted: what it says, as far as that is no client's text.
    """

    wall_ns: int | None
    every_ns: int
    zoned: bool
    by: str
    who: str
    says: str
    quoted: str


def parse(raw: bytes) -> LogLine:
    """Return what a line says. Never raises: what is not understood is told as it is, without a time."""
    text = _COLOR.sub("", raw.decode("utf-8", "backslashreplace")).strip()
    outer: LogLine | None = None
    held = _object(text) if text.startswith('{"log"') else None
    if held is not None:  # as docker keeps it
        outer = _stamp(_BARE.match(str(held.get("time", ""))))
        text = _COLOR.sub("", str(held.get("log", ""))).strip()
    else:
        runtime = _RUNTIME.match(text)
        if runtime is not None:
            outer = _stamp(runtime)
            text = text[runtime.end() :]
    line = _inner(text)
    if outer is not None and outer.wall_ns is not None:
        return replace(line, wall_ns=outer.wall_ns, every_ns=outer.every_ns, zoned=True)
    return line


def _inner(text: str) -> LogLine:
    if text.startswith("{"):
        fields = _object(text)
        if fields is not None:
            return _structured(fields)
    rust = _RUST.match(text)
    if rust is not None:
        return _rust(text[rust.end() :], _stamp(rust, zoned=True))
    python = _PYTHON.match(text)
    if python is not None:
        rest, stamp = text[python.end() :], _stamp(python)
        fields = _object(rest) if rest.startswith("{") else None
        if fields is not None:
            return replace(_structured(fields), wall_ns=stamp.wall_ns, every_ns=stamp.every_ns, zoned=stamp.zoned)
        engine = text[11] == " "  # not so Envoy's
        return _said(replace(stamp, by="engine" if engine else "", who=python[5].strip()), rest)
    if re.match(r"(?:TRACE|DEBUG|INFO|WARN|ERROR) +[a-z_]\w*(?:::|\{|:)", text):  # its time was before it
        return _rust(text.partition(" ")[2].lstrip(), _NOTHING)
    access = _ACCESS.match(text)
    if access is not None:
        day, month, year, clock, zone = access.groups()
        number = _MONTHS.index(month) + 1 if month in _MONTHS else 0
        stamp = _stamp(_BARE.match(f"{year}-{number:02}-{day} {clock}{zone}"))
        return _said(stamp, text[access.end() :])
    bare = _BARE.match(text)
    return _said(_stamp(bare), text[bare.end() :]) if bare is not None else _said(_NOTHING, text)


def _rust(text: str, stamp: LogLine) -> LogLine:
    span = _SPAN.match(text)
    fields = dict(_FIELD.findall(span[1])) if span is not None else {}
    rest = text[span.end() :] if span is not None else text
    where = _WHERE.match(rest)
    return _said(replace(stamp, by="router"), rest[where.end() :] if where is not None else rest, fields)


def _structured(fields: Mapping[str, Any]) -> LogLine:
    """Return a line that is an object of JSON: of the router, or the engine's log of requests."""
    message = next((fields[key] for key in ("message", "msg", "event") if isinstance(fields.get(key), str)), "")
    inner, spans = fields.get("fields"), fields.get("spans")
    if isinstance(inner, dict):
        message = message or str(inner.get("message", ""))
    around = [*(spans if isinstance(spans, list) else ()), fields.get("span")]
    span = {key: str(value) for one in around if isinstance(one, dict) for key, value in one.items()}
    stamp = next(
        (_stamp(_BARE.match(fields[k])) for k in ("timestamp", "time", "ts") if isinstance(fields.get(k), str)),
        _NOTHING,
    )
    router = isinstance(fields.get("target"), str) or bool(span)
    stamp = replace(stamp, by="router" if router else "engine", zoned=stamp.zoned or router)
    return _said(stamp, message, span)


def _said(stamp: LogLine, message: str, fields: Mapping[str, str] | None = None) -> LogLine:
    says = next((name for name, pattern in _SAYS if pattern.search(message)), "named")
    private = _PRIVATE.search(message)
    quoted = " ".join((message[: private.start()] if private is not None else message).split())
    if _WHOLE.match(message):
        quoted, private = "", None
    if private is not None or len(quoted) > MOST_QUOTED:
        quoted = f"{quoted[:MOST_QUOTED]} …"
    told = fields if fields is not None and says in ("answered", "failed") else {}
    status, latency = told.get("status_code", ""), told.get("latency", "")
    if status.isascii() and status.isdecimal():
        quoted = f"{quoted}, status {status}"
    if latency.isascii() and latency.isdecimal() and len(latency) < 16:
        quoted = f"{quoted}, after {seconds(int(latency) / 1e6)}"
    return replace(stamp, says=says, quoted=quoted.strip())


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_YEARS = range(1971, 2201)
"""A time of another year is none that a log was written at, and may have no date in another zone."""
_NOTHING = LogLine(None, 0, zoned=False, by="", who="", says="named", quoted="")


def _stamp(found: re.Match[str] | None, *, zoned: bool = False) -> LogLine:
    """Return a line of which only the time is known: the first four groups of ``found``."""
    if found is None:
        return _NOTHING
    day, clock, part, zone = found.group(1, 2, 3, 4)
    try:
        when = datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=timezone.utc)
    except ValueError:
        return _NOTHING
    if when.year not in _YEARS:
        return _NOTHING
    part = part or ""
    ns = (when - _EPOCH) // timedelta(seconds=1) * 10**9 + int(part.ljust(9, "0"))
    if zone and zone != "Z":
        shift = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        ns -= (shift if zone[0] == "+" else -shift) * 10**9
    return replace(_NOTHING, wall_ns=ns, every_ns=10 ** (9 - len(part)), zoned=zoned or bool(zone))


def _object(text: str) -> dict[str, Any] | None:
    try:
        return structs.from_json(text.encode("utf-8", "backslashreplace"), dict[str, Any])
    except ValueError:
        return None


# ---- names -----------------------------------------------------------------------------------------------------------


class Names:
    """What a request is called: rooms by their number, ids by their text. Finds the lines that name it."""

    def __init__(self, rooms: Iterable[int], ids: Iterable[str]) -> None:
        self.rooms = tuple(dict.fromkeys(rooms))
        self.ids = tuple(dict.fromkeys(one for one in ids if one))
        numbers = [str(room) for room in self.rooms]
        parts = []
        for number in numbers:
            before = r"(?<![\w.-])" if len(number) >= _LONG else r"(?i:rooms?)\W{1,4}"
            parts.append(rf"{before}{number}(?![\w-]|\.\d)")
        for one in self.ids:
            text = re.escape(one)
            short = "" if len(one) >= _LONG else r"(?:\brid|request_id|request-id)\W{1,4}"
            parts.append(rf"{short}(?<![\w-]){text}(?![\w-])")
        self._pattern = re.compile("|".join(parts).encode("utf-8", "surrogateescape")) if parts else None
        self.needles = [name.encode("utf-8", "surrogateescape") for name in (*numbers, *self.ids)]

    @property
    def all(self) -> tuple[str, ...]:
        """All names, rooms as their numbers."""
        return (*map(str, self.rooms), *self.ids)

    def in_line(self, line: bytes) -> bool:
        """Return whether a line names one of them, and not by chance."""
        return self._pattern is not None and self._pattern.search(line) is not None


_LINKS = re.compile(
    rb"\b(rid|request_id|x-request-id)['\"]?[=:] ?['\"]([\w.:-]{1,256})['\"]|\b(bootstrap_room)['\"]?[=:] ?(\d{1,20})\b",
    re.IGNORECASE,
)


def linked(lines: Iterable[bytes]) -> tuple[set[str], set[int]]:
    """Return the ids and the rooms that these lines say of the request that they name, by the first field of each name."""
    ids: set[str] = set()
    rooms: set[int] = set()
    for line in lines:
        first: dict[bytes, re.Match[bytes]] = {}
        for found in _LINKS.finditer(line):
            first.setdefault((found[1] or found[3]).lower(), found)  # a text of the client may hold more of them
        ids.update(found[2].decode() for found in first.values() if found[2])
        rooms.update(int(found[4]) for found in first.values() if found[4] and 0 < int(found[4]) < 1 << 64)
    return ids, rooms
