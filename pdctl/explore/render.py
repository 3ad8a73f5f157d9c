"""Draws what the explorer found, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.report.escaping import argument

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.explore.document import Counterexample, Explored, ExploreDocument

_STYLE = {"BROKEN": "bold red", "HOLDS": "green", "INCONCLUSIVE": "yellow"}


def draw(document: ExploreDocument, console: Console) -> None:
    """Draw the verdict of every policy, then the smallest counterexamples, then what the model leaves out."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{document.bound}, on {document.device}", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("policy", "verdict", "schedules tried", "parted"):
        table.add_column(name, no_wrap=True, justify="right" if name == "parted" else "left")
    recorded = any(result.as_recorded is not None for result in document.results)
    if recorded:
        table.add_column("as recorded")
    for result in document.results:
        verdict = Text(result.verdict, style=_STYLE[result.verdict])
        more = ("they part" if result.as_recorded else "they agree",) if recorded else ()
        table.add_row(result.policy, verdict, _covered(result, document.seed), f"{result.parted:,}", *more)
    console.print(table)
    for result in document.results:
        for example in result.counterexamples:
            console.print()
            _draw_example(result, example, console)
    console.print()
    for n, line in enumerate(document.assumes):
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False, style="dim")
        grid.add_column(width=7, no_wrap=True)
        grid.add_column()
        grid.add_row("" if n else "assumes", line)
        console.print(grid)


def _draw_example(result: Explored, example: Counterexample, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    where = f" ({result.engine})" if result.engine else ""
    console.print(Text.assemble((result.policy, "bold"), f": {example.says}{where}"))
    size = f"{count(example.ranks, 'rank')}, {count(example.requests, 'request')}"
    console.print(f"  smallest: {size}; they part in round {example.round}. In {example.schedules:,} schedules.")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column()
    for part in example.parts:
        table.add_row(f"    {part.rank}", f"room {part.room}", part.text)
    console.print(table)
    if example.recordings:
        console.print(f"  Next: pdctl diff-queues --from {argument(example.recordings)}", soft_wrap=True)


def _covered(result: Explored, seed: int) -> str:
    if result.covered == "exhaustive":
        return f"all {result.schedules:,}"
    total = "too many to count here" if result.of is None else about(result.of)
    cut = ", then time was up" if result.covered == "cut short" else ""
    return f"{result.schedules:,} drawn from {total}, seed {seed}{cut}"


def about(number: int) -> str:
    """Return a number in words, rounded to a power of ten where it is too long to read."""
    from math import log10

    return f"{number:,}" if number < 10**12 else f"about 10^{log10(number):.0f}"


def count(number: int, what: str) -> str:
    """Return ``1 round`` or ``2 rounds``."""
    return f"{number} {what}{'' if number == 1 else 's'}"
