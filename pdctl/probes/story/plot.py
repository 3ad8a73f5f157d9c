"""Draws a story: a lane a rank with its stays in queues, the gate's holds, states, and arrows for what was sent.

Needs matplotlib (``pip install 'pdctl[plot]'``), which nothing else of pdctl does; no I/O but its fonts.
"""

from __future__ import annotations

import html
import io
import textwrap
from collections.abc import Sequence
from typing import Any

from pdctl.probes.story.model import RoomStory
from pdctl.probes.story.perfetto import arrows, uncertainty
from pdctl.probes.story.timescale import scale
from pdctl.report.escaping import escape_copy

_QUEUE_COLORS = {
    "prefill.bootstrap": "#8ecae6",
    "prefill.inflight": "#219ebc",
    "decode.pending": "#d9d9d9",
    "decode.prealloc": "#ffd166",
    "decode.transfer": "#f4a259",
    "decode.retracted": "#c9ada7",
}
_MARKS: dict[str, tuple[str, str, str]] = {
    "arrival": ("o", "#333333", "arrived"),
    "registration": ("P", "#6a4c93", "registered"),
    "query": (">", "#6a4c93", "asked for its dp rank"),
    "answer": ("<", "#6a4c93", "answered"),
    "handshake": ("h", "#2a9d8f", "WaitingForInput"),
    "allocation": ("s", "#555555", "got its slot"),
    "sent": ("^", "#1d3557", "metadata sent"),
    "landed": ("v", "#1d3557", "metadata there"),
    "missing": ("x", "#d62828", "slot reads 0"),
    "abort": ("X", "#d62828", "abort"),
    "failure": ("X", "#d62828", "why it failed"),
    "fault": ("*", "#c1121f", "fault"),
    "last": ("|", "#d62828", "last seen"),
    "log": ("d", "#6c757d", "line of a log"),
}
_ENDS = {"committed": ("D", "#2b9348"), "failed": ("X", "#d62828"), "aborted": ("X", "#d62828")}
_LANE = 1.0
_HEIGHT = 0.26


