"""What one look gives as metrics, in the text format of Prometheus (version 0.0.4). Pure.

A label is a name of the cluster (cluster, service, role, dp, pp, group, queue), a state or a code: never a room, a request
id or anything else that a client chooses. Names come from ranks: each is escaped and cut. A family has at most
``MOST_SERIES`` series; what is over that is left out and counted in ``pdctl_series_left_out``.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pdctl
from pdctl.report import escaping
from pdctl.report.findings import catalogue
from pdctl.watch.model import GroupState, RankState, WatchState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_SERIES = 5_000
"""Series of one family."""
MOST_LABEL = 120
"""Characters of one label's value."""
MOST_KEPT = 20_000
"""Ranks and groups of which the counts are kept: 2,000 ranks that restart ten times."""
RUNNING = ("live", "silent", "outside")
"""States of ranks whose process runs."""
POLLS = "polls"
"""Kind of the groups that reduce their polls together."""
STATES = (*RUNNING, "dead", "no agent")
VERDICTS = ("AGREE", "ALONE", "HELD", "WAITING", "SKEWED", "KEPT", "DIVERGED", "UNKNOWN")
NS = 1e9

_PLACE = re.compile(r" dp([0-9]+) pp([0-9]+)(?: cp[0-9]+)? tp[0-9]+$", re.ASCII)

Labels = tuple[str, ...]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True)
class Family:
    """One metric: its name, ``counter`` or ``gauge``, what it is, the names of its labels."""

    name: str
    kind: str
    about: str
    labels: Labels = ()


SERVICE = ("cluster", "service", "role")
STAGE = (*SERVICE, "dp", "pp")
GROUP = (*SERVICE, "group")

UP = Family(
    "pdctl_up", "gauge", "1: the last look is not too old. 0: there is no fresh one, and nothing is told of ranks."
)
BUILD = Family("pdctl_build_info", "gauge", "The version of this exporter.", ("version",))
LOOKED = Family("pdctl_look_timestamp_seconds", "gauge", "When the last look ended.")
TOOK = Family("pdctl_look_duration_seconds", "gauge", "How long the last look took.")
LOOKS = Family("pdctl_looks_total", "counter", "Looks since this exporter began.")
CHECKED = Family("pdctl_check_timestamp_seconds", "gauge", "When the last whole check ended.")
SEEN = Family("pdctl_look_ranks", "gauge", "Ranks in the last look.")
PROBLEMS = Family("pdctl_look_problems", "gauge", "What the last look could not see: ranks, recordings, sources.")
LEFT_OUT = Family(
    "pdctl_series_left_out", "gauge", f"Series over the {MOST_SERIES} that a metric may have.", ("metric",)
)

RANKS = Family("pdctl_ranks", "gauge", "Ranks by state, as pdctl ranks calls it.", (*SERVICE, "state"))
TURNS = Family("pdctl_turns_total", "counter", "Turns of the scheduler loops, over all ranks of a service.", SERVICE)
AGENT = Family("pdctl_agent_cpu_seconds_total", "counter", "CPU time of the agents in the ranks of a service.", SERVICE)
FAULTS = Family("pdctl_faults_active", "gauge", "Injected faults in place.", SERVICE)
TURN_AGE = Family(
    "pdctl_turn_age_seconds", "gauge", "Time since the last turn, of the rank where it is longest.", STAGE
)
REQUESTS = Family(
    "pdctl_requests", "gauge", "Requests in a queue; tp ranks have the same ones.", (*STAGE, "queue", "state")
)
OLDEST = Family(
    "pdctl_oldest_request_age_seconds",
    "gauge",
    "How long the oldest request of a queue has been in it.",
    (*STAGE, "queue"),
)
SLOTS = Family("pdctl_metadata_slots", "gauge", "Metadata slots of a rank.", STAGE)
SLOTS_USED = Family("pdctl_metadata_slots_used", "gauge", "Metadata slots in use, of the rank that uses most.", STAGE)
GATED = Family("pdctl_gate_held_requests", "gauge", "Requests that only the metadata gate holds.", STAGE)
GATED_S = Family("pdctl_gate_held_seconds", "gauge", "How long the metadata gate has held the oldest of them.", STAGE)

DIVERGED = Family(
    "pdctl_group_diverged", "gauge", "1: ranks of the group differ in a round. No series: not known.", (*GROUP, "kind")
)
DIVERGED_S = Family(
    "pdctl_group_diverged_seconds", "gauge", "Time since the first round that differs, 0 without one.", (*GROUP, "kind")
)
ROUNDS = Family("pdctl_group_rounds_total", "counter", "Rounds of a group: polls that were reduced.", (*GROUP, "queue"))
ROUND_AGE = Family(
    "pdctl_group_round_age_seconds",
    "gauge",
    "Time since a round was last seen to begin. An idle group has none.",
    GROUP,
)
GROUPS = Family("pdctl_groups", "gauge", "Groups by verdict, as pdctl diff-queues gives it.", ("role", "verdict"))
FINDINGS = Family(
    "pdctl_findings", "gauge", "Findings now. kind: cause, or a consequence of another.", ("code", "level", "kind")
)

