"""The verdict of a drill: a pure function over its journal, so that anyone can judge it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from pdctl.inject.drill.records import (
    AFTER,
    BROKEN,
    DURING,
    HOLDS,
    INCONCLUSIVE,
    STEADY,
    End,
    FaultLine,
    Healed,
    LoadLine,
    Look,
    Manifest,
    Placed,
    Problem,
    Record,
    Step,
    Stopped,
    Verdict,
)
from pdctl.inject.drill.schema import LoadSpec
from pdctl.report.findings import Finding, Level

_R = TypeVar("_R")


@dataclass
class _Journal:
    """A journal's records, by what they say."""

    manifest: Manifest
    records: Sequence[Record]
    evidence: list[str] = field(default_factory=list)

    def all(self, kind: type[_R]) -> list[_R]:
        return [record for record in self.records if isinstance(record, kind)]

    def looks(self, step: str) -> list[Look]:
        return [look for look in self.all(Look) if look.step == step]

    def load(self, step: str) -> LoadLine | None:
        return next((load for load in self.all(LoadLine) if load.step == step), None)

    @property
    def sends(self) -> bool:
        """Whether the drill sends requests of its own."""
        return self.manifest.drill.load != "none"


def judge(records: Sequence[Record]) -> Verdict:
    """Return the verdict with its reason and what it rests on.

    HOLDS takes every step, a fault that fired, and a clean end; BROKEN takes a fault that fired and damage that shows;
    all else is INCONCLUSIVE, also a control that did not break. Raises ValueError where the first record is no manifest.
    """
    if not records or not isinstance(records[0], Manifest):
        raise ValueError("a journal begins with a manifest")
    journal = _Journal(records[0], records)
    verdict, reason = _judge(journal)
    if journal.manifest.control and verdict == HOLDS:
        verdict = INCONCLUSIVE
        reason = "the control did not break: this drill can't tell an engine with the fix from one without"
    elif journal.manifest.control and verdict == BROKEN:
        reason = f"the control broke, as it must: {reason}"
    return Verdict(verdict=verdict, reason=reason, evidence=tuple(journal.evidence))


def unsteady(records: Sequence[Record]) -> str:
    """Return why nothing may be injected after these records, "" when the state was steady.

    Raises ValueError where the first record is no manifest.
    """
    if not records or not isinstance(records[0], Manifest):
        raise ValueError("a journal begins with a manifest")
    return _unsteady(_Journal(records[0], records))


def _judge(journal: _Journal) -> tuple[str, str]:
    if not journal.all(End):
        last = next((step.step for step in reversed(journal.all(Step))), "the beginning")
        return INCONCLUSIVE, f"the journal ends in {last}: it was cut off, or the drill still runs"
    not_shown = _problem(journal) or _unsteady(journal) or _not_fired(journal)
    if not_shown:
        return INCONCLUSIVE, not_shown
    damage = _damage(journal)
    if damage:
        journal.evidence += damage[1:]
        return BROKEN, damage[0]
    unknown = _unknown(journal)
    if unknown:
        return INCONCLUSIVE, unknown
    return HOLDS, _held(journal)


# ---- what keeps a drill from showing anything ------------------------------------------------------------------------


def _problem(journal: _Journal) -> str:
    """Return what kept the fault from being placed, or the drill from being finished."""
    for problem in journal.all(Problem):
        return f"{problem.step}: {problem.message}"
    return ""


def _unsteady(journal: _Journal) -> str:
    looks, load = journal.looks(STEADY), journal.load(STEADY)
    if not looks:
        return "no steady state was seen"
    why = [_name(finding) for look in looks for finding in look.findings if finding.level is not Level.INFO]
    why += [f"no answer from {rank}" for rank in looks[-1].silent]
    why += [f"not judged: {problem}" for problem in looks[-1].problems if not looks[-1].silent]
    if journal.sends:
        why += ["no load was sent"] if load is None else _bad(load)
        if load is not None and not load.sent:
            why.append("no load was sent")
    if why:
        journal.evidence += why[1:]
        return f"no steady state, nothing was injected: {why[0]}"
    journal.evidence.append(f"steady: {len(looks)} looks without a finding{_finished(load)}")
    return ""


def _bad(load: LoadLine, whose: str = "requests") -> list[str]:
    counts = (("failed", load.failed), ("had wrong tokens", load.wrong), ("did not finish", load.unfinished))
    errors = f" ({next(iter(load.errors))})" if load.errors else ""
    return [f"{count} of {load.sent} {whose} {what}{errors}" for what, count in counts if count]


def _finished(load: LoadLine | None) -> str:
    if load is None:
        return ""
    unchecked = f" ({load.unchecked} without their tokens being compared)" if load.unchecked else ""
    return f", {load.completed} of {load.sent} requests completed{unchecked}"


def _fault(journal: _Journal) -> FaultLine | None:
    """Return the fault's last counts; none is smaller than an earlier one."""
    return max(journal.all(FaultLine), key=lambda line: (line.fired, line.final, line.at), default=None)


