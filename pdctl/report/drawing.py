"""Shared parts of all renderers: tables without lines, and findings. Renderers yield objects for rich, and print nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.report.findings import Finding


def table(*names: str, right: tuple[str, ...] = (), wraps: tuple[str, ...] = ()) -> Table:
    """Return an empty table with these headings. right: columns of numbers. wraps: those whose text may take several lines."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        made.add_column(name, no_wrap=name not in wraps, justify="right" if name in right else "left")
    return made


def grid(*wraps: bool, right: tuple[int, ...] = (), width: int | None = None) -> Table:
    """Return an empty table without headings. wraps: for each column whether its text may take several lines.

    right: numbers of the columns that are aligned there. width: of the first column, None: as its text needs.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for number, wrap in enumerate(wraps):
        made.add_column(
            no_wrap=not wrap, justify="right" if number in right else "left", width=None if number else width
        )
    return made


def dim(text: str) -> Text:
    """Return a remark."""
    return Text(text, style="dim")


def findings(found: Sequence[Finding]) -> Iterable[RenderableType]:
    """Yield each finding after an empty line: code and summary, known versions, next step."""
    for finding in found:
        yield ""
        drawn = grid(False, True)
        drawn.add_row(Text(finding.code, style="bold"), finding.summary)
        if finding.versions:
            drawn.add_row("", finding.versions)
        if finding.next_step:
            drawn.add_row("", f"Next: {finding.next_step}")
        yield drawn
