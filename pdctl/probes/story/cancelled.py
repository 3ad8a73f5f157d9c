"""What logs prove besides the lines of a story: requests that were cancelled in front and went on behind. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pdctl.probes.story.loglines import Names, linked, parse
from pdctl.probes.story.model import Entry, RankLine, RoomStory
from pdctl.protocol.durations import seconds
from pdctl.report.findings import Finding, finding
from pdctl.targets.logtext import LogText

LONG_S = 10.0
"""Engines look every 4 s whether a client is gone, and clocks of hosts that are set differ by less than the rest."""
_ALIVE = {"enqueue", "allocation", "handshake", "poll", "held", "missing", "landed", "decision", "last"}
_OVER = {"Failed", "failed", "aborted"}


def left_running(
    stories: Iterable[RoomStory], logs: Iterable[LogText], rooms_of: Mapping[str, int]
) -> tuple[Finding, ...]:
    """Return a finding for each room that a log says was cancelled, and that decode went on with as if it were not.

    rooms_of: how many rooms recordings have for each request id. Where an id has several, here or by ``logs``, it is not known
    whose a line is that names it: no finding.
    """
    _, rooms = linked(line for log in logs for line in log.lines)
    single = [one for one in stories if rooms <= {one.room} and all(rooms_of.get(rid, 1) == 1 for rid in one.rids)]
    return tuple(found for told in single for found in _left_running(told))


def _left_running(told: RoomStory) -> Iterator[Finding]:
    sources = {log.name: log for log in told.logs}
    decode = {line.rank: line for line in told.ranks if line.role == "decode" and line.saw}
    own = [e for e in told.entries if e.rank in decode]
    came = min((e.t_s for e in own), default=0.0)  # what was cancelled before was another one of that name
    cancels = [e for e in told.entries if e.rank in sources and e.value == "cancelled" and e.t_s >= came]
    if not cancels or not own or any(e.kind in ("abort", "failure") or e.value in _OVER for e in own):
        return
    if any(gap.startswith(f"{rank}: ") for gap in told.gaps for rank in decode):
        return  # an abort may be in what is lost
    cancel = cancels[0]
    went_on = {rank: _last(own, line) - cancel.t_s - sources[cancel.rank].every_s for rank, line in decode.items()}
    rank = max(went_on, key=lambda one: went_on[one])
    if went_on[rank] < LONG_S:
        return
    last = max((e for e in own if e.rank == rank and e.kind in _ALIVE), key=_end)
    gone = ", ".join(told.rids) or "its request"
    yield finding(
        "PD149",
        f"room {told.room} was cancelled at {cancel.time[11:19]} by {cancel.rank}, and {rank} went on with it for"
        f" {seconds(went_on[rank])} at least.",
        rooms=(told.room,),
        ranks=tuple(sorted(went_on)),
        evidence=(
            f"{cancel.rank}: {cancel.text}",
            f"{rank}, {seconds(went_on[rank])} later: {last.text}",
            f"no abort of {gone} reached a decode rank, by their recordings",
            f"by wall clocks: it is wrong only if those of the log and of {rank} differ by more than {seconds(went_on[rank])}",
        ),
    )


def _last(own: Sequence[Entry], line: RankLine) -> float:
    """Return until when a rank had the room at least, in seconds of the story."""
    return max((_end(e) for e in own if e.rank == line.rank and e.kind in _ALIVE), default=0.0) - (
        line.uncertainty_s or 0
    )


def _end(entry: Entry) -> float:
    return entry.t_s if entry.until_s is None else entry.until_s


def named_by(asked: str, logs: Iterable[LogText]) -> Iterator[str]:
    """Yield what each log says of a request that no recording has."""
    names = Names([int(asked)] if asked.isascii() and asked.isdigit() and len(asked) <= 20 else [], [asked])
    for log in logs:
        lines = [parse(raw) for raw in log.lines if names.in_line(raw)]
        if lines:
            times = f"{len(lines)} times, at last" if len(lines) > 1 else "once"
            yield f"{log.path.name} names it {times}: {lines[-1].quoted or lines[-1].says}"
        else:
            unread = log.why_not or log.unread
            yield f"{log.path.name} does not name it" + (f" (not read: {unread})" if unread else "")
