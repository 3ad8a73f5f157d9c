"""What a check that could not look at everything leaves standing of the one before. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from pdctl.probes.check.model import Outcome
from pdctl.report.findings import Finding


def carried(outcome: Outcome, before: Sequence[Outcome], there: Collection[str]) -> Outcome:
    """Return what a stage came to, with the findings of the same stage ``before`` that it neither has nor disproves.

    It disproves those of ranks that it could look at. there: labels of the ranks that run; what was found of others is over.
    """
    if not outcome.problems:
        return outcome
    has = {_key(found) for found in outcome.findings}
    kept = tuple(
        found
        for one in before
        if one.name == outcome.name
        for found in one.findings
        if _key(found) not in has and _unseen(found, outcome.problems) and not _gone(found, there)
    )
    return replace(outcome, findings=(*outcome.findings, *kept)) if kept else outcome


def _key(found: Finding) -> tuple[str, str, tuple[str, ...]]:
    return found.code, found.group, found.ranks


def _unseen(found: Finding, problems: Sequence[str]) -> bool:
    """Return whether what was not seen may be what was found: a problem names its rank or its group, or no rank at all."""
    return any(
        problem.startswith((*found.ranks, found.group or "\0")) or not problem.startswith(("prefill ", "decode "))
        for problem in problems
    )


def _gone(found: Finding, there: Collection[str]) -> bool:
    labels = [rank for rank in found.ranks if rank.startswith(("prefill ", "decode "))]
    return bool(labels) and not any(rank in there for rank in labels)
