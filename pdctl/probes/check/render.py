"""How ``check`` is drawn: a line for each stage, then what the findings say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.probes.check.judge import RANKING
from pdctl.report import drawing

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.check.model import CheckDocument, StageRow

_STYLE = {"ok": "green", "info": "cyan", "unknown": "yellow", "warning": "yellow", "error": "red"}


def render(document: CheckDocument, *, wide: bool) -> Iterable[RenderableType]:
    """Yield what is wrong and what to do, the stages, the worst first, and the findings. wide: also what each stage does."""
    yield from drawing.headline(document.findings)
    table = drawing.grid(False, False, True)
    for row in sorted(document.stages, key=lambda row: -RANKING.index(row.level)):
        table.add_row(Text(row.level, style=_STYLE[row.level]), row.stage, _summary(row, document))
        if wide:
            table.add_row("", "", drawing.dim(_does(row.stage)))
    yield table
    if document.not_recorded:
        yield drawing.dim(f"not run, since recordings do not tell of it: {', '.join(document.not_recorded)}")
    if document.suppressed:
        yield drawing.dim(f"({document.suppressed} finding{'s'[: document.suppressed != 1]} suppressed)")
    yield from drawing.findings(document.findings, below=True)


def _summary(row: StageRow, document: CheckDocument) -> str:
    """Return the summary of a stage; a finding that is told in full above has its title here."""
    told = next(iter(document.findings), None)
    full = f"{told.code} {told.summary}" if told is not None else ""
    if told is None or not row.summary.startswith(full) or not drawing.headed(document.findings):
        return row.summary
    return f"{told.code} {told.cause}{row.summary.removeprefix(full)}"


def _does(name: str) -> str:
    from pdctl.probes.registry import stages

    return next((f"{one.about}; {one.cost}" for one in stages() if one.name == name), "")
