"""Code shared by all readers of engines with SGLang's structure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pdctl.engines.base import Maker, after, before
from pdctl.protocol.model import EventKind, KVPoll
from pdctl.protocol.notes import SCHEDULER_ENDED

LEAVES: dict[str, frozenset[int]] = {
    "prefill.bootstrap": frozenset({KVPoll.FAILED, KVPoll.WAITING_FOR_INPUT}),
    "prefill.inflight": frozenset({KVPoll.FAILED, KVPoll.SUCCESS}),
    "decode.prealloc": frozenset({KVPoll.FAILED, KVPoll.WAITING_FOR_INPUT}),
    "decode.transfer": frozenset({KVPoll.FAILED, KVPoll.SUCCESS}),
}
"""Reduced polls with which a request may leave a polled queue."""

_HANDSHAKE = frozenset({KVPoll.FAILED, KVPoll.BOOTSTRAPPING, KVPoll.WAITING_FOR_INPUT})
_TRANSFER = frozenset({KVPoll.FAILED, KVPoll.WAITING_FOR_INPUT, KVPoll.TRANSFERRING, KVPoll.SUCCESS})

POLLED_STATES: dict[str, frozenset[int]] = {
    "prefill.bootstrap": _HANDSHAKE,
    "prefill.inflight": _TRANSFER,
    "decode.prealloc": _HANDSHAKE,
    "decode.transfer": _TRANSFER | {KVPoll.BOOTSTRAPPING},
}
"""Reduced polls that the engine expects in a queue; it raises on others (SGLang 0.5.10.post1 to 0.5.23)."""


def table_of(table: Any) -> Any:
    """Return a table that is keyed by rooms, as a dict.

    With pipeline stages SGLang keeps its statuses in a store that tells stage 0 of each change (since 0.5.22); its own part is
    a dict in it.
    """
    return getattr(table, "_local_map", table)


class _Agreed:
    """What stage 0 of a pipeline goes by: of each room the least of all stages' statuses, as it was told them."""

    def __init__(self, mine: Any, others: list[Any]) -> None:
        self._mine = mine
        self._others = others

    def get(self, room: int, otherwise: Any = None) -> Any:
        """Return the status of a room. One that a stage has none of yet is in its handshake."""
        mine = self._mine.get(room)
        if mine is None:
            return otherwise
        told = [other.get(room) for other in self._others]
        return KVPoll.BOOTSTRAPPING if None in told else min(mine, *told)


def statuses_of(table: Any) -> Any:
    """Return an object whose ``get`` gives the status that this rank's polls go by, None without a table.

    Of a later stage it is its own. Stage 0 goes by those of all of them (``check_status_pp_consensus``).
    """
    told, stages = getattr(table, "_peer_map", None), getattr(table, "_pp_size", 1)
    if told is None or getattr(table, "_pp_rank", 0) != 0 or stages < 2:
        return table_of(table)
    return _Agreed(table_of(table), [told.get(stage, {}) for stage in range(1, stages)])


def group_number(group: Any) -> int:
    """Return the number PyTorch's flight recorder knows a group by (its name is that number), -1 for another name."""
    name = str(getattr(group, "group_name", ""))
    return int(name) if name.isdecimal() else -1


def failure(event: Callable[..., None]) -> Maker:
    """Return the hook of a manager's ``record_failure(…, room, reason)``. It keeps the reason; the engine soon forgets it."""

    def records(_: object, *args: Any, **kwargs: Any) -> None:
        room, reason = [*args, *kwargs.values()][-2:]
        event(EventKind.FAILURE, room=room, text=str(reason))

    return after(records)


def ending(event: Callable[..., None]) -> Maker:
    """Return the hook of what runs once when an exception ends the scheduler: ``sys.excepthook``, or a function that is called
    while the exception is handled. It keeps the type and the place; the exception's text may hold what users asked.
    """

    def ends(*args: Any, **_: Any) -> None:
        error = args[1] if len(args) > 1 else sys.exc_info()[1]
        if isinstance(error, Exception):
            where = raised_in(error.__traceback__)
            event(EventKind.NOTE, text=f"{SCHEDULER_ENDED}: {type(error).__name__}{where}")

    return before(ends)


def raised_in(at: TracebackType | None) -> str:
    """Return where an exception was raised, from its traceback: its text may hold what users asked."""
    if at is None:
        return ""
    while at.tb_next is not None:
        at = at.tb_next
    code = at.tb_frame.f_code
    return f" in {code.co_name}, {code.co_filename.rpartition('/')[2]}:{at.tb_lineno}"
