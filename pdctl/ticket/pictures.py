"""Pictures of a report, as SVG that stands in the page: rounds × ranks, and a room's way through the queues. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pdctl.probes.story.model import RoomStory, Stay
from pdctl.protocol.durations import seconds
from pdctl.replay.heat import HELD, NEVER, NONE, OTHER, PARTS, STATES, Cell, Heat
from pdctl.report.escaping import markup as m

MARKS = {HELD: "‖", PARTS: "✕", OTHER: "≠", NEVER: "…"}
"""What a cell has besides its colour."""
MOST_ROWS = 24
_NARROW = 8
_CHAR, _ROW, _HEAD = 6.4, 22, 20


def name_of(state: str) -> str:
    """Return the class that a page's style has for a state of a cell."""
    return f"s{STATES.index(state)}"


def folded(heat: Heat) -> list[tuple[str, tuple[Cell, ...]]]:
    """Return a row for all ranks that are alike in every round, those that differ from most first where they are many."""
    rows: dict[tuple[Cell, ...], list[str]] = {}
    for rank, cells in zip(heat.ranks, heat.cells, strict=True):
        rows.setdefault(cells, []).append(rank)
    if len(rows) > MOST_ROWS:
        kept = sorted(rows.items(), key=lambda row: len(row[1]))[: MOST_ROWS - 1]
        left = sum(map(len, rows.values())) - sum(len(ranks) for _, ranks in kept)
        return [*((_ranks(ranks), cells) for cells, ranks in kept), (f"{left} more ranks", ())]
    return [(_ranks(ranks), cells) for cells, ranks in rows.items()]


def _ranks(ranks: Sequence[str]) -> str:
    if len(ranks) == 1:
        return ranks[0]
    numbers = [int(rank[2:]) for rank in ranks if rank.startswith("tp") and rank[2:].isdecimal()]
    if len(numbers) == len(ranks) and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"tp{numbers[0]}–{numbers[-1]}"
    return f"{', '.join(ranks[:3])}{f' and {len(ranks) - 3} more' if len(ranks) > 3 else ''}"


def heat_map(heat: Heat) -> str:
    """Return the map of a queue of a group."""
    rows = folded(heat)
    words = [[f"{cell.words}{MARKS.get(cell.state, '')}" for cell in cells] for _, cells in rows]
    cell = max(24.0, 10 + _CHAR * max((len(word) for row in words for word in row), default=1))
    left = 12 + _CHAR * max(len(name) for name, _ in rows)
    right = left + cell * len(heat.ordinals)
    twice = len(heat.ordinals) > _NARROW
    width, height = right + (left if twice else 4), _HEAD + _ROW * len(rows) + 4
    where = f"the ranks part at round {heat.parted}" if heat.parted >= 0 else "in step"
    out = [_open(width, height, f"{heat.title}, {heat.queue}: {where}")]
    every = max(1, round(_CHAR * (len(str(heat.ordinals[-1])) + 2) / cell + 0.5)) if heat.ordinals else 1
    for x, ordinal in enumerate(heat.ordinals):
        if x % every == 0 or ordinal == heat.parted:
            strong = ' class="strong"' if ordinal == heat.parted else ""
            out.append(f'<text x="{left + cell * (x + 0.5):.1f}" y="13" text-anchor="middle"{strong}>{ordinal}</text>')
    for y, (name, cells) in enumerate(rows):
        top = _HEAD + y * _ROW
        out.append(f'<text x="{left - 8:.1f}" y="{top + 15}" text-anchor="end">{m(name)}</text>')
        if twice:  # a narrow page shows this end
            out.append(f'<text x="{right + 7:.1f}" y="{top + 15}">{m(name)}</text>')
        for x, one in enumerate(cells):
            if one.state != NONE:
                place = f'x="{left + cell * x:.1f}" y="{top}" width="{cell - 1:.1f}" height="{_ROW - 1}"'
                said = f"round {heat.ordinals[x]}: {one.words} requests, {one.state}"
                out.append(f'<rect class="{name_of(one.state)}" {place}><title>{m(said)}</title></rect>')
                at = f'x="{left + cell * (x + 0.5) - 0.5:.1f}" y="{top + 15}"'
                out.append(f'<text class="t{name_of(one.state)}" {at} text-anchor="middle">{m(words[y][x])}</text>')
    return "".join([*out, "</svg>"])


def way(story: RoomStory) -> str:
    """Return the picture of a room's stays in queues; "" where none is known."""
    stays: dict[tuple[str, str], list[Stay]] = {}
    for stay in story.stays:
        stays.setdefault((stay.rank, stay.queue), []).append(stay)
    rows = list(stays.items())[:MOST_ROWS]
    if not rows:
        return ""
    names = [f"{rank}  {queue}"[:60] for (rank, queue), _ in rows]
    left, plot = 16 + _CHAR * max(map(len, names)), 560.0
    span = max(story.span_s, *(stay.until_s or stay.since_s for _, some in rows for stay in some), 1e-6)
    out = [_open(left + plot + 8, _HEAD + _ROW * len(rows) + 4, f"room {story.room}: its stays in queues")]
    for part in range(5):
        x = left + plot * part / 4
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_HEAD - 3}" y2="{_HEAD + _ROW * len(rows)}"/>')
        out.append(f'<text x="{x:.1f}" y="13" text-anchor="{anchor}">{m(seconds(span * part / 4))}</text>')
    for y, ((_, some), name) in enumerate(zip(rows, names, strict=True)):
        top = _HEAD + y * _ROW
        out.append(f'<text x="{left - 8:.1f}" y="{top + 15}" text-anchor="end">{m(name)}</text>')
        for stay in some[:MOST_ROWS]:
            begin = max(0.0, min(1.0, stay.since_s / span))
            end = 1.0 if stay.until_s is None else max(begin, min(1.0, stay.until_s / span))
            how = stay.how or ("still there" if stay.until_s is None else "")
            kind = "stay" if stay.until_s is not None else "stay open"
            wide = max(2.0, plot * (end - begin))
            said = f"{stay.queue}: {seconds((end - begin) * span)}{f', {how}' if how else ''}"
            place = f'x="{left + plot * begin:.1f}" y="{top + 3}" width="{wide:.1f}" height="{_ROW - 7}"'
            out.append(f'<rect class="{kind}" {place}><title>{m(said)}</title></rect>')
            if wide > _CHAR * len(said):
                out.append(f'<text class="in" x="{left + plot * begin + 5:.1f}" y="{top + 14.5}">{m(said)}</text>')
    return "".join([*out, "</svg>"])


def _open(width: float, height: float, label: str) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{m(label)}" {size}>'
