"""Who keeps ranks waiting that have no polls in common: pipeline stages, and the dp ranks of one dp attention. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pdctl.probes.queues import formatting
from pdctl.probes.queues.model import RankView
from pdctl.probes.turns import ENDED, HALTED, LOST, Turn
from pdctl.report.findings import Finding, finding


class Wait(NamedTuple):
    """Ranks that wait for others, by name. waited_s: for how long at least."""

    waiting: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    waited_s: float = 0.0


def kept_waiting(members: Mapping[str, RankView], stalled_s: float) -> Wait:
    """Return who has waited for ``stalled_s`` for whom, nobody while one computes or of one it is not known what it does.

    Late is one whose process is held or has ended, or whose main thread is where neither work nor waiting takes it.
    """
    turns = {name: view.turn for name, view in members.items()}
    if any(turn is None or turn.state == LOST or _computes(turn) for turn in turns.values()):
        return Wait()
    known = {name: turn for name, turn in turns.items() if turn is not None}
    late = tuple(name for name, turn in known.items() if _late(turn, stalled_s))
    ages = {name: turn.age_s or 0.0 for name, turn in known.items() if turn.waiting and not turn.turned}
    waiting = {name: age for name, age in ages.items() if age >= stalled_s and name not in late}
    return Wait(tuple(waiting), late, min(waiting.values())) if waiting and late else Wait()


def _computes(turn: Turn) -> bool:
    return turn.computing and not turn.turned


def _late(turn: Turn, stalled_s: float) -> bool:
    if turn.turned or turn.idle or turn.waiting:
        return turn.state in HALTED and not turn.turned
    elsewhere = turn.turned is False and bool(turn.doing) and (turn.age_s or 0.0) >= stalled_s
    return turn.state in HALTED or turn.state == ENDED or elsewhere


def late_finding(wait: Wait, members: Mapping[str, RankView], title: str) -> Finding:
    """Return the finding that these keep the others waiting."""
    summary = (
        f"{formatting.names(wait.waiting)} of {title} {formatting.has(wait.waiting)} waited {wait.waited_s:.0f} s for"
        f" {formatting.names(wait.late)}"
    )
    return finding(
        "PD110",
        summary,
        group=title,
        ranks=tuple(members[name].identity.label for name in wait.late),
        evidence=tuple(f"{name}: {_state(members[name])}" for name in wait.late),
        units=(view.identity.unit for view in members.values()),
    )


def _state(view: RankView) -> str:
    assert view.turn is not None
    if view.turn.halted and (view.turn.state in HALTED or not view.turn.doing):
        return f"its process is {view.turn.halted}"
    return view.silence or view.turn.doing or "its process has ended"
