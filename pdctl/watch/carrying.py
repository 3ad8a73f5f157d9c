"""What a check that could not look at everything leaves standing of the one before. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from pdctl.probes.check.model import Outcome
from pdctl.protocol.rank import FoundRank, Silence
from pdctl.report.findings import Finding

Behind = Collection[tuple[str, str]]
"""Labels and units of ranks."""


def lost(ranks: Sequence[FoundRank], known: dict[str, Behind]) -> Behind:
    """Return the ranks behind far sides that can't be reached now, as they were last seen there: they may run as before.

    known: far side → the ranks that were last seen there, which is brought up to date.
    """
    seen: dict[str, set[tuple[str, str]]] = {}
    silent = set()
    for rank in ranks:
        i = rank.identity
        if i.role == "unknown" and rank.silent not in (Silence.NONE, Silence.NO_AGENT):
            silent.add(rank.via or i.service)
        elif rank.via:
            seen.setdefault(rank.via, set()).add((i.label, i.unit))
    unseen = {side: set(known.get(side, ())) - seen.get(side, set()) for side in silent}
    for side, there in seen.items():  # one may lead to several hosts
        known[side] = there | unseen.get(side, set())
    return {one for ranks in unseen.values() for one in ranks}


def carried(outcome: Outcome, before: Sequence[Outcome], there: Collection[str], away: Behind = ()) -> Outcome:
    """Return what a stage came to, with the findings of the same stage ``before`` that it neither has nor disproves.

    It disproves those of ranks that it could look at. there: labels of the ranks that run; what was found of others is over.
    away: those that are :func:`lost`; what was found of them stands.
    """
    if not (outcome.problems or away):
        return outcome
    has = {_key(found) for found in outcome.findings}
    kept = tuple(
        found
        for one in before
        if one.name == outcome.name
        for found in one.findings
        if _key(found) not in has
        and (_of(found, away) or (_unseen(found, outcome.problems) and not _gone(found, there)))
    )
    return replace(outcome, findings=(*outcome.findings, *kept)) if kept else outcome


def _key(found: Finding) -> tuple[str, str, tuple[str, ...]]:
    return found.code, found.group, found.ranks


def _of(found: Finding, ranks: Behind) -> bool:
    """Return whether a finding is about one of these ranks."""
    return bool(found.ranks or found.units) and any(
        (not found.ranks or label in found.ranks) and (not found.units or unit in found.units) for label, unit in ranks
    )


def _unseen(found: Finding, problems: Sequence[str]) -> bool:
    """Return whether what was not seen may be what was found: a problem names its rank or its group, or no rank at all."""
    return any(
        problem.startswith((*found.ranks, found.group or "\0")) or not problem.startswith(("prefill ", "decode "))
        for problem in problems
    )


def _gone(found: Finding, there: Collection[str]) -> bool:
    labels = [rank for rank in found.ranks if rank.startswith(("prefill ", "decode "))]
    return bool(labels) and not any(rank in there for rank in labels)
