"""A story as a trace that Perfetto's UI (https://ui.perfetto.dev) and chrome://tracing open: Trace Event JSON. Pure.

A rank is a process in it, with a thread each for its queues, its states, its polls and its events. Slices are stays,
states and polls that lasted; single events are instants, but for the two ends of an arrow, which must be slices: they get
a length of a microsecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pdctl.probes.story.model import Entry, RankLine, RoomStory
from pdctl.protocol.numbers import whole

_EVENTS, _STATE, _QUEUES, _POLLS = 1, 2, 3, 20
_INSTANT_KINDS = {"poll", "held", "state", "handshake"}
_ARROW_US = 1.0


def trace(stories: Sequence[RoomStory]) -> dict[str, Any]:
    """Return the trace of ``stories`` as JSON takes it; its times are microseconds since the first entry of the first."""
    from datetime import datetime

    starts = [datetime.fromisoformat(story.started) for story in stories]
    events: list[dict[str, Any]] = []
    pids: dict[str, int] = {}
    arrow = 1
    for story, start in zip(stories, starts, strict=True):
        shift = (start - min(starts)).total_seconds() * 1e6
        builder = _Builder(story, shift, pids, several=len(stories) > 1)
        events += builder.events()
        for a, b in arrows(story):
            events += builder.arrow(arrow, a, b)
            arrow += 1
    metadata = [event for event in events if event["ph"] == "M"]
    timed = sorted(
        (event for event in events if event["ph"] != "M"), key=lambda event: (event["ts"], _RANK[event["ph"]])
    )
    return {
        "traceEvents": [*_once(metadata), *timed],
        "displayTimeUnit": "ms",
        "otherData": {
            "tool": "pdctl story",
            "rooms": ", ".join(str(story.room) for story in stories),
            "time 0": min(story.started for story in stories),
            "gaps": [gap for story in stories for gap in story.gaps],
        },
    }


_RANK = {"X": 0, "i": 1, "s": 2, "f": 3}
"""An arrow ends in the slice that is open at its time: at one time slices come first."""


def _once(metadata: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({(m["name"], m["pid"], m.get("tid")): m for m in metadata}.values())


def arrows(story: RoomStory) -> list[tuple[Entry, Entry]]:
    """Return (metadata sent, metadata there) for each decode rank that both are known of."""
    ranks = {line.rank: line for line in story.ranks}
    tps = {name: _tp(line) for name, line in ranks.items()}
    found = []
    for sent in story.entries:
        if sent.kind != "sent" or sent.value == "failed" or sent.peer < 0:
            continue
        there = [
            e
            for e in story.entries
            if e.kind == "landed" and ranks[e.rank].role == "decode" and tps[e.rank] == sent.peer
        ]
        if there:
            found.append((sent, there[0]))
    return found


def _tp(line: RankLine) -> int:
    axis = next((part for part in line.label.split() if part.startswith("tp")), "")
    number = whole(axis[2:])
    return -1 if number is None else number


class _Builder:
    def __init__(self, story: RoomStory, shift_us: float, pids: dict[str, int], *, several: bool) -> None:
        self._story = story
        self._shift = shift_us
        self._pids = pids
        self._room = f"room {story.room}: " if several else ""
        self._lanes: dict[tuple[int, str], int] = {}

    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for line in self._story.ranks:
            if line.saw:
                found += self._rank(line)
        for log in self._story.logs:
            found += self._log(log.name)
        return found

    def arrow(self, number: int, sent: Entry, landed: Entry) -> Iterable[dict[str, Any]]:
        name = f"{self._room}metadata"
        for entry, phase in ((sent, "s"), (landed, "f")):
            event = {"name": name, "cat": "metadata", "ph": phase, "id": number, "ts": self._us(entry.t_s)}
            event |= {"pid": self._pids[entry.rank], "tid": _EVENTS}
            yield event | ({"bp": "e"} if phase == "f" else {})

    def _us(self, t_s: float) -> float:
        return round(t_s * 1e6 + self._shift, 3)

    def _rank(self, line: RankLine) -> Iterable[dict[str, Any]]:
        pid = self._pids.setdefault(line.rank, len(self._pids) + 1)
        sure = "" if line.uncertainty_s == 0 else f" ({uncertainty(line.uncertainty_s)})"
        yield _meta("process_name", pid, 0, name=line.rank + sure)
        yield _meta("process_sort_index", pid, 0, sort_index=pid)
        yield from self._thread(pid, _EVENTS, "events")
        yield from self._thread(pid, _STATE, "state")
        yield from self._queue_stays(line.rank, pid)
        entries = [e for e in self._story.entries if e.rank == line.rank]
        ends = {entry for pair in arrows(self._story) for entry in pair}
        states = [e for e in entries if e.kind in ("state", "handshake")]
        for n, e in enumerate(states):
            until = states[n + 1].t_s if n + 1 < len(states) else max(entries[-1].t_s, e.t_s)
            yield self._slice(e.value, pid, _STATE, e.t_s, until, {"said": e.text})
        for e in entries:
            if e.kind in ("poll", "held"):
                lane = self._lane(pid, f"poll {e.queue}")
                yield from self._thread(pid, lane, f"poll in {e.queue}")
                name = f"held by the gate ({e.rounds} rounds)" if e.kind == "held" else e.value
                args = {"said": e.text, "round": e.round, "rounds": e.rounds}
                yield self._slice(name, pid, lane, e.t_s, e.until_s or e.t_s, args)
            elif e in ends:
                yield self._slice(e.kind, pid, _EVENTS, e.t_s, e.t_s + _ARROW_US / 1e6, {"said": e.text})
            elif e.kind not in _INSTANT_KINDS:
                what = {"name": f"{self._room}{e.kind}", "cat": e.kind, "ph": "i", "s": "t", "ts": self._us(e.t_s)}
                yield what | {"pid": pid, "tid": _EVENTS, "args": {"said": e.text, "time": e.time}}

    def _log(self, name: str) -> Iterable[dict[str, Any]]:
        entries = [e for e in self._story.entries if e.rank == name]
        if not entries:
            return
        pid = self._pids.setdefault(name, len(self._pids) + 1)
        yield _meta("process_name", pid, 0, name=f"{name} ({uncertainty(None)})")
        yield _meta("process_sort_index", pid, 0, sort_index=pid)
        yield from self._thread(pid, _EVENTS, "lines")
        for e in entries:
            what = {"name": f"{self._room}{e.value}", "cat": "log", "ph": "i", "s": "t", "ts": self._us(e.t_s)}
            yield what | {"pid": pid, "tid": _EVENTS, "args": {"said": e.text, "time": e.time}}

    def _queue_stays(self, rank: str, pid: int) -> Iterable[dict[str, Any]]:
        end = self._story.span_s
        for stay in self._story.stays:
            if stay.rank != rank:
                continue
            lane = self._lane(pid, stay.queue)
            yield from self._thread(pid, lane, f"in {stay.queue}")
            args: dict[str, Any] = {"left": stay.how or ("not known" if stay.until_s is None else "")}
            if not stay.since_known:
                args["since"] = "first seen here: it may have entered before"
            yield self._slice(stay.queue, pid, lane, stay.since_s, end if stay.until_s is None else stay.until_s, args)

    def _lane(self, pid: int, name: str) -> int:
        base = _POLLS if name.startswith("poll") else _QUEUES
        taken = sum(1 for owner, other in self._lanes if owner == pid and other.startswith("poll") == (base == _POLLS))
        return self._lanes.setdefault((pid, name), base + taken)

    def _slice(
        self, name: str, pid: int, tid: int, since_s: float, until_s: float, args: dict[str, Any]
    ) -> dict[str, Any]:
        duration = max(0.0, round((until_s - since_s) * 1e6, 3))
        what = {"name": f"{self._room}{name}", "cat": "room", "ph": "X", "ts": self._us(since_s), "dur": duration}
        return what | {"pid": pid, "tid": tid, "args": args}

    @staticmethod
    def _thread(pid: int, tid: int, name: str) -> Iterable[dict[str, Any]]:
        yield _meta("thread_name", pid, tid, name=name)
        yield _meta("thread_sort_index", pid, tid, sort_index=tid)


def _meta(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}


def uncertainty(seconds: float | None) -> str:
    """Return ``± 0.4 ms``, or ``± unknown: wall clocks only``."""
    if seconds is None:
        return "± unknown: wall clocks only"
    if seconds < 1e-4:
        return f"± {seconds * 1e6:.0f} µs"
    return f"± {seconds * 1e3:.1f} ms" if seconds < 1 else f"± {seconds:.1f} s"
