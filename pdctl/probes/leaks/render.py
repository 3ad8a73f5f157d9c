"""How ``dump leaks`` is drawn: a line a rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.protocol.durations import seconds
from pdctl.report import drawing

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.leaks.model import LeaksDocument


def render(document: LeaksDocument) -> Iterable[RenderableType]:
    """Yield a line a rank, then the findings."""
    yield Text(f"watched for {seconds(document.watch_s)}", style="bold")
    drawn = drawing.table("  rank", "slots lost", "KV lost", "orphans", "rooms left", "slots free", "")
    for row in document.ranks:
        counts = [str(n) if row.judged else "-" for n in (row.slots_lost, row.kv_lost, row.orphans, row.leftovers)]
        free = f"{row.slots_free} of {row.slots}" if row.slots >= 0 else "-"
        drawn.add_row(f"  {row.rank}", *counts, free, "" if row.judged else f"not judged: {row.why}")
    yield drawn
    yield from drawing.findings(document.findings)
