"""A silent rank's faults, from its recording. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pdctl.faults.kinds import KINDS, Way
from pdctl.protocol import durations
from pdctl.protocol.model import EventKind
from pdctl.protocol.notes import AGENT_ENDED

if TYPE_CHECKING:
    from pdctl.recording.reader import Event

_DONE = ("released", "dropped", "failed")


def describe_last_fault(events: Sequence[Event], now_ns: int) -> str:
    """Return a sentence about the last fault placed on the rank, and its end.

    events: events of its recording, oldest first. now_ns: its monotonic clock now. The recording gives no certainty: a stopped
    rank writes nothing, and a request may wait in its socket.
    """
    ended = next((event for event in reversed(events) if _agent_ended(event)), None)
    agent = f"its agent's thread ended {_ago(ended, now_ns)} ({ended.text.partition(': ')[2]}); " if ended else ""
    armed = next((event for event in reversed(events) if event.kind == EventKind.FAULT_ARMED), None)
    if armed is None:
        lost = bool(events) and events[0].seq > 1  # older ones have made way
        return f"{agent}its recording has no fault" + (f" since {_ago(events[0], now_ns)}" if lost else "")
    said = f"{agent}its recording has {armed.text} placed {_ago(armed, now_ns)}"
    of_it = [event for event in events if event.seq > armed.seq and event.a == armed.a]
    over = next((event for event in of_it if event.kind == EventKind.FAULT_ENDED), None)
    fired = sum(event.kind == EventKind.FAULT_FIRED for event in of_it)
    said += f", fired {fired} time{'s'[: fired != 1]}"
    if over is None:
        return f"{said}, not ended"
    said += f", ended {_ago(over, now_ns)} ({over.text})"
    kind = KINDS.get(armed.text)
    if kind is None or kind.way is not Way.HOLDS:
        return said
    done = sum(_done(event, armed.text) for event in of_it)
    return f"{said}, nothing held any more" if done >= fired else f"{said}, {fired - done} held not yet done"


def _agent_ended(event: Event) -> bool:
    return event.kind == EventKind.NOTE and event.text.startswith(f"{AGENT_ENDED}: ")


def _done(event: Event, kind: str) -> bool:
    words = event.text.removeprefix(f"{kind} ").partition(":")[0]
    return event.kind == EventKind.NOTE and words in _DONE


def _ago(event: Event, now_ns: int) -> str:
    return f"{durations.show(max(0.001, (now_ns - event.mono_ns) / 1e9))} ago"
