"""Code shared by all readers of engines with SGLang's structure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pdctl.protocol.model import EventKind, KVPoll
from pdctl.protocol.notes import SCHEDULER_ENDED

if TYPE_CHECKING:
    from pdctl.engines.base import Maker, Site

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


def group_number(group: Any) -> int:
    """Return the number PyTorch's flight recorder knows a group by (its name is that number), -1 for another name."""
    name = str(getattr(group, "group_name", ""))
    return int(name) if name.isdecimal() else -1


def failure(event: Callable[..., None]) -> Maker:
    """Return the hook of a manager's ``record_failure(…, room, reason)``. It keeps the reason; the engine soon forgets it."""

    def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def records(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if site.on:
                try:
                    room, reason = [*args, *kwargs.values()][-2:]
                    event(EventKind.FAILURE, room=room, text=str(reason))
                except Exception:
                    site.failed()
            return result

        return records

    return make


def ending(event: Callable[..., None]) -> Maker:
    """Return the hook of what runs once when an exception ends the scheduler: ``sys.excepthook``, or a function that is called
    while the exception is handled. It keeps the type and the place; the exception's text may hold what users asked.
    """

    def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def ends(*args: Any, **kwargs: Any) -> Any:
            if site.on:
                try:
                    error = args[1] if len(args) > 1 else sys.exc_info()[1]
                    if isinstance(error, Exception):
                        event(
                            EventKind.NOTE,
                            text=f"{SCHEDULER_ENDED}: {type(error).__name__}{raised_in(error.__traceback__)}",
                        )
                except Exception:
                    site.failed()
            return original(*args, **kwargs)

        return ends

    return make


def raised_in(at: TracebackType | None) -> str:
    """Return where an exception was raised, from its traceback: its text may hold what users asked."""
    if at is None:
        return ""
    while at.tb_next is not None:
        at = at.tb_next
    code = at.tb_frame.f_code
    return f" in {code.co_name}, {code.co_filename.rpartition('/')[2]}:{at.tb_lineno}"
