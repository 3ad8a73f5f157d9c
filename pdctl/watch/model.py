"""What one look of ``watch``, ``export`` and ``top`` gives: ranks, groups and findings as they are now."""

from __future__ import annotations

import msgspec

from pdctl.protocol.documents import Document
from pdctl.report.findings import Finding


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """One rank now.

    rank: its label. state, reason, where: as in :class:`pdctl.probes.ranks.judge.RankRow`. ticks: turns of its scheduler loop,
    tick_age_s: seconds since the last one. rounds: ``queue/group kind`` → ordinal of the last round entered.
    queues: queue → requests in it. states: queue → state of the poll → requests in it that are in that state.
    oldest_s: queue → seconds that its oldest request has been there. slots, slots_used: metadata slots.
    gated: requests that only the gate holds, gated_s: seconds that the longest has been held.
    faults: injected ones that are active. agent_cpu_s: CPU seconds that its agent has used. None or empty where unknown.
    host: it is no rank, but a host or a pod that gives none; reason says why.
    """

    rank: str
    role: str
    state: str
    cluster: str = ""
    service: str = ""
    instance: str = ""
    reason: str = ""
    where: str = ""
    ticks: int | None = None
    tick_age_s: float | None = None
    rounds: dict[str, int] = {}
    queues: dict[str, int] = {}
    states: dict[str, dict[str, int]] = {}
    oldest_s: dict[str, float] = {}
    slots: int | None = None
    slots_used: int | None = None
    gated: int | None = None
    gated_s: float | None = None
    faults: int | None = None
    agent_cpu_s: float | None = None
    host: bool = False

    @property
    def there(self) -> bool:
        """Whether anything is known of it but where it was looked for: not of a host or an endpoint that gives nothing."""
        return self.role != "unknown" or self.state != "silent"


class GroupState(msgspec.Struct, frozen=True, kw_only=True):
    """One group of ranks now. kind, verdict, queue, round, age_s: as in :class:`pdctl.probes.queues.model.GroupReport`.

    service: of its members, "" where they are of several. ranks: labels of its members.
    rounds: queue → ordinal of the last round that any member entered.
    """

    title: str
    kind: str
    verdict: str
    role: str = ""
    cluster: str = ""
    service: str = ""
    ranks: tuple[str, ...] = ()
    queue: str = ""
    round: int = -1
    age_s: float | None = None
    rounds: dict[str, int] = {}


class WatchState(Document, frozen=True, kw_only=True, tag="pdctl.watch.state"):
    """One look. at_wall_ns: when it ended, took_s: how long it took.

    findings: of this look, and of the last whole check where this look does not contradict them.
    checked_wall_ns, checked_began_wall_ns: when the last whole check ended and began, 0 for none yet.
    problems: what could not be seen, a line each.
    """

    at_wall_ns: int
    took_s: float
    ranks: tuple[RankState, ...]
    groups: tuple[GroupState, ...] = ()
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()
    checked_wall_ns: int = 0
    checked_began_wall_ns: int = 0
