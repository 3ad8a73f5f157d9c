"""Draws what ``pdctl stacks`` found, for people: outliers first, then collectives, then the merged stacks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from pdctl.commands.findings import draw_findings
from pdctl.probes.stacks.model import Collective, GroupCollectives, GroupStacks, StacksDocument, TreeFrame, TreeNode
from pdctl.targets.nodeset import together

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

MOST_PLACES = 6
MOST_FRAMES = 8
"""Frames shown of a stretch without branches, unless wide: the innermost ones."""

_STYLE = {"stuck": "yellow", "moving": "green", "idle": "green", "mixed": ""}


def draw(document: StacksDocument, console: Console, *, wide: bool) -> None:
    """Draw the document; wide: every frame, every place and every group of one number."""
    for group, titles in _alike(document.groups):
        _draw_group(group, titles, console, wide=wide)
    _draw_silent(document, console)
    _draw_collectives(document.collectives, console, wide=wide)
    if document.tree:
        console.print()
        span = f", {document.looks} looks over {document.span_s:.1f} s" if document.looks > 1 else ", one look at most"
        console.print(f"stacks{span}", style="bold")
        for node in document.tree:
            console.print(_tree(node, wide=wide))
    draw_findings(document.findings, console)


G = TypeVar("G", GroupStacks, GroupCollectives)


def _alike(groups: Iterable[G]) -> list[tuple[G, list[str]]]:
    """Return groups that differ in their title only as one, with the titles."""
    found: dict[G, list[str]] = {}
    for group in groups:
        found.setdefault(_plain(group), []).append(group.title)
    return list(found.items())


def _plain(group: G) -> G:
    """Return the group without what tells it from others that are alike; with outliers it is like no other."""
    if isinstance(group, GroupStacks):
        if any(place.outlier for place in group.places):
            return group
        places = tuple(replace(place, members=("",) * len(place.members)) for place in group.places)
        return replace(group, title="", places=places)
    return replace(
        group, title="", pg="" if group.kind else group.pg, rows=tuple(replace(row, members=()) for row in group.rows)
    )


def _draw_group(group: GroupStacks, titles: list[str], console: Console, *, wide: bool) -> None:
    from rich.text import Text

    outliers = [place for place in group.places if place.outlier]
    line = Text(together(titles), style="bold")
    times = f"{len(titles)} × " if len(titles) > 1 else ""
    line.append(f" · {times}{group.size} rank{'s'[: group.size != 1]}", style="bold")
    if len(outliers) == len(group.places) > 1:
        line.append(f"   at {len(outliers)} places, no majority", style="yellow")
    elif outliers:
        line.append(f"   {', '.join(place.ranks for place in outliers[:3])}: elsewhere than the others", style="yellow")
    elif group.reason:
        line.append(f"   {group.reason}", style="green")
    if outliers and all(not place.moves for place in group.places):
        line.append(" (in one look)")
    console.print(line)
    table = _table()
    shown = group.places if wide else group.places[:MOST_PLACES]
    for place in shown:
        others = bool(outliers) and not place.outlier and len(outliers) < len(group.places)
        ranks = f"the other {len(place.members)}" if others else place.ranks
        table.add_row(f"  {ranks}", Text(place.moves, style=_STYLE.get(place.moves, "")), place.where)
    console.print(table)
    if len(group.places) > len(shown):
        console.print(f"  … and {len(group.places) - len(shown)} more places (-o wide shows all)")


def _draw_silent(document: StacksDocument, console: Console) -> None:
    """Draw how far the ranks that give no stack got, as their recordings say."""
    rows = [rank for rank in document.ranks if rank.source != "agent" and (rank.last_round or rank.source)]
    if not rows:
        return
    console.print()
    console.print("ranks that do not answer", style="bold")
    table = _table()
    for rank in rows[:MOST_PLACES]:
        outside = f"from outside: {rank.where}" if rank.source == "outside" else ""
        table.add_row(f"  {rank.rank}", rank.state, "\n".join(filter(None, (rank.last_round, outside))))
    console.print(table)
    if len(rows) > MOST_PLACES:
        console.print(f"  … and {len(rows) - MOST_PLACES} more (-o json shows all)")


# ---- collectives -----------------------------------------------------------------------------------------------------


def _draw_collectives(groups: Iterable[GroupCollectives], console: Console, *, wide: bool) -> None:
    """Draw each group with its collectives; groups that nobody has used yet only when wide."""
    shown = [group for group in groups if wide or any(row.current or row.last for row in group.rows)]
    if not shown:
        return
    console.print()
    console.print("collectives", style="bold")
    alike = _alike(sorted(shown, key=lambda group: group.in_step is not False and not group.mispaired))
    for group, titles in alike if wide else alike[:MOST_PLACES]:
        _draw_one(group, titles, console)
    if len(alike) > MOST_PLACES and not wide:
        console.print(f"  … and {len(alike) - MOST_PLACES} more (-o wide shows all)")


def _draw_one(group: GroupCollectives, titles: list[str], console: Console) -> None:
    from rich.text import Text

    times = f"{len(titles)} groups " if len(titles) > 1 else "group "
    line = Text(f"  {times}{group.kind or f'{group.pg} of torch'} of {together(titles)}")
    if group.in_step is not None:
        line.append("   in step" if group.in_step else "   not at the same number", "" if group.in_step else "yellow")
    elif group.seen < group.size:
        line.append(f"   {group.seen} of {group.size} seen")
    console.print(line)
    for text in group.mispaired:
        console.print(Text(f"    mispaired {text}", style="yellow"))
    table = _table()
    for row in group.rows:
        now = f"in {_said(row.current)}" if row.current else ""
        before = f"{'before it' if row.current else 'last'} {_said(row.last)}" if row.last else ""
        table.add_row(f"    {row.ranks}", "; ".join(filter(None, (now, before))) or "none yet")
    console.print(table)


def _said(one: Collective) -> str:
    parts = [f"#{one.seq}" if one.seq >= 0 else "", one.op, f"of {one.size}" if one.size else ""]
    more = [one.inside, "" if one.state in ("in it", "over", "entered") else one.state]
    notes = ", ".join(filter(None, more))
    return " ".join(filter(None, parts)) + (f" ({notes})" if notes else "")


# ---- stacks ----------------------------------------------------------------------------------------------------------


def _tree(node: TreeNode, *, wide: bool) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(_label(node, wide=wide), guide_style="dim")
    for child in node.children:
        tree.add(_tree(child, wide=wide))
    if node.ends:
        tree.add(Text(f"{node.ends}: here", style="dim"))
    return tree


def _label(node: TreeNode, *, wide: bool) -> Text:
    from rich.text import Text

    moves = node.frames[-1].moves
    text = Text(node.ranks, style="bold")
    if node.count > 1:
        text.append(f" ({node.count})", style="not bold")
    if moves:
        text.append(f"  {moves}", style=f"not bold {_STYLE[moves]}")
    hidden = 0 if wide else max(0, len(node.frames) - (MOST_FRAMES if not node.children else MOST_FRAMES // 2))
    if hidden:
        text.append(f"\n… {hidden} frame{'s'[: hidden != 1]}", style="not bold dim")
    for frame in node.frames[hidden:]:
        text.append(f"\n{_frame(frame)}", style="not bold")
    return text


def _frame(frame: TreeFrame) -> str:
    return f"{frame.function} ({frame.file}:{frame.lines})"


def _table() -> Table:
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)


__all__ = ["draw"]
