"""Sums the stages up: what is suppressed, the level of each, and whether the whole has failed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pdctl.probes.check.model import ERROR, INFO, OK, UNKNOWN, WARNING, CheckDocument, Outcome, StageRow
from pdctl.report.causes import connect
from pdctl.report.findings import Finding, catalogue
from pdctl.targets.nodeset import fold_lines

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
    outcomes: Sequence[Outcome],
    *,
    suppressed: Suppressed,
    fail_on: str,
    others: tuple[str, ...] = (),
    not_recorded: tuple[str, ...] = (),
) -> CheckDocument:
    """Return the document of these stages. fail_on: one of FAIL_ON, the lowest level that fails.

    others, not_recorded: as the document has them.
    """
    wants = [[left for one in outcome.findings if (left := wanted(one, suppressed))] for outcome in outcomes]
    findings = connect([found for kept in wants for found in kept])
    follows = {_said(found): found.follows for found in findings}
    rows = [
        _row(outcome, [(found, follows.get(_said(found), found.code)) for found in kept])
        for outcome, kept in zip(outcomes, wants, strict=True)
    ]
    problems = dict.fromkeys(problem for outcome in outcomes for problem in outcome.problems)
    level = max((row.level for row in rows), key=RANKING.index, default=UNKNOWN)
    failing = RANKING[RANKING.index(fail_on) :]
    return CheckDocument(
        level=level,
        failed=any(found.level.value in failing for found in findings),
        stages=tuple(rows),
        findings=findings,
        suppressed=sum(row.suppressed for row in rows),
        partial=bool(problems),
        problems=tuple(problems),
        others=others,
        not_recorded=not_recorded,
    )


def _said(found: Finding) -> tuple[str, str, str]:
    return found.code, found.group, found.summary


def _row(outcome: Outcome, found: Sequence[tuple[Finding, str]]) -> StageRow:
    """Return the row of a stage. found: its findings, each with the code that it follows from or that says it already."""
    worst = max((one.level.value for one, _ in found), key=RANKING.index, default=OK)
    if (outcome.problems and RANKING.index(worst) < RANKING.index(UNKNOWN)) or (outcome.untold and worst == OK):
        worst = UNKNOWN
    told = [(one, follows) for one, follows in found if one.level.value == worst]
    if told:
        one, follows = min(told, key=lambda each: bool(each[1]))
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        after = f"follows from {follows}: " if follows not in ("", one.code) else ""
        summary = f"{one.code} {after}{one.summary}{more}"
    elif worst == UNKNOWN and not outcome.problems:
        summary = f"recordings do not tell of {outcome.untold}{outcome.said and f'; otherwise {outcome.said}'}"
    elif worst == UNKNOWN:
        problems = fold_lines(outcome.problems)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        summary = f"not seen or in part: {problems[0]}{more}{outcome.said and f'; otherwise {outcome.said}'}"
    else:
        summary = outcome.said or "there is nothing to judge"
    codes = tuple(dict.fromkeys(one.code for one, _ in found))
    return StageRow(outcome.name, worst, summary, codes, len(outcome.findings) - len(found), outcome.seconds)
