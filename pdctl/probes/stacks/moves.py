"""Tells a rank that stands from one that moves, by several looks at it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pdctl.probes.stacks.model import RankLooks
from pdctl.protocol.model import Status

STUCK, MOVING = "stuck", "moving"
IDLE = "idle"
"""Nothing to do: one rank of the group waits for requests, the others wait to be told of them."""
MIXED = "mixed"
"""Some ranks are stuck, others move."""


def turned(view: RankLooks) -> bool:
    """Return whether the rank got on between its looks: a turn, a round or a collective in any of its groups."""
    first = view.looks[0] if view.looks else None
    return any(_progress(look) != _progress(first) for look in view.looks)


def moves(view: RankLooks) -> str:
    """Return STUCK when the whole stack and all counters were the same in every look, MOVING, or "" for too few looks."""
    if len(view.looks) < 2:
        return ""
    first = view.looks[0]
    same = all(look.stack == first.stack and look.call == first.call for look in view.looks)
    return STUCK if same and not turned(view) else MOVING


def idle(views: Sequence[RankLooks]) -> bool:
    """Return whether a group has nothing to do: a rank is in the engine's own idle step, all others in recv_requests."""
    inside = [view.last.call.inside if view.last is not None else "" for view in views]
    return "idle" in inside and set(inside) <= {"idle", "recv_requests"}


def stood_s(view: RankLooks) -> float:
    """Return over how many seconds the rank was seen stuck, 0 when it moves."""
    if moves(view) != STUCK:
        return 0.0
    return max(0.0, (view.looks[-1].mono_ns - view.looks[0].mono_ns) / 1e9)


def common(view: RankLooks) -> int:
    """Return how many frames, from the outermost on, were there in every look; 0 when the rank got on between them."""
    if turned(view):
        return 0
    stacks = [[(f.function, f.file) for f in reversed(look.stack)] for look in view.looks]
    depth = 0
    for frames in zip(*stacks, strict=False):
        if len(set(frames)) > 1:
            break
        depth += 1
    return depth


def _progress(status: Status | None) -> object:
    return None if status is None else (status.ticks, status.rounds, status.counts)
