"""Prints what runs came to, and draws it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.score import rows as of


def report(rows: list[of.Row], out: Path) -> None:
    """Print the tables, and draw ``score.png`` where matplotlib is there."""
    print(*lines(rows), sep="\n")
    try:
        draw(rows, out / "score.png")
    except ImportError:
        print("no picture: pip install 'pdctl[plot]'")


def lines(rows: list[of.Row]) -> list[str]:
    """Return the tables as lines of Markdown."""
    total = of.totals(rows)
    known = ", ".join(f"{key} {total[key][0]} of {total[key][1]}" for key in ("room", "rank", "round"))
    made = f"{total['runs']} runs: {total['discarded']} discarded, {total['sick']} with harm, {total['twins']} twins"
    recall = f"recall {_share(total['recall'])} ({total['told']} of {total['sick']})"
    precise = f"precision {_share(total['precision'])}, runs with a false finding {total['false']}"
    text = [
        f"{made}; {total['looks']} looks; load {_some(total['load'])}",
        f"{recall}, {precise}; twins of which not everything could be judged {total['not judged']}",
        f"of what was told: {known}; seconds {_some(total['seconds'])} (median, 90 %, most)",
        "",
        "| Case | Kind | Runs | Discarded | Told | Room | Rank | Round | False | Seconds (median, 90 %, most) |",
        "|--|--|--|--|--|--|--|--|--|--|",
    ]
    kinds = {row["case"]: row["kind"] for row in rows}
    for name, one in of.by(rows, "case").items():
        told = f"{one['told']} of {one['sick']}" if one["sick"] else "twin"
        named = " | ".join(
            f"{one[key][0]} of {one[key][1]}" if one[key][1] else "-" for key in ("room", "rank", "round")
        )
        text.append(
            f"| {name} | {kinds[name]} | {one['runs']} | {one['discarded']} | {told} | {named} | {one['false']} | "
            f"{_some(one['seconds'])} |"
        )
    for row in rows:
        where = f"{row['case']}, {row['ranks']} ranks, seed {row['seed']}"
        text += [f"false: {where}: {one}" for one in row["false"]]
        if not row["twin"] and not row["discarded"] and not row["code"]:
            text.append(f"missed: {where}: told {row.get('others')}")
    return text


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _some(values: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values) or "-"


def draw(rows: list[of.Row], path: Path) -> None:
    """Draw cases × what was told first, with the number of runs in each field."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = of.confusion(rows)
    cases = list(dict.fromkeys(case for case, _ in found))
    told = sorted({one for _, one in found}, key=lambda one: (not one.startswith("PD"), one))
    wrong = {"discarded": "#dddddd"}
    figure = Figure(figsize=(3.2 + 0.62 * len(told), 1.4 + 0.24 * len(cases)), layout="constrained")
    FigureCanvasAgg(figure)
    axis: Any = figure.subplots()
    twins = {row["case"] for row in rows if row["twin"]}
    for (case, one), number in found.items():
        good = (one == "nothing") == (case in twins) and "false" not in one
        color = wrong.get(one, "#8fc7a3" if good else "#d62828")
        y, x = cases.index(case), told.index(one)
        axis.add_patch(_field(x, y, color))
        axis.text(x, y, str(number), ha="center", va="center", fontsize=7)
    axis.set(xlim=(-0.5, len(told) - 0.5), ylim=(len(cases) - 0.5, -0.5))
    axis.set_xticks(range(len(told)), told, rotation=60, ha="left", fontsize=7)
    axis.set_yticks(range(len(cases)), cases, fontsize=7)
    axis.xaxis.tick_top()
    figure.savefig(path, dpi=140)


def _field(x: int, y: int, color: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=color)
