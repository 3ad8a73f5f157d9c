"""Draws the map of rounds × ranks. Needs matplotlib (``pip install 'pdctl[plot]'``); no I/O but its fonts."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from typing import Any

from pdctl.replay.heat import HELD, NEVER, NONE, OTHER, PARTS, STATES, STEP, Heat
from pdctl.report.escaping import escape_copy

_COLORS = {STEP: "#cfe3ee", HELD: "#c8b6e2", PARTS: "#d62828", OTHER: "#f4a259", NEVER: "#4a4a4a", NONE: "#ffffff"}
_DARK = (PARTS, NEVER)
_ROW = 0.42


def draw(heats: Sequence[Heat], form: str) -> bytes:
    """Return the picture of the maps, one under the other. form: ``svg``, ``png`` or ``html``."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    heats = escape_copy(heats)
    heights = [1.1 + _ROW * len(heat.ranks) for heat in heats]
    with mpl.rc_context({"svg.fonttype": "none", "font.size": 9.0, "svg.hashsalt": "pdctl", "text.parse_math": False}):
        figure = Figure(figsize=(12.0, sum(heights) + 0.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(heats), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for axis, heat in zip(axes, heats, strict=True):
            _draw_map(axis, heat)
        used = [state for state in STATES if any(c.state == state for heat in heats for row in heat.cells for c in row)]
        patches = [Patch(facecolor=_COLORS[state], edgecolor="#888888", label=state) for state in used]
        figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
        out = io.BytesIO()
        kind = "svg" if form == "html" else form
        figure.savefig(out, format=kind, dpi=140, metadata={"Date": None} if kind == "svg" else {})
    return _page(heats, out.getvalue().decode()) if form == "html" else out.getvalue()


def _draw_map(axis: Any, heat: Heat) -> None:
    from matplotlib.patches import Rectangle

    for y, row in enumerate(heat.cells):
        for x, cell in enumerate(row):
            axis.add_patch(Rectangle((x, y), 1, 1, facecolor=_COLORS[cell.state], edgecolor="white", linewidth=1.0))
            if cell.state != NONE:
                color = "white" if cell.state in _DARK else "#222222"
                axis.text(x + 0.5, y + 0.5, cell.words, ha="center", va="center", color=color, fontsize=8)
    axis.set_xlim(0, len(heat.ordinals))
    axis.set_ylim(len(heat.ranks), 0)
    axis.set_yticks([y + 0.5 for y in range(len(heat.ranks))], heat.ranks)
    every = max(1, len(heat.ordinals) // 12)
    places = range(0, len(heat.ordinals), every)
    axis.set_xticks([x + 0.5 for x in places], [str(heat.ordinals[x]) for x in places])
    axis.set_xlabel("round; in each cell the requests polled, and → how many of them were kept")
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.tick_params(length=0)
    where = f"the ranks part at round {heat.parted}" if heat.parted >= 0 else "in step"
    axis.set_title(f"{heat.title} · {heat.queue}: {where}", loc="left", fontsize=10)


def _page(heats: Sequence[Heat], picture: str) -> bytes:
    rows = []
    for heat in heats:
        rows.append(f"<h2>{html.escape(heat.title)} · {html.escape(heat.queue)}</h2><table><tr><th>round</th>")
        rows += [f"<th>{html.escape(rank)}</th>" for rank in heat.ranks]
        rows.append("</tr>")
        for x, ordinal in enumerate(heat.ordinals):
            words = (f"{cell.words if cell.n else ''} {cell.state}" for cell in (row[x] for row in heat.cells))
            cells = "".join(f"<td>{html.escape(said)}</td>" for said in words)
            rows.append(f"<tr><td>{ordinal}</td>{cells}</tr>")
        rows.append("</table>")
    return "\n".join([_HEAD, picture[picture.index("<svg") :], *rows, "</body></html>\n"]).encode()


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>pdctl replay</title><style>
body { font: 14px sans-serif; margin: 1.5em }
svg { max-width: 100%; height: auto }
td, th { padding: .1em .9em .1em 0; text-align: left; font-weight: normal }
</style></head><body>"""
