"""How ``preflight`` is drawn: a line for each check, the worst first, and below it why it matters, and the cure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.probes.preflight.model import ERROR, INFO, UNKNOWN, WARNING, PreflightDocument
from pdctl.report import drawing

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLE = {"ok": "green", "info": "cyan", "unknown": "yellow", "warning": "yellow", "error": "red", "n/a": "dim"}
_FIT = {True: "fit for traffic", False: "not fit for traffic", None: "not known to be fit for traffic"}


def render(document: PreflightDocument, *, wide: bool) -> Iterable[RenderableType]:
    """Yield the verdict, and the checks. wide: also why each of those that are well matters."""
    yield Text(_FIT[document.fit], style="bold")
    several = len(document.pairs) > 1
    table = drawing.grid(False, False, True)
    for one in document.lines:
        code = f"{one.code} " if one.code and one.verdict in (ERROR, WARNING, INFO) else ""
        about = f"{one.about}: " if one.about and (several or one.check == "servers") else ""
        table.add_row(Text(one.verdict, style=_STYLE[one.verdict]), one.check, f"{code}{about}{one.found}")
        bad = one.verdict in (ERROR, WARNING)
        if bad or wide:
            table.add_row("", "", drawing.dim(one.why))
        if one.cure and one.verdict in (ERROR, WARNING, INFO):
            table.add_row("", "", f"Next: {one.cure}")
        elif one.verdict == UNKNOWN and one.essential and not wide:
            table.add_row("", "", drawing.dim(one.why))
    yield table
