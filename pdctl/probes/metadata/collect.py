"""Gets what ``dump metadata`` judges: rows of live ranks, a second look at what is odd, and recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pdctl.probes.metadata.history import history
from pdctl.probes.metadata.judge import odd
from pdctl.probes.metadata.model import History, RankRows
from pdctl.protocol.metadata import Metadata
from pdctl.targets.client import Client
from pdctl.targets.find import Found, FoundRank

CONFIRM_PAUSE_S = 0.3


def collect(
    found: Found,
    client: Client,
    *,
    ranks: Sequence[FoundRank] | None = None,
    slots: Sequence[int] = (),
    rooms: Sequence[int] = (),
    every: bool = False,
    sums: bool = True,
) -> list[RankRows]:
    """Return the rows of ``ranks`` (all of ``found``'s by default), in their order; recordings of all of ``found``'s.

    Ranks that are not among ``ranks`` come after them, without rows: their recordings may know a room.
    """
    chosen = list(found.ranks if ranks is None else ranks)
    args: dict[str, Any] = {"slots": list(slots), "rooms": list(rooms), "every": every, "sums": sums}
    answers = client.ask(chosen, "metadata", Metadata, args)
    views = []
    for answer in answers:
        past, why = _history(answer.rank, client)
        views.append(
            RankRows(
                identity=answer.rank.identity,
                state=answer.rank.state,
                silence="" if answer.body is not None else answer.reason or answer.rank.state,
                body=answer.body,
                history=past,
                history_off=why,
            )
        )
    views = _confirmed(chosen, views, client)
    asked = {id(rank) for rank in chosen}
    for rank in found.ranks:
        if id(rank) not in asked:
            past, why = _history(rank, client)
            views.append(RankRows(rank.identity, rank.state, "not asked", history=past, history_off=why))
    return views


def _confirmed(chosen: Sequence[FoundRank], views: list[RankRows], client: Client) -> list[RankRows]:
    """Return the views with a second look at the slots that would be findings: one may be between owner and owner."""
    doubtful = {n: slots for n, view in enumerate(views) if (slots := odd(view))}
    if not doubtful:
        return views
    client.pause(CONFIRM_PAUSE_S)
    questions = [(chosen[n], {"slots": slots, "sums": False}) for n, slots in doubtful.items()]
    for n, answer in zip(doubtful, client.ask_each(questions, "metadata", Metadata), strict=True):
        views[n] = replace(views[n], again=answer.body, unconfirmed="" if answer.body is not None else answer.reason)
    return views


def _history(rank: FoundRank, client: Client) -> tuple[History | None, str]:
    if rank.recording is None and not (rank.live and rank.recording_size):
        return None, rank.recording_off or "no recording"
    answer = client.recording(rank)
    return (history(answer.body), "") if answer.body is not None else (None, answer.reason)
