"""Gets what ``dump metadata`` judges: rows of live ranks, a second look at what is odd, and recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.probes.metadata.history import history
from pdctl.probes.metadata.model import History, RankRows
from pdctl.probes.metadata.slots import odd
from pdctl.protocol.metadata import Metadata
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
    rows = []
    for answer in answers:
        past, why = _history(answer.rank, later)
        rows.append(
            RankRows(
                identity=answer.rank.identity,
                state=answer.rank.state,
                silence="" if answer.body is not None else answer.reason or answer.rank.state,
                body=answer.body,
                history=past,
                history_off=why,
            )
        )
    rows = _confirmed(view, rows)
    for rank in view.others:
        past, why = _history(rank, later)
        rows.append(RankRows(rank.identity, rank.state, "not asked", history=past, history_off=why))
    return rows


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
