"""Looks at the main threads of all ranks, several times, and at what silent ranks left behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pdctl.probes.stacks.deadlock import CONFIRM_S
from pdctl.probes.stacks.judge import anything_stuck, worth_a_longer_look
from pdctl.probes.stacks.model import RankLooks
from pdctl.probes.stacks.outside import dump
from pdctl.protocol.model import FlightEntry, Status
from pdctl.protocol.rank import Answer
from pdctl.targets.client import Client, recording_file
from pdctl.targets.find import Found, FoundRank

LOOKS = 3
EVERY_S = 0.2


def collect(
    found: Found,
    client: Client,
    *,
    looks: int = LOOKS,
    every_s: float = EVERY_S,
    flights: bool | None = None,
    outside: bool = False,
) -> list[RankLooks]:
    """Return the looks at every rank, in ``found``'s order, within the client's deadline.

    looks: how many, at least; ``every_s`` seconds apart. Where ranks stand in a way that is a finding if it lasts, more
    are taken, for CONFIRM_S. A rank that gave no answer once is not asked again. flights: read flight recorders; None:
    where a rank stands. outside: let py-spy read the stacks of ranks that don't answer, where it is there.
    """
    views = [RankLooks(rank.identity, rank.state) for rank in found.ranks]
    views = _look(found, client, views)
    taken, begun = 1, time.monotonic()
    while taken < looks or (looks > 1 and worth_a_longer_look(views) and time.monotonic() - begun < 2 * CONFIRM_S):
        pause = client.deadline.left(every_s)
        if pause < every_s:
            break  # what was seen so far is better than nothing
        time.sleep(pause)
        views = _look(found, client, views)
        taken += 1
    if flights or (flights is None and anything_stuck(views)):
        views = _flights(found, client, views)
    return [
        _left_behind(rank, view, client, outside=outside) if view.silence else view
        for rank, view in zip(found.ranks, views, strict=True)
    ]


def _look(found: Found, client: Client, views: Sequence[RankLooks]) -> list[RankLooks]:
    ranks = [rank for rank, view in zip(found.ranks, views, strict=True) if not view.silence]
    answers = {id(answer.rank): answer for answer in client.ask(ranks, "status", Status)}
    return [
        view if id(rank) not in answers else _looked(view, answers[id(rank)])
        for rank, view in zip(found.ranks, views, strict=True)
    ]


def _looked(view: RankLooks, answer: Answer[Status]) -> RankLooks:
    if answer.body is None:
        return replace(view, silence=answer.reason or answer.silence.value or view.state)
    return replace(view, identity=answer.body.identity, looks=(*view.looks, answer.body))


def _flights(found: Found, client: Client, views: Sequence[RankLooks]) -> list[RankLooks]:
    ranks = [rank for rank, view in zip(found.ranks, views, strict=True) if view.looks and not view.silence]
    answers = {id(answer.rank): answer for answer in client.ask(ranks, "flight_recorder", list[FlightEntry])}
    fresh = []
    for rank, view in zip(found.ranks, views, strict=True):
        answer = answers.get(id(rank))
        if answer is None:
            fresh.append(view)
        else:
            off = "" if answer.body is not None else answer.reason
            fresh.append(replace(view, flight=tuple(answer.body or ()), flight_off=off))
    return fresh


def _left_behind(rank: FoundRank, view: RankLooks, client: Client, *, outside: bool) -> RankLooks:
    """Return the view with what a rank that does not answer left behind: its recording, its stack from outside."""
    stack = dump(rank, client.deadline.left(2.0)) if outside and not view.looks else ()
    return replace(view, recording=recording_file(rank).body, outside=stack)


__all__ = ["EVERY_S", "LOOKS", "collect"]
