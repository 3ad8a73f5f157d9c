"""Collect the recordings of all ranks for a trace: from files, or through the sockets of ranks with unreadable files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from pdctl.protocol.rank import Answer
from pdctl.recording import format as f
from pdctl.recording.header import parse_header
from pdctl.recording.source import Source
from pdctl.targets.client import Client
from pdctl.targets.find import Found, FoundRank
from pdctl.trace.manifest import MISSING, PARTIAL, WHOLE, Gap, TraceRank
from pdctl.trace.redact import Names, Redacted
from pdctl.trace.writer import Member

AT_ONCE = 4
_AGAIN_S = (0.002, 0.02, 0.1)
"""Pauses before a live file with torn records is copied again."""


@dataclass(frozen=True)
class Copy:
    """A copy of a rank's recording: ``source``, or None with a ``reason``. The times are those of the end of copying.

    gaps, problems: losses of a followed recording.
    """

    rank: FoundRank
    source: Source | None
    through: str = ""
    reason: str = ""
    wall_ns: int = 0
    mono_ns: int = 0
    gaps: tuple[Gap, ...] = ()
    problems: tuple[str, ...] = ()


def copies(found: Found, client: Client, *, through_socket: bool = False) -> Iterator[Copy]:
    """Yield a copy of every rank's recording, in ``found``'s order. Never raises for a rank's fault.

    Those that have to be fetched are, AT_ONCE at the same time, which share the deadline.
    """
    for begin in range(0, len(found.ranks), AT_ONCE):
        ranks = found.ranks[begin : begin + AT_ONCE]
        client.restart()
        far = [rank for rank in ranks if rank.carries_recording and (through_socket or rank.access is not None)]
        fetched = {id(answer.rank): answer for answer in client.recordings.whole(far)}
        for rank in ranks:
            if rank.recording is None and not rank.carries_recording:
                yield Copy(rank, None, reason=why_none(rank))
            else:
                yield _copy(rank, client, fetched.get(id(rank)), through_socket=through_socket)


def why_none(rank: FoundRank) -> str:
    """Return why ``rank`` has no recording to copy."""
    return rank.recording_off or rank.endpoint_off or "it has no recording"


def _copy(rank: FoundRank, client: Client, fetched: Answer[Source] | None, *, through_socket: bool) -> Copy:
    """Return a copy of a rank's recording. fetched: what came through its socket, None if that was not asked yet."""
    from pdctl.recording.reader import BadRecording, read_from  # loads numpy: only where there is something to read

    had: Copy | None = None
    for pause_s in (*_AGAIN_S, None):
        if fetched is None:
            client.restart()
            answer, through = client.recordings.copy(rank, through_socket=through_socket)
        else:
            answer, through, fetched = fetched, "socket", None
        if answer.body is None:
            return had or Copy(rank, None, through, answer.reason)
        wall, mono = (time.time_ns(), time.monotonic_ns()) if rank.state != "recorded" else (0, rank.seen_ns)
        mono = mono if rank.access is None else 0  # this host's clock says nothing of another's
        try:
            recording = read_from(answer.body)
        except BadRecording as error:
            return Copy(rank, None, through, f"{rank.recording_name or 'its recording'}: {error}")
        had = Copy(rank, answer.body, through, wall_ns=wall, mono_ns=mono)
        torn = any("torn" in problem for problem in recording.problems)
        if pause_s is None or not (rank.live and torn):
            break
        time.sleep(pause_s)
    assert had is not None
    return had


def member(copy: Copy, names: Names | None) -> Member:
    """Return the trace member for a copy. names: replaces names in it, None to keep them."""
    rank = copy.rank
    data, reason, problems = copy.source, copy.reason, [*_problems(copy.source), *copy.problems]
    if copy.gaps:
        problems.append(f"overwritten before they were copied: {_words(copy.gaps)}")
    writer = f.STATE_NAMES.get(parse_header(data.read(0, f.HEADER_SIZE)).state, "unknown") if data is not None else ""
    if data is not None and names is not None:
        try:
            data = Redacted(data, names)
        except ValueError as error:
            data, reason = None, f"names can't be taken out of it: {error}"
    kept = MISSING if data is None else PARTIAL if problems else WHOLE
    said = names.words if names is not None else str
    who = names.who(rank.identity) if names is not None else rank.identity
    return Member(
        TraceRank(
            rank=who.label,
            state=rank.state,
            kept=kept,
            identity=who,
            reason=said(reason or (problems[0] if problems else "")),
            writer=writer,
            through=copy.through if data is not None else "",
            taken_wall_ns=copy.wall_ns,
            taken_mono_ns=copy.mono_ns,
            gaps=copy.gaps if data is not None else (),
            problems=tuple(map(said, problems)),
        ),
        data,
    )


def _words(gaps: tuple[Gap, ...]) -> str:
    lost: dict[str, int] = {}
    for gap in gaps:
        lost[gap.ring] = lost.get(gap.ring, 0) + gap.lost
    names = {"rounds": "runs of rounds", "items": "lists of requests", "events": "events"}
    return ", ".join(f"{count} {names[ring]}" for ring, count in lost.items())


def _problems(source: Source | None) -> list[str]:
    if source is None:
        return []
    from pdctl.recording.reader import read_from

    return read_from(source).problems
