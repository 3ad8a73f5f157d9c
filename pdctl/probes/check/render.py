"""How ``check`` is drawn: a line for each stage, then what the findings say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.probes.check.model import ERROR, INFO, OK, UNKNOWN, WARNING
from pdctl.report import drawing

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.check.model import CheckDocument

_LEVELS = (ERROR, WARNING, UNKNOWN, INFO, OK)
_STYLE = {"ok": "green", "info": "cyan", "unknown": "yellow", "warning": "yellow", "error": "red"}


def render(document: CheckDocument, *, wide: bool) -> Iterable[RenderableType]:
    """Yield what is wrong and what to do, the stages, the worst first, and the findings. wide: also what each stage does."""
    yield from drawing.headline(document.findings)
    table = drawing.grid(False, False, True)
    for row in sorted(document.stages, key=lambda row: _LEVELS.index(row.level)):
        table.add_row(Text(row.level, style=_STYLE[row.level]), row.stage, row.summary)
        if wide:
            table.add_row("", "", drawing.dim(_does(row.stage)))
    yield table
    if document.suppressed:
        yield drawing.dim(f"({document.suppressed} findings suppressed)")
    yield from drawing.findings(document.findings, headed=True)


def _does(name: str) -> str:
    from pdctl.probes.registry import stages

    return next((f"{one.about}; {one.cost}" for one in stages() if one.name == name), "")