def _not_fired(journal: _Journal) -> str:
    drill = journal.manifest.drill
    gives_up = isinstance(drill.load, LoadSpec) and drill.load.lab is not None and bool(drill.load.lab.abort_after)
    if drill.fault is None or gives_up:
        harmless = _harmless(journal, misroutes=drill.fault is None)
        if harmless or drill.fault is None:
            return harmless
    if not journal.all(Placed):
        return "the fault was not placed"
    counts = _fault(journal)
    if counts is None:
        return "nothing is known of what the fault did"
    if not counts.fired:
        return f"the fault never fired ({why_not(counts.visits, counts.eligible)}): nothing was shown, either way"
    kind = drill.fault.kind
    rooms = f", rooms {', '.join(map(str, counts.rooms[:8]))}" if counts.rooms else ""
    journal.evidence.append(f"fault: {kind} fired {counts.fired} of {counts.eligible} eligible{rooms}")
    return ""


def _harmless(journal: _Journal, *, misroutes: bool) -> str:
    """Return why a load that is (part of) the cause did no harm, "" if it did. misroutes: a misrouted request is harm too."""
    load = journal.load(DURING)
    if load is None:
        return "the load that is this drill's cause was not sent"
    if load.harm:
        journal.evidence.append(f"cause: {load.harm}")
        return ""
    misrouted = load.misrouted if misroutes else 0
    if not misrouted and not load.aborted:
        what = "sent to the wrong prefill dp rank or given up" if misroutes else "given up"
        return f"none of {load.sent} requests was {what}: nothing was broken, so nothing was shown"
    counts = ((misrouted, "misrouted"), (load.aborted, "given up"))
    journal.evidence.append(f"cause: of {load.sent} requests {', '.join(f'{n} {what}' for n, what in counts if n)}")
    return ""


def why_not(visits: int, eligible: int) -> str:
    """Return why a fault with these counts did not fire."""
    if not visits:
        return "its site was never visited"
    if not eligible:
        return f"none of its {visits} visits was of a rank and room aimed at"
    return f"{eligible} visits were eligible, and it acted on none"


# ---- damage ----------------------------------------------------------------------------------------------------------


def _damage(journal: _Journal) -> list[str]:
    """Return the evidence of damage, the strongest first."""
    expect = journal.manifest.drill.expect
    found: dict[str, None] = {}
    after = journal.looks(AFTER)
    for look in (*journal.looks(DURING), *after):
        found.update({_name(finding): None for finding in look.findings if means_broken(finding, expect.broken)})
    for look in after[-1:]:
        found.update({_name(finding): None for finding in look.findings if finding.level is not Level.INFO})
    for look in (*journal.looks(DURING)[-1:], *after[-1:]):
        found.update({f"{rank} has died": None for rank in look.dead})
    found.update({f"stopped: {stop.why}": None for stop in journal.all(Stopped)})
    for step, whose in ((DURING, "requests sent while the fault was in place"), (AFTER, "requests sent after healing")):
        load = journal.load(step)
        if load is not None:
            may_fail = step == DURING and expect.requests != "finish"
            found.update(dict.fromkeys(_lost(load, whose, may_fail=may_fail)))
            if step == DURING and expect.requests == "end in fault" and load.ended != DURING:
                found["requests did not end while the fault was in place"] = None
    for look in after[-1:]:
        for room, ranks in look.lingering.items():
            found[f"room {room} stays on {', '.join(ranks)}"] = None
    return list(found)


def _lost(load: LoadLine, whose: str, *, may_fail: bool) -> list[str]:
    if may_fail:
        load = msgspec.structs.replace(load, failed=0)
    return _bad(load, whose)


def means_broken(finding: Finding, codes: Sequence[str]) -> bool:
    """Return whether a finding means BROKEN: its code is one of ``codes``, or it is an error where there are none."""
    return finding.code in codes if codes else finding.level is Level.ERROR


def _name(finding: Finding) -> str:
    where = f" [{finding.group}]" if finding.group else ""
    return f"{finding.code} {finding.summary}{where}"


# ---- what is missing for HOLDS ---------------------------------------------------------------------------------------


def _unknown(journal: _Journal) -> str:
    looks = journal.looks(AFTER)
    healed = journal.all(Healed)
    if not journal.looks(DURING):
        return "nobody looked while the fault was in place"
    if journal.manifest.drill.fault is not None:
        if not healed:
            return "the fault was not healed by the drill"
        if not healed[-1].clean:
            journal.evidence += healed[-1].left
            return "the fault may still be in place"
    if not looks:
        return "nobody looked after healing"
    if looks[-1].silent:
        return f"after healing no answer from {', '.join(looks[-1].silent)}"
    if looks[-1].problems:
        return f"after healing not judged: {looks[-1].problems[0]}"
    if journal.sends:
        for step in (DURING, AFTER):
            load = journal.load(step)
            if load is None or not load.sent:
                return "no requests were sent " + (
                    "while the fault was in place" if step == DURING else "after healing"
                )
    return ""


def _held(journal: _Journal) -> str:
    during, after = journal.looks(DURING), journal.looks(AFTER)
    seen = {finding.code for look in during for finding in look.findings}
    shown = f" ({', '.join(sorted(seen))} seen)" if seen else ""
    journal.evidence.append(f"during: {len(during)} looks, no divergence{shown}{_finished(journal.load(DURING))}")
    journal.evidence.append(f"after: {len(after)} looks, clean{_finished(journal.load(AFTER))}")
    cause = "the load" if journal.manifest.drill.fault is None else journal.manifest.drill.fault.kind
    return f"{cause} acted, and the engine held"
