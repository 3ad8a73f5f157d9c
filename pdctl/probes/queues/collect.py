"""Gets what ``diff-queues`` judges: live answers where there are any, recordings wherever they can be read."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.probes.queues.model import RankView
from pdctl.protocol.model import FlightEntry, Snapshot, Status
from pdctl.targets.client import Client, recording_file
from pdctl.targets.find import Found, FoundRank

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording

CONFIRM_PAUSE_S = 0.4


def collect(found: Found, client: Client, *, sockets: bool = True, files: bool = True) -> list[RankView]:
    """Return a view of every rank, in ``found``'s order.

    sockets: ask live ranks (otherwise recordings are all there is). files: read recordings from their files where
    possible, otherwise through the sockets.
    """
    live = [rank for rank in found.ranks if sockets and rank.live]
    statuses = {id(a.rank): a for a in client.ask(live, "status", Status)} if live else {}
    answering = [rank for rank in live if statuses[id(rank)].body is not None]
    snapshots = {id(a.rank): a.body for a in client.ask(answering, "queues", Snapshot)} if answering else {}
    views = []
    for rank in found.ranks:
        status = statuses.get(id(rank))
        recording, problem = _recording(rank, client, files=files, sockets=sockets)
        views.append(
            RankView(
                identity=status.body.identity if status and status.body else rank.identity,
                state=rank.state,
                silence=_silence(rank, status.reason if status else "", sockets=sockets),
                agent_off=rank.agent_off,
                ended=rank.state == "dead" or bool(rank.seen_ns and not rank.seen_live),
                status=status.body if status else None,
                snapshot=snapshots.get(id(rank)),
                recording=recording,
                recording_off=problem,
                now_ns=_now(rank, status.body if status else None, recording),
            )
        )
    return views


def again(found: Found, client: Client, views: Sequence[RankView]) -> list[RankView]:
    """Return the same views with fresh snapshots, to see whether a difference lasts."""
    client.pause(CONFIRM_PAUSE_S)
    ranks = [rank for rank, view in zip(found.ranks, views, strict=True) if view.snapshot is not None]
    fresh = {id(a.rank): a.body for a in client.ask(ranks, "queues", Snapshot)}
    return [
        replace(view, snapshot=fresh.get(id(rank)) or view.snapshot)
        for rank, view in zip(found.ranks, views, strict=True)
    ]


def flights(found: Found, client: Client, views: Sequence[RankView]) -> list[RankView]:
    """Return the same views with the flight recorders of the ranks that answer and have one."""
    ranks = [rank for rank, view in zip(found.ranks, views, strict=True) if view.status is not None]
    fresh = {id(a.rank): a.body for a in client.ask(ranks, "flight_recorder", list[FlightEntry])}
    return [
        replace(view, flight=tuple(fresh.get(id(rank)) or ())) for rank, view in zip(found.ranks, views, strict=True)
    ]


def _silence(rank: FoundRank, reason: str, *, sockets: bool) -> str:
    if not sockets:
        return "" if rank.recording is not None else "no recording"
    return reason or ("" if rank.live else rank.silent_why or rank.state)


def _recording(rank: FoundRank, client: Client, *, files: bool, sockets: bool) -> tuple[Recording | None, str]:
    if rank.recording is None and not (rank.live and rank.recording_size):
        return None, rank.recording_off or "no recording"
    answer = client.recording(rank, through_socket=not files) if sockets else recording_file(rank)
    return answer.body, "" if answer.body is not None else answer.reason


def _now(rank: FoundRank, status: Status | None, recording: Recording | None) -> int | None:
    if status is not None:
        return status.mono_ns
    if rank.seen_ns:
        return rank.seen_ns
    here = rank.identity.host == socket.gethostname()
    now = time.monotonic_ns()
    if here and recording is not None and recording.start_mono_ns <= now and _same_boot(recording):
        return now
    return None


def _same_boot(recording: Recording) -> bool:
    # Both clocks started together: their difference is the same now as when the recording began, give or take a step.
    then = recording.start_wall_ns - recording.start_mono_ns
    return abs(time.time_ns() - time.monotonic_ns() - then) < 60_000_000_000


__all__ = ["again", "collect"]
