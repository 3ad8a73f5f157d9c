"""How ``dump leaks`` is drawn: a line a rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.protocol.durations import seconds
from pdctl.report import drawing
from pdctl.targets import nodeset

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.leaks.model import LeaksDocument, RankLeaks


def render(document: LeaksDocument, *, wide: bool) -> Iterable[RenderableType]:
    """Yield a line a rank, of many ranks a line for all that are alike, then the findings. wide: always a line a rank."""
    yield Text(f"watched for {seconds(document.watch_s)}", style="bold")
    names = ("slots lost", "KV lost", "orphans", "rooms left", "slots free", "")
    if len(document.ranks) > drawing.MANY and not wide:
        drawn = drawing.table("", "ranks", "#", *names, right=("#",), wraps=("ranks", ""))
        folded = drawing.alike(document.ranks, lambda row: (_counts(row), row.slots, row.why))
        folded.sort(key=lambda rows: 0 if any(_counts(rows[0])) else 1 if not rows[0].judged else 2)
        for rows in folded[: drawing.MANY]:
            ranks = nodeset.join(row.name for row in rows)
            drawn.add_row("", ranks, str(len(rows)), *_cells(rows))
    else:
        drawn = drawing.table("  rank", *names)
        for row in document.ranks:
            drawn.add_row(f"  {row.name}", *_cells([row]))
        folded = []
    yield drawn
    if len(folded) > drawing.MANY:
        yield drawing.dim(f"  … and {len(folded) - drawing.MANY} more lines (-o wide shows all)")
    yield from drawing.findings(document.findings)


def _counts(row: RankLeaks) -> tuple[int, ...]:
    return row.slots_lost, row.kv_lost, row.orphans, row.leftovers


def _cells(rows: Sequence[RankLeaks]) -> Iterable[str]:
    """Yield the cells of ranks that are alike."""
    one = rows[0]
    yield from (str(n) if one.judged else "-" for n in _counts(one))
    free = nodeset.span(row.slots_free for row in rows)
    yield f"{free} of {one.slots}" if one.slots >= 0 else "-"
    yield "" if one.judged else f"not judged: {one.why}"
