"""Puts the pasts of ranks together into one story of a room: one time line, its uncertainty, and what is not known. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property

from msgspec.structs import replace

from pdctl.probes.queues.formatting import names as listed
from pdctl.probes.story.clocks import DRIFT
from pdctl.probes.story.loglines import Names
from pdctl.probes.story.logs import FromLog, from_logs
from pdctl.probes.story.model import Entry, Lost, Moment, RankLine, RankPast, RankStory, RoomStory, Stay
from pdctl.probes.story.names import short_names
from pdctl.probes.story.sync import Time, times
from pdctl.probes.story.timeline import rank_story, rids_of
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import OTHER
from pdctl.recording.reader import Recording
from pdctl.recording.requests import last_sign_ns
from pdctl.recording.witness import SAME_S, Witness, part, takers, witness
from pdctl.targets.logtext import LogText

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class _Told:
    """One rank with a recording: what it says, and how its time becomes that of the line. center: a moment of its own."""

    name: str
    past: RankPast
    recording: Recording
    story: RankStory
    time: Time

    @cached_property
    def witness(self) -> Witness:
        """What its recording is a witness of."""
        return witness(self.recording)

    def line_ns(self, ns: int) -> int:
        """Return the moment ``ns`` of the rank's clock on the common line."""
        return ns + self.time.offset.ns


@dataclass(frozen=True)
class _Line:
    """A moment of a rank, or of a log, on the common line. name: of who has it."""

    ns: int
    until_ns: int | None
    name: str
    moment: Moment


def story(pasts: Sequence[RankPast], room: int, logs: Sequence[LogText] = (), called: Sequence[str] = ()) -> RoomStory:
    """Return the story of ``room`` (one that a recording of ``pasts`` knows: otherwise it has no entries).

    logs: those of routers and engines. called: ids of its request that logs may have besides those of recordings.
    """
    names = short_names([past.identity for past in pasts])
    recorded = [(name, past, past.recording) for name, past in zip(names, pasts, strict=True) if past.recording]
    stories, found, remarks = aligned([recording for _, _, recording in recorded], room)
    reference = next((n for n, s in enumerate(stories) if s.moments), 0)
    told = [
        _Told(name, past, recording, s, time)
        for (name, past, recording), s, time in zip(recorded, stories, found, strict=True)
    ]
    lines = [
        _Line(t.line_ns(m.ns), None if m.until_ns is None else t.line_ns(m.until_ns), t.name, m)
        for t in told
        for m in t.story.moments
    ]
    wall = recorded[reference][2].start_wall_ns - recorded[reference][2].start_mono_ns if recorded else 0
    own = [t for t in told if t.story.moments]
    rids = dict.fromkeys(rid for t in own for rid in rids_of(t.recording, room))
    since, until = _ends(lines)
    said = from_logs(logs, Names([room], [*rids, *called]), since + wall, until + wall, names)
    absent = [one for role in OTHER for one in _absent(role, pasts, told, wall)]
    ranks = [_rank(name, past, told, until - since) for name, past in zip(names, pasts, strict=True)]
    ahead = _ahead(said, lines, wall)
    lines += _logged(said, wall)
    lines.sort(key=lambda line: line.ns)  # stable: what a rank has at one time stays as it is
    start, end = _ends(lines)
    return RoomStory(
        room=room,
        rids=tuple(rids),
        started=_iso(start + wall),
        span_s=(end - start) / 1e9,
        entries=tuple(_entry(room, line, start, wall) for line in lines),
        stays=tuple(_stays(own, start)),
        ranks=_ranks(ranks, pasts),
        logs=tuple(log.source for log in said),
        gaps=(
            *_gaps(names, pasts, told, since, wall),
            *(text for never, text in absent if not never),
            *(gap for log in said for gap in log.gaps),
        ),
        notes=(
            *remarks,
            *_notes(room, told),
            *(text for never, text in absent if never),
            *(note for log in said for note in log.notes),
            *ahead,
        ),
    )


