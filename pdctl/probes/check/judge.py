"""Sums the stages up: what is suppressed, the level of each, and whether the whole has failed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pdctl.probes.check.model import ERROR, INFO, OK, UNKNOWN, WARNING, CheckDocument, Outcome, StageRow
from pdctl.report.findings import Finding, catalogue

RANKING = (OK, INFO, UNKNOWN, WARNING, ERROR)
"""Levels from good to bad."""
FAIL_ON = ("info", "warning", "error")

Suppressed = Mapping[str, frozenset[int] | None]
"""Code → rooms it is not wanted for; None: for none at all."""


def parse_suppressed(texts: Sequence[str]) -> Suppressed:
    """Return what ``PD142``, ``PD142=7001`` and the like leave out. Raises ValueError naming the one that is wrong."""
    found: dict[str, frozenset[int] | None] = {}
    for text in texts:
        code, given, room = text.strip().upper().partition("=")
        if code not in catalogue():
            raise ValueError(f"there is no finding {code!r}")
        if given and not room.isdecimal():
            raise ValueError(f"{room!r} is no room")
        before = found.get(code, frozenset())
        found[code] = None if not given or before is None else before | {int(room)}
    return found


def wanted(finding: Finding, suppressed: Suppressed) -> Finding | None:
    """Return the finding without the rooms that are suppressed, None where nothing of it is left."""
    if finding.code not in suppressed:
        return finding
    rooms = suppressed[finding.code]
    if rooms is None or not finding.rooms:
        return None if rooms is None else finding
    left = tuple(room for room in finding.rooms if room not in rooms)
    return msgspec.structs.replace(finding, rooms=left) if left else None


def judge(
    outcomes: Sequence[Outcome], *, suppressed: Suppressed, fail_on: str, others: tuple[str, ...] = ()
) -> CheckDocument:
    """Return the document of these stages. fail_on: one of FAIL_ON, the lowest level that fails. others: as it has them."""
    rows, findings, problems, out = [], [], [], 0
    for outcome in outcomes:
        kept = [found for found in (wanted(one, suppressed) for one in outcome.findings) if found is not None]
        left_out = len(outcome.findings) - len(kept)
        rows.append(_row(outcome, kept, left_out))
        findings += kept
        problems += [problem for problem in outcome.problems if problem not in problems]
        out += left_out
    level = max((row.level for row in rows), key=RANKING.index, default=UNKNOWN)
    failing = RANKING[RANKING.index(fail_on) :]
    return CheckDocument(
        level=level,
        failed=any(found.level.value in failing for found in findings),
        stages=tuple(rows),
        findings=tuple(sorted(findings, key=lambda found: -RANKING.index(found.level.value))),
        suppressed=out,
        partial=bool(problems),
        problems=tuple(problems),
        others=others,
    )


def _row(outcome: Outcome, findings: Sequence[Finding], suppressed: int) -> StageRow:
    worst = max((found.level.value for found in findings), key=RANKING.index, default=OK)
    if outcome.problems and RANKING.index(worst) < RANKING.index(UNKNOWN):
        worst = UNKNOWN
    told = next((found for found in findings if found.level.value == worst), None)
    if told is not None:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        summary = f"{told.code} {told.summary}{more}"
    elif worst == UNKNOWN:
        more = f" (and {len(outcome.problems) - 1} more)" if len(outcome.problems) > 1 else ""
        summary = f"{outcome.said}; not looked at: {outcome.problems[0]}{more}"
    else:
        summary = outcome.said
    codes = tuple(dict.fromkeys(found.code for found in findings))
    return StageRow(outcome.name, worst, summary, codes, suppressed, outcome.seconds)


__all__ = ["FAIL_ON", "judge", "parse_suppressed", "wanted"]
