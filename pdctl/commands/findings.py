"""Draws findings alike in every command that has some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.report.findings import Finding


def draw_findings(findings: Sequence[Finding], console: Console) -> None:
    """Draw each finding after an empty line: code and summary, known versions, next step."""
    for finding in findings:
        console.print()
        _draw(finding, console)


def _draw(finding: Finding, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row(Text(finding.code, style="bold"), finding.summary)
    if finding.versions:
        table.add_row("", finding.versions)
    if finding.next_step:
        table.add_row("", f"Next: {finding.next_step}")
    console.print(table)
