"""Draws a fleet projection: probability of a parting within an hour over the number of ranks, at three rates.

Needs matplotlib (``pip install 'pdctl[plot]'``); no I/O but its fonts.
"""

from __future__ import annotations

import io

from pdctl.replay.fleet import FleetDocument
from pdctl.report.escaping import shown_copy

_COLORS = ("#8ecae6", "#1d3557", "#d62828")


def draw(document: FleetDocument, form: str) -> bytes:
    """Return the picture. form: ``svg`` or ``png``."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    document = shown_copy(document)
    with mpl.rc_context({"svg.fonttype": "none", "font.size": 9.0, "svg.hashsalt": "pdctl", "text.parse_math": False}):
        figure = Figure(figsize=(9.0, 6.4), layout="constrained")
        FigureCanvasAgg(figure)
        axis = figure.subplots()
        for curve, color in zip(document.curves, _COLORS, strict=True):
            ranks = [point.ranks for point in curve.points]
            shares = [point.probability for point in curve.points]
            axis.plot(ranks, shares, color=color, label=f"{curve.rate:g} requests/s a group")
        axis.plot([document.ranks], [document.hour], "o", color=_COLORS[1])
        axis.annotate(f"{document.ranks:,} ranks: {document.hour:.3g}", (document.ranks, document.hour), (-6, 8),
                      textcoords="offset points", ha="right")  # fmt: skip
        axis.set_xscale("log")
        axis.set_ylim(-0.02, 1.06)
        axis.set_xlabel(f"decode ranks, in groups of {document.group}")
        axis.set_ylabel("probability that a group parts within an hour")
        axis.set_title(
            f"without a metadata gate; {document.late:.3g} of slots read 0 at Success ({document.source})", loc="left"
        )
        axis.grid(alpha=0.3)
        axis.legend(loc="upper left", frameon=False)
        figure.supxlabel("Assumes: " + "\n".join(document.assumes), fontsize=7.0, ha="left", x=0.02)
        out = io.BytesIO()
        figure.savefig(out, format=form, dpi=130, metadata={"Date": None} if form == "svg" else None)
        return out.getvalue()
