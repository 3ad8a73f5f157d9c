"""How ``diff-queues`` is drawn: group by group, the first difference, and what each rank does now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.probes.queues.formatting import names, side
from pdctl.probes.queues.model import WELL
from pdctl.protocol.durations import seconds as spoken
from pdctl.protocol.model import QUEUES
from pdctl.report import drawing
from pdctl.targets import nodeset
from pdctl.targets.nodeset import join

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.queues.model import GroupReport, QueueRow, QueuesDocument, RankNow

MANY = 8
"""Groups that are told one by one."""
_IN_FULL, _MOST_LINES, _COLUMNS, _MOST_VALUES = 3, 16, 8, 3
_WORST = ("DIVERGED", "KEPT", "WAITING", "SKEWED", "UNKNOWN")
_STYLE = {"DIVERGED": "bold red", "WAITING": "yellow", "SKEWED": "yellow", "HELD": "cyan", "AGREE": "green"}


def render(document: QueuesDocument, *, wide: bool) -> Iterable[RenderableType]:
    """Yield what is wrong and what to do, every group, then every finding.

    Of many groups those that are well are told together, behind the others; of these only some are told in full. wide: all are.
    """
    yield from drawing.headline(document.findings)
    full, folded, many = list(document.groups), [], len(document.groups) > MANY and not wide
    if many:
        full = sorted((g for g in full if g.verdict not in WELL), key=lambda group: _WORST.index(group.verdict))
        folded = [*full[_IN_FULL:], *(group for group in document.groups if group.verdict in WELL)]
        full = full[:_IN_FULL]
    for number, group in enumerate(full):
        if number:
            yield ""
        yield from _group(group, folds=many)
    for number, groups in enumerate(drawing.alike(folded, lambda group: group.verdict)):
        if full or number:
            yield ""
        yield from _together(groups)
    yield from drawing.findings(document.findings, below=True)


def _together(groups: list[GroupReport]) -> Iterable[RenderableType]:
    """Yield groups of one verdict in few lines: their places, and how many requests they have."""
    verdict = groups[0].verdict
    line = Text(f"{len(groups)} group{'s'[: len(groups) != 1]}", style="bold")
    yield line.append("   ").append(verdict, style=_STYLE.get(verdict, ""))
    kinds = drawing.alike(groups, lambda group: group.title.partition(" · ")[2])
    places = [(join(group.title.partition(" · ")[0] for group in those), *_kind(those[0])) for those in kinds]
    lines = drawing.alike(places, lambda one: one[:2])
    for those in lines[:_MOST_LINES]:
        place, kind, _ = those[0]
        servers = [server for _, _, server in those if server]
        many = f"{len(servers)} servers: " if len(servers) > 1 else ""
        yield f"  {' · '.join(filter(None, (place, kind, many + drawing.some(servers))))}"
    if len(lines) > _MOST_LINES:
        yield f"  … and {len(lines) - _MOST_LINES} more lines (-o wide or json shows all)"
    table = drawing.table("  queue", "requests", "in a group", "", right=("requests", "in a group"), wraps=("",))
    for queue in QUEUES:
        rows = [row for group in groups for row in group.queues if row.queue == queue]
        longest = [max((n for n in row.lengths if n is not None), default=0) for row in rows]
        if any(longest):
            table.add_row(f"  {queue}", str(sum(longest)), nodeset.span(longest), _said(rows))
    if table.rows:
        yield table


def _said(rows: Sequence[QueueRow]) -> str:
    """Return what is said of a queue in most of the groups."""
    texts = Counter(row.text for row in rows if row.text).most_common()
    if not texts:
        return ""
    text, number = texts[0]
    others = sum(count for _, count in texts[1:])
    return f"{number} × {text}" + (f"; {others} × other words" if others else "")


def _kind(group: GroupReport) -> tuple[str, str]:
    """Return what a title says behind the place: the kind of the group, and its server."""
    kind, _, server = group.title.partition(" · ")[2].partition(" · ")
    return kind, server


def _group(group: GroupReport, *, folds: bool) -> Iterable[RenderableType]:
    """Yield a group. folds: ranks of which the same is said are one line, though they are few."""
    folds = folds or len(group.ranks) > _COLUMNS
    verdict = group.verdict
    if group.round >= 0:
        verdict += f" at round {group.round}"
    if group.age_s is not None:
        verdict += f", {spoken(group.age_s)} ago"
    line = Text(group.title, style="bold")
    line.append("   ")
    line.append(verdict, style=_STYLE.get(group.verdict, ""))
    yield line
    if group.said and (group.kind != "polls" or not group.queues):
        yield f"  {group.said}"
    yield from _queues(group)
    if group.splits:
        yield from _splits(group, folds=folds)
    if group.verdict not in WELL:
        yield from _now(group.now, group.pairing, folds=folds)


def _queues(group: GroupReport) -> Iterable[RenderableType]:
    if not group.queues:
        if group.said:
            return
        if group.verdict == "UNKNOWN":
            yield "  nothing to compare: fewer than two ranks have rounds that can be read"
        else:
            yield "  no requests, no rounds yet"
        return
    shown = group.ranks if len(group.ranks) <= _COLUMNS else ("requests",)
    table = drawing.table("  queue")
    for rank in shown:
        table.add_column(rank, justify="right" if shown is group.ranks else "left", no_wrap=shown is group.ranks)
    table.add_column("")
    for row in group.queues:
        name = row.queue.partition(".")[2] or row.queue
        lengths = ["-" if n is None else str(n) for n in row.lengths]
        if shown is not group.ranks:
            lengths = [_lengths(group.ranks, lengths)]
        known = {n for n in row.lengths if n is not None}
        moving = "(moving), rounds " if row.verdict == "agree" and len(known) > 1 else ""
        said = {
            "diverged": row.text,
            "held": row.text,
            "agree": f"{moving}agree {row.text and '· ' + row.text}".strip(),
        }
        text = said.get(row.verdict, f"{row.verdict}: {row.text}" if row.text else row.verdict)
        table.add_row(f"  {name}", *lengths, "" if row.verdict == "not polled" else text)
    yield table


def _lengths(ranks: Sequence[str], lengths: Sequence[str]) -> str:
    """Return how long a queue is on many ranks: ``3``, ``4 (tp7), 3 (the others)``, or the least and the most."""
    at: dict[str, list[str]] = {}
    for rank, length in zip(ranks, lengths, strict=True):
        at.setdefault(length, []).append(rank)
    if len(at) == 1:
        return lengths[0]
    odd = sorted(at.items(), key=lambda one: len(one[1]))
    if len(odd) > _MOST_VALUES:
        return nodeset.span(int(length) for length in at if length != "-")
    return ", ".join([*(f"{length} ({names(those)})" for length, those in odd[:-1]), f"{odd[-1][0]} (the others)"])


def _splits(group: GroupReport, *, folds: bool) -> Iterable[RenderableType]:
    for split in group.splits[:5]:
        rid = f" (rid {split.rid})" if split.rid else ""
        where = f"round {group.round}" if group.round >= 0 else group.queue
        yield drawing.dim(f"      {where}, room {split.room}{rid}")
        table = drawing.grid(False, True)
        for sides in drawing.alike(split.sides, lambda s: side(s) if folds else s.rank):
            did, knew = side(sides[0])
            table.add_row(f"        {names(s.rank for s in sides)} {did}", knew)
        yield table
    if len(group.splits) > 5:
        yield f"      … and {len(group.splits) - 5} more rooms (-o json shows all)"


def _now(now: tuple[RankNow, ...], pairing: tuple[str, ...], *, folds: bool) -> Iterable[RenderableType]:
    table = drawing.grid(False, True)
    lines = drawing.alike(now, lambda rank: (rank.state, rank.doing) if folds else rank.rank)
    for n, ranks in enumerate(lines):
        rank, ages = ranks[0], [one.age_s for one in ranks if one.age_s is not None]
        age = f", {spoken(max(ages))}" if ages else ""
        state = "" if rank.state == "live" else f"({rank.state}) "
        who = names(one.rank for one in ranks)
        table.add_row(f"  {'now' if not n else '   '}  {who}", f"{state}{rank.doing or 'unknown'}{age}")
    yield table
    for line in pairing:
        yield f"       {line}"
