"""Fault sites around a stage, for all engines with SGLang's structure: requests that enter it, heartbeats to the other stage.

Like every site they first make one cheap test (``table.any``). While no fault is in place they do nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pdctl.engines.base import Maker, before
from pdctl.faults.kinds import DUPLICATE_ROOM, SILENCE_HEARTBEAT
from pdctl.faults.table import FaultTable

ENTRY_KINDS = (DUPLICATE_ROOM,)
HEARTBEAT_KINDS = (SILENCE_HEARTBEAT,)

_QUEUES = {
    "prefill": ("prefill.bootstrap", "waiting", "prefill.inflight"),
    "decode": ("decode.prealloc", "decode.pending", "decode.transfer"),
}
"""Queues of a stage in which the engine still knows a request by its room, the newest requests first."""


class Heartbeats:
    """Select the heartbeats of a decode rank that get no answer. Runs on the engine's heartbeat thread."""

    def __init__(self, table: FaultTable) -> None:
        self.table = table
        self._number = 0
        self._address = ""

    def silent(self, address: str) -> bool:
        """Return whether the heartbeat to this prefill server gets no answer.

        A fault silences one server only, the first that is asked while it is in place.
        """
        fault = self.table.offer((SILENCE_HEARTBEAT,), 0)
        if fault is None or (fault.number == self._number and address != self._address):
            return False
        if not self.table.fire(fault, 0):
            return False
        self._number, self._address = fault.number, address
        return True


def rooms(role: str, queue: Callable[[str], Iterable[Any]]) -> Iterator[int]:
    """Yield the rooms of requests that are in a stage, the newest first; ``queue`` returns one of its lists by name.

    All ranks of a stage see the same: requests enter and leave these lists in the same turn on each of them.
    """
    for name in _QUEUES[role]:
        for entry in reversed(list(queue(name))):
            room = getattr(entry, "req", entry).bootstrap_room
            if room:
                yield room


def entry(table: FaultTable, here: Callable[[], Iterator[int]]) -> Maker:
    """Return a maker of the hook at the bound method that takes a new request into a stage.

    ``here`` yields the rooms of the requests that are in it, the newest first.
    """

    def enters(req: Any, *args: Any, **kwargs: Any) -> None:
        if table.any and req.bootstrap_room:
            comes_back = any(value is True for value in (*args, *kwargs.values()))  # retracted: it was here
            if not comes_back:
                _duplicate(table, req, here)

    return before(enters)


def _duplicate(table: FaultTable, req: Any, here: Callable[[], Iterator[int]]) -> None:
    own = req.bootstrap_room
    fault = table.offer((DUPLICATE_ROOM,), own, rid=str(req.rid))
    if fault is None:
        return
    earlier = next((room for room in here() if room != own and fault.value in (0, room)), 0)
    if earlier and table.fire(fault, own):
        req.bootstrap_room = earlier
