"""``pdctl replay --emit-test``: a finding as a test of the engine's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import write_new

if TYPE_CHECKING:
    from pdctl.replay.plan import Plan
    from pdctl.report.output import Output


def emit(plans: Sequence[Plan], path: Path, out: Output) -> int:
    """Write the test of the transfer queue's rounds to ``path``. Raises PdctlError where there is none, or no file."""
    write_new(path, text_of(plans).encode())
    out.note(f"{path}: run it with pytest where SGLang is installed")
    return int(Exit.CLEAN)


def text_of(plans: Sequence[Plan]) -> str:
    """Return the test of the transfer queue's rounds. Raises PdctlError where there is none."""
    from pdctl.replay.emit import NothingToShow, source
    from pdctl.replay.plan import HAS_ROWS

    chosen = next((plan for plan in plans if plan.queue == HAS_ROWS), None)
    if chosen is None:
        raise PdctlError(
            f"the trace has no rounds of {HAS_ROWS} on several ranks",
            "Only these can be made a test so far.",
            Exit.USAGE,
        )
    try:
        return source(chosen)
    except NothingToShow as error:
        raise PdctlError(str(error), "There is nothing to reproduce.", Exit.PARTIAL) from None
