"""The state as ``top`` shows it without screens: the same tables, drawn for a terminal or a file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pdctl.report import drawing
from pdctl.watch.top import tables

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.watch.model import WatchState
    from pdctl.watch.top.tables import Rates


def render(state: WatchState, rates: Rates, *, wide: bool) -> Iterable[RenderableType]:
    """Yield what was looked at, what is to be read first, groups, ranks and findings."""
    yield tables.status(state)
    for cell in tables.headline(state):
        yield cell.text
    for table in (tables.groups(state, rates), tables.ranks(state, rates, wide=wide), tables.findings(state)):
        if table.lines:
            drawn = drawing.table(*table.headings, right=table.right, wraps=("what", "where"))
            for line in table.lines:
                drawn.add_row(*(cell.text for cell in line.cells))
            yield ""
            yield drawn