OWN = (UP, BUILD, LOOKED, TOOK, LOOKS, CHECKED, SEEN, PROBLEMS, LEFT_OUT)
LOOK = (
    DIVERGED, DIVERGED_S, ROUNDS, ROUND_AGE, GROUPS, FINDINGS, RANKS, TURNS, TURN_AGE, REQUESTS, OLDEST, SLOTS, SLOTS_USED,
    GATED, GATED_S, FAULTS, AGENT,
)  # fmt: skip
FAMILIES = (*OWN, *LOOK)
"""Every metric there is."""


class _Recent(OrderedDict[K, V], Generic[K, V]):
    """Forgets what was not put in for longest where there are more than ``MOST_KEPT``."""

    def put(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > MOST_KEPT:
            self.popitem(last=False)


class Totals:
    """Counters over all looks. A rank that restarts counts from 0 again; what is told here never goes down for that.

    Also when each group was last seen to begin a round. Of ranks and groups that are gone it keeps ``MOST_KEPT`` counts.
    """

    def __init__(self) -> None:
        self.looks = 0
        self._last: _Recent[tuple[str, Labels, str], float] = _Recent()
        self._sums: _Recent[tuple[str, Labels], float] = _Recent()
        self._moved: _Recent[Labels, tuple[int, int]] = _Recent()

    def take(self, state: WatchState) -> None:
        """Add what happened since the look before."""
        self.looks += 1
        for rank in state.ranks:
            whose = f"{rank.rank}\0{rank.instance}"
            self._add(TURNS, _service(rank), whose, rank.ticks)
            self._add(AGENT, _service(rank), whose, rank.agent_cpu_s)
        for labels, rounds in _rounds(state.groups).items():
            for queue, number in rounds.items():
                self._add(ROUNDS, (*labels, queue), "", number + 1)  # ordinals count from 0
            count = sum(rounds.values())
            if rounds and self._moved.get(labels, (-1, 0))[0] != count:
                self._moved.put(labels, (count, state.at_wall_ns))

    def total(self, family: Family, labels: Labels) -> float | None:
        """Return the counter with these labels, None where it was never known."""
        return self._sums.get((family.name, labels))

    def round_age_s(self, labels: Labels, now_ns: int) -> float | None:
        """Return the seconds since a round of this group was seen to begin, None where none was."""
        moved = self._moved.get(labels)
        return None if moved is None else max(0.0, (now_ns - moved[1]) / NS)

    def _add(self, family: Family, labels: Labels, whose: str, value: float | None) -> None:
        if value is None or not math.isfinite(value) or value < 0:
            return
        last = self._last.get((family.name, labels, whose), 0)
        self._last.put((family.name, labels, whose), value)
        sum_ = self._sums.get((family.name, labels), 0)
        self._sums.put((family.name, labels), sum_ + (value - last if value >= last else value))


@dataclass
class _Samples:
    """The samples of a look. Where two have the same labels the greater one counts, or their sum."""

    of: dict[Family, dict[Labels, float]] = field(default_factory=dict)

    def most(self, family: Family, labels: Labels, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            here = self.of.setdefault(family, {})
            here[labels] = max(value, here.get(labels, value))

    def add(self, family: Family, labels: Labels, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            here = self.of.setdefault(family, {})
            here[labels] = here.get(labels, 0) + value


def own(*, up: bool, state: WatchState | None, looks: int, left_out: Mapping[str, int]) -> str:
    """Return what the exporter tells of itself. up: whether the last look, ``state``, is fresh. left_out: :func:`look`'s."""
    samples = _Samples()
    samples.most(UP, (), int(up))
    samples.most(BUILD, (pdctl.__version__,), 1)
    samples.most(LOOKS, (), looks)
    if state is not None:
        samples.most(LOOKED, (), state.at_wall_ns / NS)
        samples.most(TOOK, (), state.took_s)
        samples.most(SEEN, (), sum(not rank.host for rank in state.ranks))
        samples.most(PROBLEMS, (), len(state.problems))
        samples.most(CHECKED, (), state.checked_wall_ns / NS if state.checked_wall_ns else None)
    for name, count in left_out.items():
        samples.most(LEFT_OUT, (name,), count)
    return _text(OWN, samples, {})


def look(state: WatchState, totals: Totals) -> tuple[str, dict[str, int]]:
    """Return what this look tells, and for each metric how many series were left out. ``totals`` has taken it."""
    samples = _Samples()
    _of_ranks(state.ranks, totals, samples)
    _of_groups(state, totals, samples)
    for code in catalogue().values():
        samples.add(FINDINGS, (code.code, code.level.value, "cause"), 0)
    for found in state.findings:
        samples.add(FINDINGS, (found.code, found.level.value, "consequence" if found.follows else "cause"), 1)
    left_out = {family.name: 0 for family in LOOK}
    text = _text(LOOK, samples, left_out)
    return text, left_out


def _of_ranks(ranks: Iterable[RankState], totals: Totals, samples: _Samples) -> None:
    fullest: dict[tuple[Labels, str], RankState] = {}
    for rank in ranks:
        service = _service(rank)
        for state in STATES:
            samples.add(RANKS, (*service, state), 0)
        samples.add(RANKS, (*service, rank.state), 1)
        samples.most(TURNS, service, totals.total(TURNS, service))
        samples.most(AGENT, service, totals.total(AGENT, service))
        if rank.state not in RUNNING:
            continue  # what it had is gone with it, and its ages only grow
        samples.add(FAULTS, service, rank.faults)
        stage = (*service, *place(rank.rank))
        samples.most(TURN_AGE, stage, rank.tick_age_s)
        samples.most(SLOTS, stage, rank.slots)
        samples.most(SLOTS_USED, stage, rank.slots_used)
        samples.most(GATED, stage, rank.gated)
        samples.most(GATED_S, stage, 0 if rank.gated == 0 else rank.gated_s)
        for queue, age in rank.oldest_s.items():
            samples.most(OLDEST, (*stage, queue), age)
        for queue, count in rank.queues.items():
            samples.most(OLDEST, (*stage, queue), None if count else 0)
            before = fullest.get((stage, queue))
            if before is None or count > before.queues[queue]:
                fullest[stage, queue] = rank
    for (stage, queue), rank in fullest.items():
        rest = rank.queues[queue]
        for state, count in rank.states.get(queue, {}).items():
            samples.add(REQUESTS, (*stage, queue, state), count)
            rest -= count
        if rest > 0 or not rank.states.get(queue):
            samples.add(REQUESTS, (*stage, queue, ""), max(0, rest))


def _of_groups(state: WatchState, totals: Totals, samples: _Samples) -> None:
    for group in state.groups:
        labels = _group(group)
        for verdict in VERDICTS:
            samples.add(GROUPS, (group.role, verdict), 0)
        samples.add(GROUPS, (group.role, group.verdict), 1)
        diverged = group.verdict == "DIVERGED"
        if group.verdict != "UNKNOWN":
            samples.most(DIVERGED, (*labels, group.kind), int(diverged))
            samples.most(DIVERGED_S, (*labels, group.kind), group.age_s if diverged else 0)
        if group.kind != POLLS:
            continue  # stages and dp ranks are members of such groups, whose rounds are theirs
        for queue in group.rounds:
            samples.most(ROUNDS, (*labels, queue), totals.total(ROUNDS, (*labels, queue)))
        if group.rounds:
            samples.most(ROUND_AGE, labels, totals.round_age_s(labels, state.at_wall_ns))


def place(rank: str) -> tuple[str, str]:
    """Return dp and pp of a rank's label, "" where it names none."""
    found = _PLACE.search(rank)
    return ("", "") if found is None else (found[1], found[2])


def _service(rank: RankState) -> Labels:
    return rank.cluster, rank.service, rank.role


def _group(group: GroupState) -> Labels:
    """Return its labels: the same however many servers there are beside it, whose names its title then tells apart."""
    name = " · ".join(group.title.split(" · ")[:2])
    return group.cluster, group.service, group.role, name


def _rounds(groups: Iterable[GroupState]) -> dict[Labels, dict[str, int]]:
    """Return queue → ordinal of the last round, for each group that polls; of two of one name the greater one."""
    found: dict[Labels, dict[str, int]] = {}
    for group in groups:
        if group.kind != POLLS:
            continue
        here = found.setdefault(_group(group), {})
        for queue, number in group.rounds.items():
            here[queue] = max(number, here.get(queue, number))
    return found


# ---- text ------------------------------------------------------------------------------------------------------------


def _text(families: Iterable[Family], samples: _Samples, left_out: dict[str, int]) -> str:
    return "".join(line for family in families for line in _lines(family, samples.of.get(family, {}), left_out))


def _lines(family: Family, samples: Mapping[Labels, float], left_out: dict[str, int]) -> Iterator[str]:
    if not samples:
        return
    yield f"# HELP {family.name} {_escape(family.about, quotes=False)}\n# TYPE {family.name} {family.kind}\n"
    rows = sorted(samples.items())
    if len(rows) > MOST_SERIES:
        left_out[family.name] = len(rows) - MOST_SERIES
        rows.sort(key=lambda row: not row[1])  # stable: what is 0 goes first
        rows = sorted(rows[:MOST_SERIES])
    written: set[str] = set()
    for labels, value in rows:
        shown = ",".join(f'{name}="{_value(text)}"' for name, text in zip(family.labels, labels, strict=True))
        if shown in written:
            continue  # two names that differ only after they are cut: one is told, a scrape with both is refused
        written.add(shown)
        yield f"{family.name}{{{shown}}} {_number(value)}\n" if shown else f"{family.name} {_number(value)}\n"


def _value(text: str) -> str:
    """Return a label's value: one line of visible characters, cut, and quoted as the format wants it."""
    return _escape(escaping.escape(text, most=MOST_LABEL), quotes=True)


def _escape(text: str, *, quotes: bool) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
