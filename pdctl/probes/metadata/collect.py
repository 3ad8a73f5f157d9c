"""Gets what ``dump metadata`` judges: rows of live ranks, a second look at what is odd, and recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.probes.metadata.history import MAX_RUNS, history
from pdctl.probes.metadata.model import History, RankRows
from pdctl.probes.metadata.slots import odd
from pdctl.protocol.metadata import Metadata
from pdctl.protocol.model import EventKind
from pdctl.protocol.rank import FoundRank

if TYPE_CHECKING:
    from pdctl.probes.view import View

CONFIRM_PAUSE_S = 0.3


def collect(
    view: View, *, slots: Sequence[int] = (), rooms: Sequence[int] = (), every: bool = False, sums: bool = True
) -> list[RankRows]:
    """Return the rows of the view's ranks, in its order, and what their recordings tell.

    Ranks that were not chosen come after them, without rows: their recordings may know a room.
    """
    answers = view.metadata(slots=slots, rooms=rooms, every=every, sums=sums)
    later = view.again()  # recordings are read after the rows: what has been decided by then is in them
    rows = [
        RankRows(
            identity=answer.rank.identity,
            state=answer.rank.state,
            silence="" if answer.body is not None else answer.reason or answer.rank.state,
            body=answer.body,
        )
        for answer in answers
    ]
    doubted = every or bool(slots or rooms) or any(odd(one) for one in rows)
    pasts = _histories((*view.ranks, *view.others), later, quick=not doubted)
    rows = _confirmed(view, rows)
    rows += [RankRows(rank.identity, rank.state, "not asked") for rank in view.others]
    return [replace(one, history=past, history_off=why) for one, (past, why) in zip(rows, pasts, strict=True)]


def _histories(ranks: Sequence[FoundRank], view: View, *, quick: bool) -> list[tuple[History | None, str]]:
    """Return what recordings tell of these ranks.

    quick: no slot needs an explanation. Then of recordings on other hosts only what is wrong is read, and the whole of them
    only if anything is.
    """
    quiet = _quiet([rank for rank in ranks if view.is_far(rank)], view) if quick else {}
    found = {id(rank): _history(rank, view) for rank in ranks if id(rank) not in quiet}
    pasts = [*quiet.values(), *(past for past, _ in found.values() if past is not None)]
    if any(past.mismatches or past.wrong_kv for past in pasts):
        found.update((id(rank), _history(rank, view)) for rank in ranks if id(rank) in quiet)
        quiet = {}
    return [(quiet[id(rank)], "") if id(rank) in quiet else found[id(rank)] for rank in ranks]


def _quiet(ranks: Sequence[FoundRank], view: View) -> dict[int, History]:
    """Return what is wrong by the recordings of these ranks, without what else they tell, by the id of the rank."""
    from pdctl.recording.excerpt import Wanted  # loads numpy

    wanted = Wanted(newest=1, foreign=MAX_RUNS, kinds=[int(EventKind.FAILURE)])
    answers = view.excerpts([(rank, wanted) for rank in ranks])
    pasts = {id(answer.rank): history(answer.body.recording) for answer in answers if answer.body is not None}
    return {rank: replace(past, whole=False) for rank, past in pasts.items()}


def _confirmed(view: View, rows: list[RankRows]) -> list[RankRows]:
    """Return the rows with a second look at the slots that would be findings: one may be between owner and owner."""
    doubtful = {n: slots for n, one in enumerate(rows) if (slots := odd(one))}
    if not doubtful:
        return rows
    view.pause(CONFIRM_PAUSE_S)
    questions = [(view.ranks[n], {"slots": slots, "sums": False}) for n, slots in doubtful.items()]
    for n, answer in zip(doubtful, view.again().ask_each(questions, "metadata", Metadata), strict=True):
        rows[n] = replace(rows[n], again=answer.body, unconfirmed="" if answer.body is not None else answer.reason)
    return rows


def _history(rank: FoundRank, view: View) -> tuple[History | None, str]:
    if not view.has_recording(rank):
        return None, rank.recording_off or "no recording"
    answer = view.recording(rank)
    return (history(answer.body), "") if answer.body is not None else (None, answer.reason)
