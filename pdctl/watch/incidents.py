"""What began and what is over, from one look to the next. Pure: states in, changes out.

An incident is a finding that stands, whatever its rooms: they come and go. A warning counts when two whole checks have it, an
error at once. It is over when its finding is, and that is the eye's word: it needs a look that saw its ranks. What follows from
another finding is no incident of its own: an alarm whose cause is found later becomes that cause's.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pdctl.protocol.documents import Document
from pdctl.report.findings import Finding, Level
from pdctl.targets import nodeset
from pdctl.watch.merging import PARTED
from pdctl.watch.model import GroupState, WatchState

BEGAN, CAUSE, OVER, ENDED, OFTEN, RANKS = "began", "cause", "over", "ended", "often", "ranks"
"""An alarm; its cause was found; it is over; the ranks that it was about are gone; it came and went; other ranks are there."""
MOST = 1000
"""Incidents that are known at one time. What is over is forgotten first."""
LINES, WINDOW_S = 4, 60.0
"""Lines about one incident within so many seconds; what is more is counted, and told once at their end."""
MOST_ROOMS = 32
MOST_KEYS = 64
_NS = 1_000_000_000

Key = tuple[str, ...]


class Change(Document, frozen=True, kw_only=True, tag="pdctl.watch.change"):
    """One line of ``watch``. change: ``began``, ``cause``, ``over``, ``ended`` (its ranks are gone), ``often`` or ``ranks``.

    incident: its number, from 1 on; 0 for ``ranks``. since_wall_ns: when it began. count: how often it has begun.
    queue, round, age_s: of the first round that differs and its age, where ranks have parted. times:
    changes that were not told, for ``often``. finding: as it is now, None for ``ranks``.
    """

    at_wall_ns: int
    change: str
    incident: int = 0
    code: str = ""
    level: str = ""
    group: str = ""
    ranks: tuple[str, ...] = ()
    rooms: tuple[int, ...] = ()
    queue: str = ""
    round: int = -1
    age_s: float | None = None
    since_wall_ns: int = 0
    count: int = 1
    times: int = 0
    summary: str = ""
    next_step: str = ""
    finding: Finding | None = None


@dataclass
class _Incident:
    number: int
    finding: Finding
    since_ns: int
    open: bool = True
    count: int = 1
    rooms: tuple[int, ...] = ()
    told: deque[int] = field(default_factory=deque)
    untold: int = 0
    group: GroupState | None = None
    codes: set[str] = field(default_factory=set)
    keys: set[Key] = field(default_factory=set)
    """Of its finding, and of those that have followed from it: where one of them is left alone, it is this incident still."""


class Incidents:
    """The incidents so far. Their number is bounded, so a watch may last for weeks."""

    def __init__(self) -> None:
        self._all: OrderedDict[Key, _Incident] = OrderedDict()
        self._pending: dict[Key, int] = {}
        self._numbers = 0
        self._lines = _Incident(0, Finding("", Level.INFO, ""), 0)
        self._there: tuple[str, ...] | None = None

    @property
    def standing(self) -> int:
        """How many incidents are not over."""
        return sum(one.open for one in self._all.values())

    def see(self, state: WatchState) -> list[Change]:
        """Return what has changed, in the order in which it is to be told."""
        now = state.at_wall_ns
        changes = self._ranks(state)
        roots, root_of = _connected(state.findings)
        self._merge(state.findings, roots, root_of)
        for key, found in roots.items():
            one = self._all.get(key)
            if one is not None and one.open:
                changes += self._goes_on(now, one, found, state)
            elif self._counts(key, found, state):
                changes += self._begins(now, key, found, state)
        for key, one in self._all.items():
            if one.open and key not in roots and key not in root_of:
                one.open = False
                gone = _gone(one.finding, state)
                changes += self._told(now, one, ENDED if gone else OVER)
        self._pending = {key: seen for key, seen in self._pending.items() if key in roots}
        changes += self._often(now)
        return changes

    # ---- one incident ------------------------------------------------------------------------------------------------

    def _counts(self, key: Key, found: Finding, state: WatchState) -> bool:
        """Return whether a new finding is an incident: an error at once, a warning when a check that began later has it."""
        if found.level is Level.ERROR:
            return True
        first = self._pending.setdefault(key, state.at_wall_ns)
        return state.checked_began_wall_ns > first and len(self._pending) <= MOST

    def _begins(self, now: int, key: Key, found: Finding, state: WatchState) -> list[Change]:
        self._pending.pop(key, None)
        one = self._all.get(key)
        if one is None:
            if not self._room():
                return []
            self._numbers += 1
            one = self._all[key] = _Incident(self._numbers, found, now)
        else:
            one.open, one.count, one.since_ns, one.rooms = True, one.count + 1, now, ()
            one.codes, one.keys = set(), set()
            self._all.move_to_end(key)
        self._note(one, found, state)
        return self._told(now, one, BEGAN)

    def _goes_on(self, now: int, one: _Incident, found: Finding, state: WatchState) -> list[Change]:
        other = found.code not in one.codes
        self._note(one, found, state)
        return self._told(now, one, CAUSE) if other else []

    def _merge(self, findings: Sequence[Finding], roots: dict[Key, Finding], root_of: dict[Key, Key]) -> None:
        """Make an incident whose finding turns out to follow from another one that one's; two of one cause are one.

        Where a cause is not seen any more and what followed from it is, that is the same incident, too.
        """
        codes = {key_of(found): found.code for found in findings}
        for key, cause in root_of.items():
            one, other = self._all.get(key), self._all.get(cause)
            if one is not None and one.open:
                if other is not None and other.open:
                    one.open = False
                    other.keys |= one.keys
                    other.codes |= one.codes
                else:
                    self._all[cause] = self._all.pop(key)
            elif other is not None and len(other.keys) < MOST_KEYS:
                other.keys.add(key)
                other.codes.add(codes[key])
        for key in [key for key, one in self._all.items() if one.open and key not in roots and key not in root_of]:
            left = next((other for other in roots if other in self._all[key].keys), None)
            there = self._all.get(left) if left is not None else None
            if left is not None and (there is None or not there.open):
                self._all[left] = self._all.pop(key)

    def _note(self, one: _Incident, found: Finding, state: WatchState) -> None:
        one.finding = found
        one.codes.add(found.code)
        one.keys.add(key_of(found))
        one.rooms = tuple(dict.fromkeys((*found.rooms, *one.rooms)))[:MOST_ROOMS]
        if found.code in PARTED:
            parted = (group for group in state.groups if group.verdict == "DIVERGED" and _is_of(found, group))
            one.group = next(parted, one.group)

    def _room(self) -> bool:
        """Return whether one more may be kept, after the oldest of those that are over is forgotten where it must be."""
        if len(self._all) < MOST:
            return True
        old = next((key for key, one in self._all.items() if not one.open), None)
        if old is not None:
            del self._all[old]
        return old is not None

    # ---- lines -------------------------------------------------------------------------------------------------------

    def _told(self, now: int, one: _Incident, change: str) -> list[Change]:
        """Return the line of a change, nothing where there were too many about this incident of late."""
        while one.told and one.told[0] <= now - int(WINDOW_S * _NS):
            one.told.popleft()
        if one.untold or len(one.told) >= LINES:
            one.untold += 1
            return []
        one.told.append(now)
        return [self._line(now, one, change)]

    def _often(self, now: int) -> list[Change]:
        """Return a line for each incident whose changes were not told, when that began a while ago."""
        found = []
        for one in (self._lines, *self._all.values()):
            if one.untold and one.told and one.told[0] <= now - int(WINDOW_S * _NS):
                found.append(self._line(now, one, OFTEN))
                one.told, one.untold = deque((now,)), 0
        return found

    def _line(self, now: int, one: _Incident, change: str) -> Change:
        if one is self._lines:
            return Change(at_wall_ns=now, change=change, times=one.untold, summary=one.finding.summary)
        found, group = one.finding, one.group
        return Change(
            at_wall_ns=now,
            change=change,
            incident=one.number,
            code=found.code,
            level=found.level.value,
            group=found.group,
            ranks=found.ranks or (group.ranks if group is not None else ()),
            rooms=one.rooms,
            queue=group.queue if group is not None else "",
            round=group.round if group is not None else -1,
            age_s=group.age_s if group is not None else None,
            since_wall_ns=one.since_ns,
            count=one.count,
            times=one.untold if change == OFTEN else 0,
            summary=("now it stands: " if one.open else "now it is over: ") + found.summary
            if change == OFTEN
            else found.summary,
            next_step=found.next_step if change in (BEGAN, CAUSE) else "",
            finding=found,
        )

    def _ranks(self, state: WatchState) -> list[Change]:
        """Return the line that says who is there, where that has changed."""
        there = tuple(
            sorted(f"{rank.cluster}|{rank.instance or rank.service}|{rank.rank}|{rank.state}" for rank in state.ranks)
        )
        if there == self._there:
            return []
        first, self._there = self._there is None, there
        states = Counter(rank.state for rank in state.ranks if not rank.host)
        said = f"{states.total()} rank{'s'[: states.total() != 1]}: " if states else "no ranks"
        said += ", ".join(f"{number} {name}" for name, number in sorted(states.items()))
        if hosts := sorted(rank.rank for rank in state.ranks if rank.host):
            said += f"; {nodeset.none_seen_on(hosts)}"
        if not there and state.problems:
            said += f": {state.problems[0]}"
        self._lines.finding = Finding("", Level.INFO, said)
        if first:
            self._lines.told.append(state.at_wall_ns)
            return [self._line(state.at_wall_ns, self._lines, RANKS)]
        return self._told(state.at_wall_ns, self._lines, RANKS)


def _connected(findings: Sequence[Finding]) -> tuple[dict[Key, Finding], dict[Key, Key]]:
    """Return the findings that stand for themselves, of level warning and above, and for each other one the root it follows.

    As :func:`pdctl.report.causes.connect` has them: consequences come behind their cause.
    """
    roots: dict[Key, Finding] = {}
    root_of: dict[Key, Key] = {}
    root: Key = ()
    for found in findings:
        key = key_of(found)
        if not found.follows:
            root = key
            if found.level is not Level.INFO:
                roots.setdefault(key, found)
        elif key != root and root in roots:
            root_of[key] = root
    return roots, {key: cause for key, cause in root_of.items() if key not in roots}


def key_of(found: Finding) -> Key:
    """Return what makes a finding the same incident as another: its ranks, and not its rooms. Ranks of a group part once."""
    if found.code in PARTED:
        return ("parted", found.group, *found.units)
    return (found.code, found.group, *found.ranks, *found.units)


def _is_of(found: Finding, group: GroupState) -> bool:
    """Return whether a finding is about a group. Of a pipeline, whose stages have no group in common, it names the unit."""
    if found.group:
        return group.title == found.group
    unit = f"{group.title.partition(' · ')[0]} of "
    return group.kind == "stages" and any(one.startswith(unit) for one in found.units)


def _gone(found: Finding, state: WatchState) -> bool:
    """Return whether none of the servers that a finding is about is there any more."""
    about = _instances(found.units)
    return bool(about) and bool(state.ranks) and about.isdisjoint(rank.instance or rank.service for rank in state.ranks)


def _instances(units: Iterable[str]) -> set[str]:
    return {unit.partition(" of ")[2] for unit in units}
