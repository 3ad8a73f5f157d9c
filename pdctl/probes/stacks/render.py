"""How ``stacks`` is drawn: outliers first, then collectives, then the merged stacks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace
from rich.text import Text
from rich.tree import Tree

from pdctl.probes.stacks.model import Collective, GroupCollectives, GroupStacks, StacksDocument, TreeFrame, TreeNode
from pdctl.report import drawing
from pdctl.targets.nodeset import brief, join

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_PLACES = 6
MOST_FRAMES = 8
"""Frames shown of a stretch without branches, unless wide: the innermost ones."""

_STYLE = {"stuck": "yellow", "moving": "green", "idle": "green", "mixed": ""}


def render(document: StacksDocument, *, wide: bool) -> Iterable[RenderableType]:
    """Yield the document; wide: every frame, every place and every group of one number."""
    for group, titles in _alike(document.groups):
        yield from _group(group, titles, wide=wide)
    yield from _silent(document)
    yield from _collectives(document.collectives, wide=wide)
    if document.tree:
        yield ""
        span = f", {document.looks} looks over {document.span_s:.1f} s" if document.looks > 1 else ", one look at most"
        yield Text(f"stacks{span}", style="bold")
        for node in document.tree:
            yield _tree(node, wide=wide)
    yield from drawing.findings(document.findings)


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


def _group(group: GroupStacks, titles: list[str], *, wide: bool) -> Iterable[RenderableType]:
    outliers = [place for place in group.places if place.outlier]
    line = Text(brief(join(titles)), style="bold")
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
    yield line
    table = drawing.grid(True, True, True)
    shown = group.places if wide else group.places[:MOST_PLACES]
    for place in shown:
        others = bool(outliers) and not place.outlier and len(outliers) < len(group.places)
        ranks = f"the other {len(place.members)}" if others else place.ranks
        table.add_row(f"  {ranks}", Text(place.moves, style=_STYLE.get(place.moves, "")), place.where)
    yield table
    if len(group.places) > len(shown):
        yield f"  … and {len(group.places) - len(shown)} more places (-o wide shows all)"


def _silent(document: StacksDocument) -> Iterable[RenderableType]:
    """Yield how far the ranks that give no stack got, as their recordings say."""
    rows = [r for r in document.ranks if r.reason and r.source != "agent" and (r.last_round or r.source)]
    if not rows:
        return
    yield ""
    yield Text("ranks that do not answer", style="bold")
    table = drawing.grid(True, True, True)
    for rank in rows[:MOST_PLACES]:
        outside = f"from outside: {rank.where}" if rank.source == "outside" else ""
        table.add_row(f"  {rank.rank}", rank.state, "\n".join(filter(None, (rank.last_round, outside))))
    yield table
    if len(rows) > MOST_PLACES:
        yield f"  … and {len(rows) - MOST_PLACES} more (-o json shows all)"


# ---- collectives -----------------------------------------------------------------------------------------------------


def _collectives(groups: Iterable[GroupCollectives], *, wide: bool) -> Iterable[RenderableType]:
    """Yield each group with its collectives; groups that nobody has used yet only when wide."""
    shown = [group for group in groups if wide or any(row.current or row.last for row in group.rows)]
    if not shown:
        return
    yield ""
    yield Text("collectives", style="bold")
    alike = _alike(sorted(shown, key=lambda group: group.in_step is not False and not group.mispaired))
    for group, titles in alike if wide else alike[:MOST_PLACES]:
        yield from _one(group, titles)
    if len(alike) > MOST_PLACES and not wide:
        yield f"  … and {len(alike) - MOST_PLACES} more (-o wide shows all)"


def _one(group: GroupCollectives, titles: list[str]) -> Iterable[RenderableType]:
    times = f"{len(titles)} groups " if len(titles) > 1 else "group "
    line = Text(f"  {times}{group.kind or f'{group.pg} of torch'} of {brief(join(titles))}")
    if group.in_step is not None:
        line.append("   in step" if group.in_step else "   not at the same number", "" if group.in_step else "yellow")
    elif group.seen < group.size:
        line.append(f"   {group.seen} of {group.size} seen")
    yield line
    for text in group.mispaired:
        yield Text(f"    mispaired {text}", style="yellow")
    table = drawing.grid(True, True)
    for row in group.rows:
        now = f"in {_said(row.current)}" if row.current else ""
        before = f"{'before it' if row.current else 'last'} {_said(row.last)}" if row.last else ""
        table.add_row(f"    {row.ranks}", "; ".join(filter(None, (now, before))) or "none yet")
    yield table


def _said(one: Collective) -> str:
    parts = [f"#{one.seq}" if one.seq >= 0 else "", one.op, f"of {one.size}" if one.size else ""]
    more = [one.inside, "" if one.state in ("in it", "over", "entered") else one.state]
    notes = ", ".join(filter(None, more))
    return " ".join(filter(None, parts)) + (f" ({notes})" if notes else "")


# ---- stacks ----------------------------------------------------------------------------------------------------------


def _tree(node: TreeNode, *, wide: bool) -> Tree:
    tree = Tree(_label(node, wide=wide), guide_style="dim")
    for child in node.children:
        tree.add(_tree(child, wide=wide))
    if node.ends:
        tree.add(Text(f"{brief(node.ends)}: here", style="dim"))
    return tree


def _label(node: TreeNode, *, wide: bool) -> Text:
    moves = node.frames[-1].moves
    text = Text(brief(node.ranks), style="bold")
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