def draw(stories: Sequence[RoomStory], form: str) -> bytes:
    """Return the picture of ``stories``, one under the other. form: ``svg``, ``png``, or ``html`` with the lines as text."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    stories = escape_copy(stories)
    lanes = [max(1, len(_lanes(story))) for story in stories]
    said = [min(len(story.gaps) + len(story.notes), 6) for story in stories]
    heights = [1.5 + 0.62 * n + 0.2 * more for n, more in zip(lanes, said, strict=True)]
    with mpl.rc_context({"svg.fonttype": "none", "font.size": 9.0, "svg.hashsalt": "pdctl", "text.parse_math": False}):
        figure = Figure(figsize=(12.0, sum(heights) + 0.9), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(stories), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for axis, story in zip(axes, stories, strict=True):
            _Picture(axis, story).draw()
        out = io.BytesIO()
        kind = "svg" if form == "html" else form
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(out, format=kind, dpi=140, metadata=metadata)
    return _page(stories, out.getvalue().decode()) if form == "html" else out.getvalue()


class _Picture:
    """One story in one set of axes."""

    def __init__(self, axis: Any, story: RoomStory) -> None:
        self._axis = axis
        self._story = story
        self._ranks = _lanes(story)
        self._at = {name: -n * _LANE for n, name in enumerate(self._ranks)}
        self._scale, self._unit = (1e3, "ms") if story.span_s < 10 else (1.0, "s")
        self._known: dict[str, Any] = {}
        times = [e.t_s for e in story.entries if e.kind not in ("note", "freed")]
        self._places = scale(times, story.span_s)

    def draw(self) -> None:
        self._stays()
        self._holds()
        self._marks()
        self._arrows()
        self._frame()

    def _x(self, seconds: float) -> float:
        return self._places.place(seconds) * self._scale

    def _stays(self) -> None:
        end = self._story.span_s
        for stay in self._story.stays:
            y = self._at[stay.rank]
            color = _QUEUE_COLORS.get(stay.queue, "#bbbbbb")
            since, until = stay.since_s, end if stay.until_s is None else stay.until_s
            low = y - _HEIGHT if stay.queue != "decode.pending" else y + _HEIGHT
            height = 2 * _HEIGHT if stay.queue != "decode.pending" else 0.1
            [bar] = self._axis.barh(
                low + height / 2, self._x(max(until, since)) - self._x(since), height, left=self._x(since), color=color,
                edgecolor="#666666", linewidth=0.5, label=stay.queue, zorder=2,
            )  # fmt: skip
            if stay.until_s is None:
                bar.set_linestyle("--")
            self._known.setdefault(f"in {stay.queue}", bar)

    def _holds(self) -> None:
        for entry in self._story.entries:
            if entry.kind != "held" or entry.until_s is None:
                continue
            width = self._x(entry.until_s) - self._x(entry.t_s)
            [bar] = self._axis.barh(
                self._at[entry.rank], width, 2 * _HEIGHT, left=self._x(entry.t_s), facecolor="none", hatch="////",
                edgecolor="#9d4edd", linewidth=0.0, zorder=3,
            )  # fmt: skip
            self._known.setdefault("held by the gate", bar)
            if width > self._x(self._story.span_s) / 5:
                text = f"held by the gate, {entry.rounds:,} rounds"
                box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
                self._axis.text(
                    self._x(entry.t_s) + width / 2, self._at[entry.rank], text, ha="center", va="center", bbox=box,
                    fontsize=8, zorder=4,
                )  # fmt: skip

    def _marks(self) -> None:
        for entry in self._story.entries:
            mark, color, said = _MARKS.get(entry.kind, ("", "", ""))
            if entry.kind == "decision":
                if entry.value not in _ENDS:
                    continue
                (mark, color), said = _ENDS[entry.value], entry.value
            elif entry.kind == "log" and entry.value in ("cancelled", "failed"):
                color, said = "#d62828", f"a log says {entry.value}"
            elif entry.kind == "state" and entry.value == "Failed":
                mark, color, said = "X", "#d62828", "state Failed"
            elif entry.kind == "landed" and entry.value == "foreign":
                color, said = "#d62828", "another room in its slot"
            elif entry.kind == "sent" and entry.value == "failed":
                color, said = "#d62828", "metadata could not be sent"
            if not mark:
                continue
            y = self._at[entry.rank] + (_HEIGHT if entry.kind in _ABOVE else -_HEIGHT if entry.kind in _BELOW else 0.0)
            line = self._axis.plot(
                [self._x(entry.t_s)], [y], mark, color=color, markersize=9 if mark == "*" else 6, zorder=6,
                markeredgecolor="white" if mark not in "x|" else color, markeredgewidth=0.6 if mark not in "x|" else 1.8,
            )  # fmt: skip
            self._known.setdefault(said, line[0])

    def _arrows(self) -> None:
        for sent, landed in arrows(self._story):
            self._axis.annotate(
                "", (self._x(landed.t_s), self._at[landed.rank] + _HEIGHT), (self._x(sent.t_s), self._at[sent.rank] - _HEIGHT),
                arrowprops={"arrowstyle": "-|>", "color": "#1d3557", "linewidth": 1.1, "alpha": 0.75, "shrinkA": 2,
                            "shrinkB": 2}, zorder=5,
            )  # fmt: skip

    def _frame(self) -> None:
        axis, story = self._axis, self._story
        axis.set_yticks(list(self._at.values()), list(self._ranks.values()))
        axis.set_ylim(-(len(self._ranks) - 1) * _LANE - 0.6, 0.65)
        span = self._x(max(story.span_s, 1e-6))
        axis.set_xlim(-0.015 * span, 1.02 * span)
        self._ticks(span)
        said = [f"not known: {gap}" for gap in story.gaps] + [f"noted: {note}" for note in story.notes]
        more = [f"… and {len(said) - 5} more"] if len(said) > 6 else []
        lines = [
            f"{self._unit} since {story.started[:10]} {story.started[11:23]} UTC",
            *said[: 5 if more else 6],
            *more,
        ]
        axis.set_xlabel(
            "\n".join(textwrap.shorten(line, 170, placeholder=" …") for line in lines), loc="left", parse_math=False
        )
        rid = f"   rid {', '.join(story.rids)}" if story.rids else ""
        axis.set_title(f"room {story.room}{rid}", loc="left", fontweight="bold", parse_math=False)
        axis.grid(axis="x", color="#e5e5e5", zorder=0)
        axis.tick_params(axis="y", length=0)
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
        if self._known:
            axis.legend(
                self._known.values(), self._known.keys(), loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False,
                fontsize=8,
            )  # fmt: skip

    def _ticks(self, width: float) -> None:
        """Label the times that are drawn as long as they are, and say how long the others were."""
        from matplotlib.ticker import MaxNLocator

        at: list[float] = []
        for since, until in self._places.busy:
            share = (self._x(until) - self._x(since)) / width if width else 1.0
            if share < 0.08:  # no room for two labels
                at.append(round(since * self._scale, 3))
                continue
            found = MaxNLocator(max(1, round(9 * share))).tick_values(since * self._scale, until * self._scale)
            at += [t for t in found if since * self._scale - 1e-9 <= t <= until * self._scale + 1e-9]
        self._axis.set_xticks([self._x(t / self._scale) for t in at], [f"{t:,.6g}" for t in at])
        for since, until in self._places.quiet:
            a, b = self._x(since), self._x(until)
            self._axis.axvspan(a, b, color="#eeeeee", zorder=0.5, linewidth=0)
            text = f"⋯ {(until - since) * self._scale:,.4g} {self._unit} ⋯"
            self._axis.text(
                (a + b) / 2, -(len(self._ranks) - 1) * _LANE - 0.58, text, ha="center", va="bottom", fontsize=8
            )


_ABOVE = {"arrival", "registration", "query", "answer", "handshake", "fault", "abort", "failure", "landed", "missing"}
_BELOW = {"allocation", "sent"}


def _lanes(story: RoomStory) -> dict[str, str]:
    """Return the ranks and logs that have something, each with its label."""
    named = {e.rank for e in story.entries}
    ranks = {line.rank: line.uncertainty_s for line in story.ranks if line.saw}
    logs = {log.name: None for log in story.logs if log.name in named}
    return {name: name if sure == 0 else f"{name}\n{uncertainty(sure)}" for name, sure in {**logs, **ranks}.items()}


def _page(stories: Sequence[RoomStory], picture: str) -> bytes:
    svg = picture[picture.index("<svg") :]
    parts = [_HEAD, svg]
    for story in stories:
        parts.append(f"<h2>room {story.room}</h2>")
        parts += [f"<p class='gap'>not known: {html.escape(gap)}</p>" for gap in story.gaps]
        parts += [f"<p>{html.escape(note)}</p>" for note in story.notes]
        parts.append("<table>")
        parts += [
            f"<tr title='{html.escape(entry.time)}'><td>{entry.t_s * 1e3:,.1f} ms</td><td>{html.escape(entry.rank)}</td>"
            f"<td>{html.escape(entry.text)}</td></tr>"
            for entry in story.entries
        ]
        parts.append("</table>")
    parts.append("</body></html>\n")
    return "\n".join(parts).encode()


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>pdctl story</title><style>
body { font: 14px sans-serif; margin: 1.5em }
svg { max-width: 100%; height: auto }
td { padding: .1em .9em .1em 0; vertical-align: top }
td:first-child { text-align: right; font-variant-numeric: tabular-nums }
.gap { color: #9b2226 }
</style></head><body>"""
