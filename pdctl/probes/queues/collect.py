"""Gets what ``diff-queues`` judges: live answers where there are any, recordings wherever they can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pdctl.probes.processes import now_ns
from pdctl.probes.queues.judge import unconfirmed
from pdctl.probes.queues.model import RankView
from pdctl.probes.standing import standing
from pdctl.protocol.model import Status
from pdctl.protocol.rank import FoundRank, Silence
from pdctl.targets.silence import not_asked

if TYPE_CHECKING:
    from pdctl.probes.view import View
    from pdctl.recording.excerpt import Excerpt, Part, Wanted
    from pdctl.recording.reader import Recording

CONFIRM_PAUSE_S = 0.4


@dataclass(frozen=True)
class Seen:
    """The ranks. confirmed: a difference without recorded rounds has lasted. earlier: dead ranks that were left out."""

    views: list[RankView]
    confirmed: bool = True
    earlier: int = 0


def look(view: View, *, confirm: int, sockets: bool = True, files: bool = True) -> Seen:
    """Return one whole look: what has no rounds is looked at ``confirm`` times. sockets, files: as :func:`collect` has them."""
    views, confirmed = collect(view, sockets=sockets, files=files), True
    if sockets or view.recorded:
        loops = view.loops()
        stand = standing(loops)
        views = [replace(one, stands=n in stand, turn=loops[n].turn) for n, one in enumerate(views)]
    if unconfirmed(views):
        for _ in range(confirm - 1):
            later = again(view, views)
            if view.over:
                confirmed = False  # nobody was asked
                break
            confirmed = unconfirmed(later, views)
            views = later
            if not confirmed:
                break
    return Seen(views, confirmed, view.found.earlier)


def collect(view: View, *, sockets: bool = True, files: bool = True) -> list[RankView]:
    """Return what there is of every rank, in the view's order.

    sockets: ask live ranks (otherwise recordings are all there is). files: read recordings from their files where
    possible, otherwise through the sockets.
    """
    live = [rank for rank in view.ranks if sockets and rank.live]
    statuses = {id(a.rank): a for a in view.status(live)}
    answering = [rank for rank in live if statuses[id(rank)].body is not None]
    snapshots = {id(a.rank): a.body for a in view.queues(answering)}
    views = []
    for rank in view.ranks:
        status = statuses.get(id(rank))
        views.append(
            RankView(
                identity=status.body.identity if status and status.body else rank.identity,
                state=rank.state,
                silence=_silence(rank, status.reason if status else "", sockets=sockets),
                ended=rank.state == "dead" or bool(rank.seen_ns and rank.seen_live is False),
                status=status.body if status else None,
                snapshot=snapshots.get(id(rank)),
            )
        )
    far = [n for n, rank in enumerate(view.ranks) if view.is_far(rank) and views[n].status is not None]
    excerpts, views = _excerpts(view, views, far) if far else ({}, views)
    near = [n for n, one in enumerate(views) if n not in excerpts and not one.recording_off]
    views = _whole(view, views, near, files=files, sockets=sockets)
    if excerpts:
        views = _excerpted(view, views, excerpts)
    return [
        replace(one, now_ns=_now(rank, one.status, one.recording)) for rank, one in zip(view.ranks, views, strict=True)
    ]


def _excerpts(view: View, views: list[RankView], far: Sequence[int]) -> tuple[dict[int, Excerpt], list[RankView]]:
    """Return the excerpts of these ranks' recordings, and the views with the reasons why there are none.

    A rank that has neither does not know excerpts: its whole recording is read.
    """
    from pdctl.probes.queues.excerpts import first_of

    excerpts, views = {}, list(views)
    answers = view.excerpts([(view.ranks[n], first_of(views[n])) for n in far])
    for n, answer in zip(far, answers, strict=True):
        if answer.body is not None:
            excerpts[n] = answer.body
        elif answer.silence is not Silence.NONE:
            views[n] = replace(views[n], recording_off=answer.reason)
    return excerpts, views


def _excerpted(view: View, views: list[RankView], excerpts: dict[int, Excerpt]) -> list[RankView]:
    """Return the views with what is needed of these recordings, or with all where that can't be told."""
    from pdctl.probes.queues.excerpts import Reading

    def ask(wanted: Mapping[int, Wanted]) -> dict[int, Part | None]:
        answers = view.parts([(view.ranks[n], one) for n, one in wanted.items()])
        return {n: answer.body for n, answer in zip(wanted, answers, strict=True)}

    reading = Reading(views, excerpts, ask)
    reading.read()
    found = [replace(one, recording=None) if n in reading.whole else one for n, one in enumerate(reading.views)]
    return _whole(view, found, sorted(reading.whole.intersection(excerpts)), files=True, sockets=True)


def _whole(view: View, views: list[RankView], those: Sequence[int], *, files: bool, sockets: bool) -> list[RankView]:
    """Return the views with the whole recordings of those with these numbers, or why there are none."""
    views = list(views)
    there = [n for n in those if view.has_recording(view.ranks[n])]
    answers = view.recordings([view.ranks[n] for n in there], sockets=sockets, files=files or not sockets)
    read = dict(zip(there, answers, strict=True))
    for n in those:
        if n in read:
            problem = "" if read[n].body is not None else read[n].reason
            views[n] = replace(views[n], recording=read[n].body, recording_off=problem)
        else:
            views[n] = replace(views[n], recording_off=view.ranks[n].recording_off or "no recording")
    return views


def again(view: View, views: Sequence[RankView]) -> list[RankView]:
    """Return the same ranks with fresh snapshots, to see whether a difference lasts."""
    view.pause(CONFIRM_PAUSE_S)
    ranks = [rank for rank, one in zip(view.ranks, views, strict=True) if one.snapshot is not None]
    fresh = {id(a.rank): a.body for a in view.again().queues(ranks)}
    return [
        replace(one, snapshot=fresh.get(id(rank)) or one.snapshot) for rank, one in zip(view.ranks, views, strict=True)
    ]


def flights(view: View, views: Sequence[RankView]) -> list[RankView]:
    """Return the same ranks with the flight recorders of those that answer and have one, or why one was not read in time."""
    ranks = [rank for rank, one in zip(view.ranks, views, strict=True) if one.status is not None]
    answers = {id(answer.rank): answer for answer in view.flights(ranks)}
    fresh = []
    for rank, one in zip(view.ranks, views, strict=True):
        answer = answers.get(id(rank))
        off = answer.reason if answer is not None and answer.silence is Silence.TIMED_OUT else ""
        fresh.append(replace(one, flight=tuple(answer.body or ()) if answer is not None else (), flight_off=off))
    return fresh


def _silence(rank: FoundRank, reason: str, *, sockets: bool) -> str:
    if not sockets:
        return "" if rank.recording is not None else "no recording"
    why = not_asked(rank)
    return reason or (why[1] or rank.state if why is not None and not rank.live else "")


def _now(rank: FoundRank, status: Status | None, recording: Recording | None) -> int | None:
    if status is not None:
        return status.mono_ns
    if recording is None:
        return rank.seen_ns or None
    return now_ns(rank, recording.start_wall_ns, recording.start_mono_ns)
