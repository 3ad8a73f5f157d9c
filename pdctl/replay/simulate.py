"""Simulate a plan in one process, to find the round in which its ranks part. Pure; this is not the real execution."""

from __future__ import annotations

from typing import NamedTuple

from pdctl.protocol.model import Action, KVPoll
from pdctl.replay.plan import HAS_ROWS, Plan


class Parting(NamedTuple):
    """The first round after which the ranks' queues differ, and the queues then, as requests."""

    round: int
    lists: tuple[tuple[int, ...], ...]


def parting(plan: Plan, *, gate: bool) -> Parting | None:
    """Return where the ranks part under the rule that :mod:`pdctl.replay.worker` executes, None where they do not."""
    size = len(plan.ranks)
    lists: list[list[int]] = [[] for _ in range(size)]
    polls: list[dict[int, int]] = [{} for _ in range(size)]
    rows: list[dict[int, int]] = [{} for _ in range(size)]
    has_rows = plan.queue == HAS_ROWS
    for number in range(plan.rounds + plan.tail):
        steps = [rank.steps.get(number) for rank in plan.ranks]
        for place, step in enumerate(steps):
            if step is not None:
                polls[place].update(step.polls)
                rows[place].update((plan.requests[r].slots[place], room) for r, room in step.rows)
                lists[place] = [r for r in lists[place] if r not in step.lost] + step.arrive
        if len({tuple(of) for of in lists}) > 1:
            return Parting(number, tuple(map(tuple, lists)))
        went: list[list[int]] = []
        for request in lists[0]:
            said = [_poll(plan, request, place, polls, rows, gate and has_rows) for place in range(size)]
            reduced = min(said)
            went.append([place for place in range(size) if _leaves(plan, request, place, reduced, rows, gate)])
        for request, places in zip(list(lists[0]), went, strict=True):
            for place in range(size):
                step = steps[place]
                acted = step is not None and any(
                    r == request and (not plan.decides or action == Action.MOVED) for r, action in step.acts
                )
                if place in places or acted:
                    lists[place].remove(request)
                    if gate and has_rows:
                        rows[place].pop(plan.requests[request].slots[place], None)
        if len({tuple(of) for of in lists}) > 1:
            return Parting(number, tuple(map(tuple, lists)))
    return None


def _poll(
    plan: Plan, request: int, place: int, polls: list[dict[int, int]], rows: list[dict[int, int]], gate: bool
) -> int:
    poll = polls[place].get(request, 0)
    landed = rows[place].get(plan.requests[request].slots[place], 0)
    waits = gate and poll == KVPoll.SUCCESS and not landed and plan.requests[request].room
    return int(KVPoll.TRANSFERRING) if waits else poll


def _leaves(plan: Plan, request: int, place: int, reduced: int, rows: list[dict[int, int]], gate: bool) -> bool:
    if not plan.decides or reduced not in (KVPoll.SUCCESS, KVPoll.FAILED):
        return False
    landed = rows[place].get(plan.requests[request].slots[place], 0)
    return reduced == KVPoll.FAILED or plan.queue != HAS_ROWS or landed != 0 or gate or not plan.requests[request].room
