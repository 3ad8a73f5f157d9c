"""Looks at the main threads of all ranks, several times, and at what silent ranks left behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.probes.stacks.deadlock import CONFIRM_S
from pdctl.probes.stacks.judge import anything_stuck, worth_a_longer_look
from pdctl.probes.stacks.model import RankLooks
from pdctl.protocol.model import Status
from pdctl.protocol.rank import Answer, FoundRank

if TYPE_CHECKING:
    from pdctl.probes.view import View

LOOKS = 3
EVERY_S = 0.2


def collect(
    view: View, *, looks: int = LOOKS, every_s: float = EVERY_S, flights: bool | None = None, outside: bool = False
) -> list[RankLooks]:
    """Return the looks at every rank, in the view's order, within its deadline.

    looks: how many, at least; ``every_s`` seconds apart. Where ranks stand in a way that is a finding if it lasts, more
    are taken, for CONFIRM_S. A rank that gave no answer once is not asked again. flights: read flight recorders; None:
    where a rank stands. outside: let py-spy read the stacks of ranks that don't answer, where it is there.
    """
    waited_s = view.since("status")
    seen = _look(view, [RankLooks(rank.identity, rank.state) for rank in view.ranks])
    taken, begun = 1, time.monotonic()
    while taken < looks or (looks > 1 and worth_a_longer_look(seen) and time.monotonic() - begun < 2 * CONFIRM_S):
        if view.left(every_s) < every_s:
            break  # what was seen so far is better than nothing
        view.pause(max(0.0, every_s - waited_s))
        waited_s = 0.0
        seen = _look(view.again(), seen)
        taken += 1
    if flights or (flights is None and anything_stuck(seen)):
        seen = _flights(view, seen)
    turns = view.turns()
    seen = [replace(one, in_kernel=turn.halted * turn.in_kernel) for one, turn in zip(seen, turns, strict=True)]
    return [
        _left_behind(rank, one, view, outside=outside) if one.silence else one
        for rank, one in zip(view.ranks, seen, strict=True)
    ]


def _look(view: View, seen: Sequence[RankLooks]) -> list[RankLooks]:
    ranks = [rank for rank, one in zip(view.ranks, seen, strict=True) if not one.silence]
    answers = {id(answer.rank): answer for answer in view.status(ranks)}
    return [
        one if id(rank) not in answers else _looked(one, answers[id(rank)])
        for rank, one in zip(view.ranks, seen, strict=True)
    ]


def _looked(one: RankLooks, answer: Answer[Status]) -> RankLooks:
    if answer.body is None:
        return replace(one, silence=answer.reason or answer.silence.value or one.state)
    return replace(one, identity=answer.body.identity, looks=(*one.looks, answer.body))


def _flights(view: View, seen: Sequence[RankLooks]) -> list[RankLooks]:
    ranks = [rank for rank, one in zip(view.ranks, seen, strict=True) if one.looks and not one.silence]
    answers = {id(answer.rank): answer for answer in view.flights(ranks)}
    fresh = []
    for rank, one in zip(view.ranks, seen, strict=True):
        answer = answers.get(id(rank))
        if answer is None:
            fresh.append(one)
        else:
            off = "" if answer.body is not None else answer.reason
            fresh.append(replace(one, flight=tuple(answer.body or ()), flight_off=off))
    return fresh


def _left_behind(rank: FoundRank, one: RankLooks, view: View, *, outside: bool) -> RankLooks:
    """Return the looks with what a rank that does not answer left behind: its recording, its stack from outside."""
    stack = view.stack_from_outside(rank) if outside and not one.looks else ()
    return replace(one, recording=view.recording(rank, sockets=False).body, outside=stack)
