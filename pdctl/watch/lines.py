"""How a change is told: one line with the time of the wall."""

from __future__ import annotations

import time

from pdctl.protocol import durations
from pdctl.targets import nodeset
from pdctl.watch.incidents import BEGAN, CAUSE, ENDED, OFTEN, OVER, Change

_WORDS = {BEGAN: "ALARM", CAUSE: "CAUSE", OVER: "over", ENDED: "ended", OFTEN: "often"}
_MOST_ROOMS = 5


def line(change: Change) -> str:
    """Return ``2026-11-30T01:50:00+0000 ALARM #1 PD101 …: what was found, where, and the next step``."""
    at = _time(change.at_wall_ns)
    if not change.incident:
        more = f"; they changed {change.times} times in the last minute" if change.times else ""
        return f"{at} {change.summary}{more}"
    head = f"{at} {_WORDS[change.change]} #{change.incident} {change.code}"
    if change.change in (BEGAN, CAUSE):
        more = f" Next: {change.next_step}" if change.next_step else ""
        return f"{head}{_where(change)}: {change.summary}{more}"
    lasted = durations.seconds(max(0.0, (change.at_wall_ns - change.since_wall_ns) / 1e9))
    if change.change == OFTEN:
        return f"{head}: it began or ended {change.times} times more; {change.summary}"
    said = "the ranks it was about are gone" if change.change == ENDED else "it is not seen any more"
    return f"{head}{_where(change)}: {said}; it stood for {lasted}"


def _where(change: Change) -> str:
    parts = [change.group or nodeset.join(change.ranks)]
    if change.round >= 0:
        parts.append(f"round {change.round} of {change.queue}")
    if change.rooms:
        more = f" and {len(change.rooms) - _MOST_ROOMS} more" if len(change.rooms) > _MOST_ROOMS else ""
        parts.append(f"room{'s'[: len(change.rooms) != 1]} {', '.join(map(str, change.rooms[:_MOST_ROOMS]))}{more}")
    if change.count > 1:
        parts.append(f"{change.count} times")
    said = " · ".join(part for part in parts if part)
    return f" {said}" if said else ""


def _time(wall_ns: int) -> str:
    at = time.localtime(wall_ns / 1e9)
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", at)
