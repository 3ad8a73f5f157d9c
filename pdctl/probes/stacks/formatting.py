"""Says in words where a rank is. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pdctl.protocol.model import Call, Frame

_OF = {
    "recv_requests": "new requests",
    "model forward": "the model",
    "dp attention sync": "the dp attention sync",
}


def place_of(call: Call | None, stack: Sequence[Frame]) -> tuple[str, ...]:
    """Return what two ranks at the same place have in common: their collective, else their innermost function and file.

    Lines, numbers and sizes are left out: ranks that differ in those only are not elsewhere.
    """
    if call is not None and call.op:
        return ("call", call.op, call.group, call.inside)
    if stack:
        return ("frame", stack[0].function, stack[0].file, call.inside if call is not None else "")
    return ("nothing",)


def predicate(call: Call | None, stack: Sequence[Frame], *, plural: bool = False) -> str:
    """Return ``waits in broadcast of new requests``, or ``is in run_batch (managers/scheduler.py)``."""
    if call is not None and call.op:
        return f"{'wait' if plural else 'waits'} in {call.op}{_purpose(call)}"
    if stack:
        inside = f", in {call.inside}" if call is not None and call.inside else ""
        return f"{'are' if plural else 'is'} in {innermost(stack)}{inside}"
    return "have no stack" if plural else "has no stack"


def innermost(stack: Sequence[Frame]) -> str:
    """Return ``run_batch (managers/scheduler.py)``."""
    return f"{stack[0].function} ({stack[0].file})"


def _purpose(call: Call) -> str:
    if call.inside in _OF:
        return f" of {_OF[call.inside]}"
    if call.inside.startswith("poll of "):
        return f" of the polls of {call.inside.removeprefix('poll of ')}"
    if call.inside:
        return f" in {call.inside}"
    return f" of group {call.group}" if call.group else ""


def in_group(call: Call) -> str:
    """Return ``broadcast #164 of group attn-tp``."""
    return f"{call.op} #{call.seq} of {group_name(call.group, call.pg)}"


def group_name(kind: str, pg: str) -> str:
    """Return ``group attn-tp``, or torch's own name of a group whose kind is not known."""
    return f"group {kind}" if kind else f"torch group {pg}"
