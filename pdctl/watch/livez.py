"""What ``/livez`` says: whether a restart is due. Pure.

Only two things count, and each is proven: a group that has diverged, by the rounds that its ranks recorded, and a scheduler
loop that has not turned for so long and can't (PD114). Silence, a look that failed, a rank that ended, an unknown state and
any other finding are no reason to restart what may well be serving.
"""

from __future__ import annotations

from collections.abc import Mapping

from pdctl.report.findings import Finding
from pdctl.watch.metrics import RUNNING, place
from pdctl.watch.model import RankState, WatchState

STANDS = "PD114"
Key = tuple[str, str, str, str]


class Liveness:
    """Told of every look. reasons: why a restart is due, "" names nobody; empty where none is."""

    def __init__(self, stall_s: float) -> None:
        self.reasons: tuple[str, ...] = ()
        self._stall_s = stall_s
        self._since: dict[Key, int] = {}

    def take(self, state: WatchState) -> None:
        """Judge this look."""
        standing = {_key(rank): rank for rank in state.ranks if rank.state in RUNNING and _stands(rank, state.findings)}
        self._since = {key: self._since.get(key, state.at_wall_ns) for key in standing}
        self.reasons = (*_diverged(state), *self._stalled(standing, state.checked_wall_ns))

    def _stalled(self, standing: Mapping[Key, RankState], checked_ns: int) -> list[str]:
        found = []
        for key, rank in standing.items():
            # Without an agent the time of the last turn is not known: then it counts from when it was first seen to stand,
            # and only up to the last check that has seen it: no look does.
            witnessed_s = max(0, checked_ns - self._since[key]) / 1e9
            age_s = witnessed_s if rank.tick_age_s is None else rank.tick_age_s
            if age_s >= self._stall_s:
                found.append(f"{STANDS}: the scheduler loop of {rank.rank} has not turned for {age_s:.0f} s and can't")
        return found


def _diverged(state: WatchState) -> list[str]:
    """Return the groups that have diverged and of which a member runs: of an ended server only its recordings are left."""
    running = {(rank.cluster, rank.service, rank.rank) for rank in state.ranks if rank.state in RUNNING}
    return [
        f"{group.title} diverged" + (f" at round {group.round} of {group.queue}" if group.round >= 0 else "")
        for group in state.groups
        if group.verdict == "DIVERGED" and any((group.cluster, group.service, name) in running for name in group.ranks)
    ]


def _stands(rank: RankState, findings: tuple[Finding, ...]) -> bool:
    dp, _ = place(rank.rank)
    unit = f"{rank.role} dp{dp} of {rank.instance or rank.service}"
    return any(
        found.code == STANDS and rank.rank in found.ranks and (not dp or not found.units or unit in found.units)
        for found in findings
    )


def _key(rank: RankState) -> Key:
    return rank.cluster, rank.service, rank.instance, rank.rank
