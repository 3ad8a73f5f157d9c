"""Pictures that commands write next to what they print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pdctl.protocol import extras
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import check_target


def plottable(plot: Path, forms: Sequence[str]) -> None:
    """Raise PdctlError where ``plot`` can't be drawn: another ending than ``forms``, no matplotlib, or it exists."""
    if plot.suffix.lower() not in forms:
        raise PdctlError(f"{plot.name} ends in none of {', '.join(forms)}", "Name the picture so.", Exit.USAGE)
    extras.require("plot", "--plot")
    check_target(plot, force=False)
