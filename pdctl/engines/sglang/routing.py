"""How this rank's SGLang registers or queries rooms. It is read from the loaded code, before any hook is installed.

``CommonKVSender.__init__`` compares a room with ``room % dp_size`` and looks at FORCE_QUERY in one of three ways:

- not at all (0.5.10.post1): only another load balancing registers, and a conflict goes unnoticed;
- after the comparison (0.5.12.post1, 0.5.13.post1, up to 0.5.18): only rooms that conflict are registered;
- before it (0.5.23): every room is.
"""

from __future__ import annotations

import dis
from types import CodeType

from pdctl.engines.sglang import seams
from pdctl.protocol.model import Seam
from pdctl.protocol.requests import FORCE_QUERY, NOTES_CONFLICTS, QUERY_FORCED, REGISTERS_EVERY_ROOM

_REGISTER = "_register_prefill_dp_rank"


def routing_seams(role: str) -> list[Seam]:
    """Return the seams of routing. A seam that can't be read from this code is left out."""
    if role == "decode":
        code = _code(seams.DECODE, "DecodePreallocQueue", "_resolve_prefill_dp_rank")
        where = "DecodePreallocQueue._resolve_prefill_dp_rank"
        return [] if code is None else [Seam(QUERY_FORCED, FORCE_QUERY in code.co_names, where)]
    code = _code(seams.COMMON, "CommonKVSender", "__init__")
    return [] if code is None else registration(code)


def registration(code: CodeType) -> list[Seam]:
    """Return the seams of registration, from the code of ``CommonKVSender.__init__``; none if it registers nothing."""
    where = "CommonKVSender.__init__"
    if _REGISTER not in code.co_names:
        return []
    compared = forced = -1
    for place, step in enumerate(dis.get_instructions(code)):
        if step.argval == FORCE_QUERY and forced < 0:
            forced = place
        # BINARY_MODULO up to Python 3.10, BINARY_OP since; the first one is the comparison, the others its message
        elif step.opname.startswith("BINARY") and (step.argrepr == "%" or "MODULO" in step.opname) and compared < 0:
            compared = place
    if compared < 0:
        return [] if forced >= 0 else [Seam(NOTES_CONFLICTS, False, where), Seam(REGISTERS_EVERY_ROOM, False, where)]
    return [Seam(NOTES_CONFLICTS, True, where), Seam(REGISTERS_EVERY_ROOM, 0 <= forced < compared, where)]


def _code(module: str, owner: str, method: str) -> CodeType | None:
    found = getattr(getattr(getattr(seams.module(module), owner, None), method, None), "__code__", None)
    return found if isinstance(found, CodeType) else None


def settings() -> dict[str, str]:
    """Return dp_size and load_balance_method as the sender sees them, if they differ from the server arguments.

    0.5.23 keeps them in its runtime context, and its server arguments may still say ``auto``.
    """
    try:
        context = seams.runtime_context()
        size, balance = getattr(context, "num_dp_ranks", None), getattr(context, "load_balance_method", None)
    except (RuntimeError, ValueError):  # raised for what is not set
        return {}
    found = {}
    if isinstance(size, int):
        found["dp_size"] = str(size)
    if isinstance(balance, str):
        found["load_balance_method"] = balance
    return found
