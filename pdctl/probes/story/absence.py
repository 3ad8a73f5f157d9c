"""What is said of a request that no recording knows, and of a request id that stands for several rooms at once. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone

from pdctl.probes.several_rooms import several_rooms, some
from pdctl.probes.story.find import Known
from pdctl.probes.story.model import RankPast, RoomStory
from pdctl.probes.story.names import short_names
from pdctl.probes.unknown import unknown_words
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import OTHER
from pdctl.recording.witness import SAME_S, witness
from pdctl.report.findings import Finding


def never_came(asked: str, pasts: Sequence[RankPast], now_ns: int) -> tuple[str, str]:
    """Return that no recording of ``pasts`` has what was asked for, and where to ask next. now_ns: on the wall clock."""
    name = f"room {asked}" if asked.isdigit() else f"rid {asked}"
    roles = {past.identity.role for past in pasts}
    absent = [role for role in OTHER if role not in roles]
    if absent:
        hint = f"No {absent[0]} rank is in sight: ask there next, with its run directory or its trace (--from)."
    else:
        hint = "Look in the router's log for the servers that it was sent to: ask those next."
    why = next(_doubts(pasts, now_ns), "")
    if why:
        return unknown_words(name, f"no recording has it, and {why}"), hint
    began = [past.recording for past in pasts if past.recording is not None]
    since = max((witness(r).since_ns or 0) + r.start_wall_ns - r.start_mono_ns for r in began)
    whole = f"{len(began)} recording{'s'[: len(began) != 1]}"
    return f"{name} never came here: {whole}, complete since {_clock(since)}, {_has(len(began))} it", hint


def _has(count: int) -> str:
    return "do not have" if count > 1 else "does not have"


def _doubts(pasts: Sequence[RankPast], now_ns: int) -> Iterator[str]:
    """Yield why a request may have come though no recording has it."""
    unread = sum(past.recording is None for past in pasts)
    if unread:
        yield f"{unread} rank{'s have' if unread > 1 else ' has'} no recording that can be read"
    for name, past in zip(short_names([past.identity for past in pasts]), pasts, strict=True):
        if past.recording is None:
            continue
        seen, wall = witness(past.recording), past.recording.start_wall_ns - past.recording.start_mono_ns
        if seen.since_ns is None:
            yield f"{name}'s recording does not tell: {seen.why}"
        age_s = (now_ns - seen.took_in_ns - wall) / 1e9
        if past.state == "live" and seen.took_in_ns and age_s > SAME_S:
            yield f"{name} last took in requests {seconds(age_s)} ago: it may be unread there"


def _clock(wall_ns: int) -> str:
    when = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=wall_ns // 1000)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


# ---- request ids of several rooms ------------------------------------------------------------------------------------


def others_of(told: RoomStory, known: Sequence[Known]) -> Iterator[str]:
    """Yield a note for each request id of a room that other rooms have, too."""
    for rid in told.rids:
        rooms = [one.room for one in known if rid in one.rids and one.room != told.room]
        if rooms:
            yield f"rid {rid} is also that of room{'s'[: len(rooms) != 1]} {some(rooms)}: pdctl story {rid} tells all"


def shared(stories: Sequence[RoomStory]) -> tuple[Finding, ...]:
    """Return a finding for each request id that had several rooms at the same time, by these stories."""
    by_rid: dict[str, list[RoomStory]] = {}
    for told in stories:
        for rid in told.rids:
            by_rid.setdefault(rid, []).append(told)
    found = []
    for rid, all_told in by_rid.items():
        meeting = [one for one in all_told if any(one is not other and _meet(one, other) for other in all_told)]
        if meeting:
            lines = [f"room {one.room}: from {one.started[11:23]} on, {_long(one)}" for one in meeting]
            found.append(several_rooms(rid, [one.room for one in meeting], lines))
    return tuple(found)


def _meet(one: RoomStory, other: RoomStory) -> bool:
    first, second = sorted((one, other), key=lambda told: told.started)
    gap = datetime.fromisoformat(second.started) - datetime.fromisoformat(first.started)
    return gap.total_seconds() <= first.span_s


def _long(told: RoomStory) -> str:
    return f"for {seconds(told.span_s)} at least"
