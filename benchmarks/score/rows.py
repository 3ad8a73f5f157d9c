"""What a run came to, and what many runs come to. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.score.stage import Truth

Row = dict[str, Any]
BAD = ("warning", "error")


def right(truth: Truth, document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first finding of a document that tells the truth, by its code; one with the right room where there is one."""
    those = [one for one in document["findings"] if one["code"] in truth.codes]
    named = [one for one in those if not truth.room or truth.room in one["rooms"]]
    return next(iter(named or those), None)


def false(truth: Truth, document: dict[str, Any]) -> list[str]:
    """Return the findings that are neither true nor follow from what is, each with its summary."""
    fine = {*truth.codes, *truth.also}
    return [
        f"{one['code']} {one['summary']}"
        for one in document["findings"]
        if one["level"] in BAD and one["code"] not in fine and one["follows"] not in fine
    ]


def names(finding: dict[str, Any], truth: Truth) -> dict[str, bool | None]:
    """Return whether a finding names the room and the ranks; None where there are none to name."""
    text = " ".join((finding["summary"], *finding["evidence"]))
    return {
        "room": truth.room in finding["rooms"] or str(truth.room) in text if truth.room else None,
        "rank": all(_names(finding, rank, text) for rank in truth.ranks) if truth.ranks else None,
    }


def _names(finding: dict[str, Any], rank: str, text: str) -> bool:
    """Return whether a finding names a rank: whole, or by its place among the ranks of the group that it is about."""
    if rank in finding["ranks"] or rank in text:
        return True
    role, dp, pp, tp = rank.split()
    words = [role, dp] if any(place.startswith("pp") for place in finding["ranks"]) else [role, dp, pp]
    of_group = finding["group"].split()[: len(words)] == words
    return of_group and not {tp, pp, f"{pp} {tp}"}.isdisjoint(finding["ranks"])


def totals(rows: Iterable[Row]) -> dict[str, Any]:
    """Return how many runs there were, recall, precision, and what was told when."""
    rows = list(rows)
    acted = [row for row in rows if not row["discarded"]]
    sick = [row for row in acted if not row["twin"]]
    told = [row for row in sick if row["code"]]
    alarms = [row for row in acted if row["false"]]

    def share(key: str) -> tuple[int, int]:
        known = [row[key] for row in told if row[key] is not None]
        return sum(known), len(known)

    return {
        "runs": len(rows),
        "discarded": len(rows) - len(acted),
        "sick": len(sick),
        "told": len(told),
        "twins": len(acted) - len(sick),
        "recall": len(told) / len(sick) if sick else None,
        "precision": len(told) / (len(told) + len(alarms)) if told or alarms else None,
        "false": len(alarms),
        "looks": sum(row["looks"] for row in acted),
        "not judged": sum(bool(row["partial"]) for row in acted if row["twin"]),
        **{key: share(key) for key in ("room", "rank", "round")},
        "seconds": spread(row["seconds"] for row in told),
        "load": spread(row["load"] for row in acted),
    }


def spread(values: Iterable[float]) -> list[float]:
    """Return median, 90th percentile and most; nothing of no values."""
    those = sorted(values)
    return [those[len(those) // 2], those[min(len(those) - 1, len(those) * 9 // 10)], those[-1]] if those else []


def confusion(rows: Iterable[Row]) -> dict[tuple[str, str], int]:
    """Return (case, what was told first) → runs. ``nothing``: no finding; ``discarded``: what was to be done did not happen."""
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        told = "discarded" if row["discarded"] else row["code"] or _first(row["false"]) or "nothing"
        found[row["case"], told] += 1
    return dict(found)


def _first(false: Sequence[str]) -> str:
    return f"{false[0].split()[0]} (false)" if false else ""


def by(rows: Iterable[Row], key: str) -> dict[str, dict[str, Any]]:
    """Return the totals of the runs that have the same ``key``."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[str(row[key])].append(row)
    return {name: totals(those) for name, those in groups.items()}
