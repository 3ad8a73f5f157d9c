"""``pdctl watch``: looks, tells what has changed, and hands it to the actions; until it is told to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pdctl.protocol.errors import Exit
from pdctl.watch.incidents import BEGAN, CAUSE, Change, Incidents

if TYPE_CHECKING:
    from pdctl.watch.actions import Action
    from pdctl.watch.eye import Eye
    from pdctl.watch.telling import Teller


def watch(
    eye: Eye,
    teller: Teller,
    show: Callable[[Change], str],
    actions: Sequence[Action],
    over: threading.Event,
    *,
    for_s: float | None = None,
    until_finding: bool = False,
) -> Exit:
    """Watch until ``over``, for ``for_s`` seconds, or to the first alarm; return what the command exits with.

    FINDING where an alarm stands at the end, or was waited for; else UNREACHABLE where there was no rank at all: a host that is
    not reached is none. Where nobody reads standard output any more it goes on for its actions, and ends without any.
    """
    incidents, there, alarmed = Incidents(), False, False
    end = None if for_s is None else time.monotonic() + for_s
    while not over.is_set() and (end is None or time.monotonic() < end):
        state = eye.next()
        there = there or any(rank.there for rank in state.ranks)
        for change in incidents.see(state):
            teller.say(show(change))
            if change.incident:
                alarmed = alarmed or change.change in (BEGAN, CAUSE)
                for action in actions:
                    action.take(change)
        teller.look()
        if (teller.closed and not actions) or (until_finding and alarmed):
            break
    if incidents.standing or (until_finding and alarmed):
        return Exit.FINDING
    return Exit.CLEAN if there else Exit.UNREACHABLE
