"""Draws a document as a command does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console

from pdctl.probes.base import AnyProbe
from pdctl.report.output import Format


def drawing(probe: AnyProbe, form: Format = Format.TABLE) -> Callable[[Any, Console], None]:
    """Return what :class:`pdctl.report.output.Output` is given to draw with."""

    def draw(document: Any, console: Console) -> None:
        for part in probe.render(document, wide=form is Format.WIDE):
            console.print(part)

    return draw
