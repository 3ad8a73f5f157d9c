"""What logs of routers and engines say of one room: its lines with their times, and what is not known of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from pdctl.probes.story.loglines import LogLine, Names, parse
from pdctl.probes.story.model import LogSource, Moment
from pdctl.protocol.durations import seconds
from pdctl.targets.logtext import LogText

_QUARTER_NS = 900 * 10**9
_FARTHEST = 56
"""Quarters of an hour that a zone may be from UTC."""
_BEFORE_NS, _AFTER_NS = 60 * 10**9, 300 * 10**9
"""A request is named that long before its ranks first have it, and after they last do, by clocks that are set."""
_GOES_ON_NS = 10 * 10**9
_WORDS = {
    "received": "received it",
    "answered": "answered it",
    "cancelled": "cancelled it",
    "aborted": "aborted it",
    "failed": "failed it",
}


@dataclass(frozen=True)
class FromLog:
    """What one log says. moments: in order, with times of the log's wall clock. gaps, notes: sentences of the story."""

    source: LogSource
    moments: tuple[Moment, ...] = ()
    gaps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def from_logs(
    logs: Sequence[LogText], names: Names, since_ns: int, until_ns: int, taken: Collection[str] = ()
) -> list[FromLog]:
    """Return what each of ``logs`` says of the request of these names.

    since_ns, until_ns: when ranks first and last had it, on a wall clock. taken: names that ranks have.
    """
    return [
        _from_log(name, log, names, since_ns, until_ns)
        for name, log in zip(_short([log.path for log in logs], taken), logs, strict=True)
    ]


def _from_log(name: str, log: LogText, names: Names, since_ns: int, until_ns: int) -> FromLog:
    lines = [parse(raw) for raw in log.lines if names.in_line(raw)]
    timed = [line for line in lines if line.wall_ns is not None]
    gaps = [f"{name}: {said}" for said in _gaps(log, lines)]
    bare = [line.wall_ns for line in timed if not line.zoned and line.wall_ns is not None]
    shift = _zone(bare, since_ns, until_ns) if bare else 0
    notes = []
    if shift is None:
        notes.append(f"{name} names no time zone, and none puts its lines near the room's: they are taken as UTC")
    elif shift:
        notes.append(
            f"{name} names no time zone: its times are taken as {_offset(shift)}, which puts them near the room's"
        )
    timed = [_shifted(line, shift or 0) for line in timed]
    unanswered = _unanswered(name, timed, _shifted(parse(log.last), shift or 0))
    if unanswered:
        notes.append(unanswered)
    every = max((line.every_ns for line in timed), default=0)
    by = next((line.by for line in lines if line.by), "")
    zone = "" if not bare else f", taken as {_offset(shift or 0)}"
    clock = f"wall clock of its host, to the {_unit(every)}{zone}" if timed else ""
    source = LogSource(name=name, path=str(log.path), by=by, lines=len(lines), every_s=every / 1e9, clock=clock)
    return FromLog(source, tuple(_moments(timed)), tuple(gaps), tuple(notes))


def _shifted(line: LogLine, shift_ns: int) -> LogLine:
    return line if line.zoned or line.wall_ns is None else replace(line, wall_ns=line.wall_ns - shift_ns)


def _unanswered(name: str, lines: Sequence[LogLine], last: LogLine) -> str:
    """Return that a router's log has no end of a request though it goes on, "" where it has one or its end is too near."""
    got = [line.wall_ns for line in lines if line.says == "received" and line.by == "router" and line.wall_ns]
    ended = any(line.says in ("answered", "failed", "cancelled") for line in lines)
    if not got or ended or last.wall_ns is None or last.wall_ns < got[0] + _GOES_ON_NS:
        return ""
    later = seconds((last.wall_ns - got[0]) / 1e9)
    return f"{name} has no answer to it, and goes on for {later}: it waits still, or its client went away"


def _gaps(log: LogText, lines: Sequence[LogLine]) -> Iterator[str]:
    if log.why_not:
        yield f"can't be read: {log.why_not}"
    if log.unread:
        yield f"not read: {log.unread}"
    if log.dropped:
        yield f"{log.dropped} more lines that name it are left out: those in the middle"
    timeless = [line for line in lines if line.wall_ns is None]
    if timeless:
        count = (
            f"{len(timeless)} lines name it without a time" if len(timeless) > 1 else "a line names it without a time"
        )
        yield f"{count} that is understood: {timeless[0].quoted}"


def _moments(lines: Sequence[LogLine]) -> Iterator[Moment]:
    """Yield the lines in order of time, those that say the same one after the other as one."""
    last: LogLine | None = None
    count, first = 0, 0
    for line in [*sorted(lines, key=lambda one: one.wall_ns or 0), None]:
        if last is not None and (
            line is None or (line.says, line.who, line.quoted) != (last.says, last.who, last.quoted)
        ):
            yield _moment(last, first, count)
            last = None
        if line is None:
            return
        if last is None:
            first, count = line.wall_ns or 0, 0
        last, count = line, count + 1


def _moment(last: LogLine, first_ns: int, count: int) -> Moment:
    who = f"{last.who}: " if last.who else ""
    more = f" ({count} times)" if count > 1 else ""
    said = ": ".join(part for part in (_WORDS.get(last.says, ""), last.quoted) if part)
    text = f"{who}{said}{more}"
    return Moment(
        first_ns, "log", text, value=last.says, rounds=count if count > 1 else 0,
        until_ns=last.wall_ns if count > 1 else None, since_ns=first_ns + last.every_ns,
    )  # fmt: skip


def _zone(walls: Sequence[int], since_ns: int, until_ns: int) -> int | None:
    """Return the offset from UTC (ns) that puts times near those of the room: UTC where it does; None where none does."""
    low, high = since_ns - _BEFORE_NS, until_ns + _AFTER_NS
    middle = sorted(walls)[len(walls) // 2]
    quarters = sorted(range(-_FARTHEST, _FARTHEST + 1), key=abs)
    return next((q * _QUARTER_NS for q in quarters if low <= middle - q * _QUARTER_NS <= high), None)


def _offset(shift_ns: int) -> str:
    if not shift_ns:
        return "UTC"
    hours, minutes = divmod(timedelta(microseconds=abs(shift_ns) // 1000) // timedelta(minutes=1), 60)
    return f"UTC{'+' if shift_ns > 0 else '-'}{hours:02}:{minutes:02}"


def _unit(every_ns: int) -> str:
    return "second" if every_ns >= 10**9 else "millisecond" if every_ns >= 10**6 else "microsecond"


def _short(paths: Sequence[Path], taken: Collection[str]) -> list[str]:
    """Return a name for each log, no two alike, and none that a rank has."""
    names: list[str] = []
    for path in paths:
        for name in (path.name, "/".join(path.parts[-2:]), str(path)):
            if name not in taken and name not in names:
                break
        else:
            name = f"{path} #{len(names) + 1}"
        names.append(name)
    return names
