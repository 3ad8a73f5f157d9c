"""What ends a request that waits: a time-out, the last attempt at a bootstrap server, or nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pdctl.protocol.model import UNKNOWN
from pdctl.protocol.requests import NOT_KNOWN, Cover, Lookup, RoomEntry

NOTHING = "nothing"


class Ends(msgspec.Struct, frozen=True, gc=False):
    """What ends the requests of a queue and state. name: its variable, ``nothing`` or ``unknown``; limit_s None without one.

    running: whether their clock is; note: what there is to say of it. left: seconds left, where no clock of the request tells.
    """

    name: str
    limit_s: float | None
    running: bool = False
    note: str = ""
    left: float | None = None

    def left_s(self, entry: RoomEntry) -> float | None:
        """Return the seconds that a request has left, None where nothing ends it."""
        if self.left is not None:
            return self.left
        return self.limit_s - entry.clock_s if self.running and self.limit_s is not None else None


def attempts(lookup: Lookup | None, address: str) -> Ends | None:
    """Return what ends requests whose bootstrap server is asked in vain: decode fails them after its last attempt."""
    if lookup is None or lookup.left_s is None:
        return None
    name = f"attempt {lookup.most} at the bootstrap server {address} (now {lookup.attempts})"
    return Ends(name, lookup.most * lookup.every_s, left=lookup.left_s)


class Covers:
    """What ends a request, by queue, state and whether a clock runs for it."""

    def __init__(self, covers: Sequence[Cover]) -> None:
        self._by = {(cover.queue, cover.state): cover for cover in covers}
        self._known: dict[tuple[str, int, bool], Ends] = {}

    def of(self, entry: RoomEntry) -> Ends:
        """Return what ends this request."""
        running = entry.clock_s >= 0
        key = (entry.queue, entry.state, running)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(entry.queue, entry.state, running)
        return found

    def _find(self, queue: str, state: int, running: bool) -> Ends:
        exact = self._by.get((queue, state)) if state != UNKNOWN else None
        if exact is not None and not running:
            return Ends(NOTHING, None, note=f"{exact.name} starts {exact.clock}")
        cover = exact or self._by.get((queue, UNKNOWN))
        if cover is None:
            return Ends(NOTHING, None)
        if cover.limit_s == NOT_KNOWN:
            return Ends(cover.name or "unknown", None)
        limited = cover.limit_s > 0
        return Ends(cover.name if limited else NOTHING, cover.limit_s if limited else None, exact is not None)