def aligned(recordings: Sequence[Recording], room: int) -> tuple[list[RankStory], list[Time], list[str]]:
    """Return what each recording has of ``room``, the time of each rank, and remarks on that."""
    stories = [rank_story(recording, room) for recording in recordings]
    near = [(s.moments[0].ns + s.moments[-1].ns) // 2 if s.moments else None for s in stories]
    reference = next((n for n, ns in enumerate(near) if ns is not None), 0)
    return stories, *(times(recordings, near, reference) if recordings else ([], []))


def _ends(lines: Sequence[_Line]) -> tuple[int, int]:
    start = min((line.ns for line in lines), default=0)
    return start, max((line.until_ns or line.ns for line in lines), default=start)


def _logged(said: Sequence[FromLog], wall: int) -> list[_Line]:
    return [
        _Line(m.ns - wall, None if m.until_ns is None else m.until_ns - wall, log.source.name, m)
        for log in said
        for m in log.moments
    ]


def _ahead(said: Sequence[FromLog], lines: Sequence[_Line], wall: int) -> list[str]:
    """Return which routers' clocks are ahead of the ranks': a router has a request before any rank has."""
    came = min((line.ns + wall for line in lines if line.moment.kind == "arrival"), default=None)
    remarks = []
    for log in said:
        got = min((m.ns for m in log.moments if m.value == "received" and log.source.by == "router"), default=None)
        if came is not None and got is not None and got > came:
            remarks.append(
                f"{log.source.name} has it {seconds((got - came) / 1e9)} after a rank has: its clock is ahead by that at least"
            )
    return remarks


def _iso(wall_ns: int) -> str:
    return (_EPOCH + timedelta(microseconds=wall_ns // 1000)).isoformat(timespec="microseconds")


def _entry(room: int, line: _Line, start: int, wall: int) -> Entry:
    m, until = line.moment, line.until_ns
    return Entry(
        room=room, t_s=(line.ns - start) / 1e9, time=_iso(line.ns + wall), rank=line.name, kind=m.kind, text=m.text,
        queue=m.queue, round=m.round, rounds=m.rounds, until_s=None if until is None else (until - start) / 1e9,
        slot=m.slot, value=m.value, peer=m.peer,
    )  # fmt: skip


def _stays(own: Sequence[_Told], start: int) -> list[Stay]:
    stays = []
    for t in own:
        for s in t.story.stays:
            until = None if s.until_ns is None else (t.line_ns(s.until_ns) - start) / 1e9
            stays.append(Stay(t.name, s.queue, (t.line_ns(s.since_ns) - start) / 1e9, until, s.how, s.since_known))
    return stays


def _rank(name: str, past: RankPast, told: Sequence[_Told], span_ns: int) -> RankLine:
    i = past.identity
    line = RankLine(
        rank=name, label=i.label, role=i.role, state=past.state, host=i.host, pid=i.pid, saw=False, why_not=past.why_not
    )
    t = next((t for t in told if t.name == name), None)
    if t is None:
        return line
    within = t.time.offset.within_ns
    if within:
        within += int(span_ns * DRIFT / 2)  # the offset holds in the middle of the story
    return replace(
        line, saw=bool(t.story.moments), reference=t.time.offset.low == t.time.offset.high == 0, clock=t.time.why,
        uncertainty_s=None if within is None else within / 1e9,
    )  # fmt: skip


def _ranks(lines: Sequence[RankLine], pasts: Sequence[RankPast]) -> tuple[RankLine, ...]:
    """Return the lines of ``pasts``, with those that need not know the room: others of their side have it to themselves."""
    parts = {(line.role, part(past.identity)) for line, past in zip(lines, pasts, strict=True) if line.saw}
    roles = {role for role, _ in parts}
    return tuple(
        replace(line, elsewhere=line.role in roles and (line.role, part(past.identity)) not in parts)
        for line, past in zip(lines, pasts, strict=True)
    )


def _gaps(names: Sequence[str], pasts: Sequence[RankPast], told: Sequence[_Told], start: int, wall: int) -> list[str]:
    gaps = []
    for name, past in zip(names, pasts, strict=True):
        if past.recording is None:
            gaps.append(f"{name} has no recording: {past.why_not or past.state}")
    for t in told:
        gaps += [_gap(lost, t, wall) for lost in t.story.lost if _matters(lost, t, start)]
        if t.recording.state == "writing" and t.past.state == "dead":
            last = last_sign_ns(t.recording)
            gaps.append(f"{t.name} is dead: its recording ends at {_clock(t.line_ns(last) + wall)}")
        elif t.recording.state == "stopped":
            gaps.append(f"{t.name} stopped recording before its end")
    return gaps


def _matters(lost: Lost, t: _Told, start: int) -> bool:
    """Whether a lost past could have been of this room: all of it that is not over before the room's first entry."""
    if lost.until_ns is None or not t.story.moments:
        return lost.until_ns is None or t.line_ns(lost.until_ns) >= start
    if any(m.kind == "arrival" for m in t.story.moments):
        return t.line_ns(lost.until_ns) > start
    return True


def _gap(lost: Lost, t: _Told, wall: int) -> str:
    if lost.until_ns is None:
        return f"{t.name}: {lost.text}"
    return f"{t.name}: {lost.text}: history before {_clock(t.line_ns(lost.until_ns) + wall)} is gone"


def _clock(wall_ns: int) -> str:
    return _iso(wall_ns)[11:23]


def _notes(room: int, told: Sequence[_Told]) -> list[str]:
    notes = []
    # The two sides may each have a name of their own for one request; the ranks of one side have the same.
    rids: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for t in told:
        i = t.past.identity
        for rid in rids_of(t.recording, room):
            rids.setdefault((i.role, i.cluster), {}).setdefault(rid, {})[i.service] = None
    for (role, _), given in rids.items():
        servers = {service for on in given.values() for service in on}
        if len(given) > 1:
            each = [rid + (f" ({', '.join(on)})" if len(servers) > 1 else "") for rid, on in given.items()]
            notes.append(f"{role} was given room {room} for {len(given)} requests: {', '.join(each)}")
        elif len(servers) > 1:
            notes.append(f"room {room} went to {len(servers)} {role} servers: {', '.join(sorted(servers))}")
    return notes


def _absent(role: str, pasts: Sequence[RankPast], told: Sequence[_Told], wall: int) -> Iterator[tuple[bool, str]]:
    """Yield what is said of a side to which the room's request came as far as is known not; whether it never came."""
    those = [t for t in told if t.past.identity.role == role]
    if any(t.story.came for t in those):
        return
    came = min((t.line_ns(m.ns) for t in told if t.story.came for m in t.story.moments), default=None)
    if came is None:
        return
    parts = {part(past.identity) for past in pasts if past.identity.role == role}
    if not those or parts - {part(t.past.identity) for t in those}:
        no = "not every" if those else "no"
        yield False, f"whether it came to {role}: {no} {role} rank has a recording"
        return
    latest: list[tuple[int, str]] = []
    gone: list[str] = []
    for members in takers(those, lambda t: t.past.identity):
        if all(t.past.state == "dead" and t.line_ns(last_sign_ns(t.recording)) < came - _SAME_NS for t in members):
            gone += [t.name for t in members]
            continue
        t = max(members, key=lambda one: one.line_ns(one.witness.took_in_ns))
        seen = t.witness
        took_in = t.line_ns(seen.took_in_ns)
        if seen.since_ns is None or t.line_ns(seen.since_ns) > came - _SAME_NS:
            since = "" if seen.since_ns is None else f" goes back to {_clock(t.line_ns(seen.since_ns) + wall)}"
            yield False, f"whether it came to {role}: {t.name}'s recording{since}: {seen.why}"
            return
        if not seen.took_in_ns or took_in < came + _SAME_NS:
            when = f" at {_clock(took_in + wall)}" if seen.took_in_ns else ""
            yield False, f"whether it came to {role}: {t.name} last took in requests{when}, too early to tell"
            return
        latest.append((took_in, t.name))
    never = f"it never came to {role}:"
    ended = f"{listed(gone)} had ended before" if gone else ""
    if not latest:
        yield True, f"{never} {ended}"
        return
    took_in, name = min(latest)
    until = _clock(took_in + wall)
    yield True, f"{never} {name} took in requests until {until}, and no request with this room{ended and f'; {ended}'}"


_SAME_NS = int(SAME_S * 1e9)
