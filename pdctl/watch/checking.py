"""The whole check, again and again in a thread of its own: every stage of ``check``, with its own connections."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from pdctl.probes.check import probe as check
from pdctl.probes.run import choose
from pdctl.protocol.errors import PdctlError
from pdctl.report.causes import connect
from pdctl.watch.carrying import Behind, carried, lost

if TYPE_CHECKING:
    from pdctl.probes.check.model import Outcome
    from pdctl.probes.queues.model import GroupReport, RankView
    from pdctl.probes.run import Asked
    from pdctl.protocol.requests import Space
    from pdctl.report.findings import Finding
    from pdctl.targets.find import Found
    from pdctl.targets.places import Places

LEAST_S = 2.0
"""Between the end of a check and the next one, or the CPU time of the last one, if that is longer: half of one core at most."""
_END_S = 2.0


@dataclass(frozen=True)
class Checked:
    """What a whole check has come to so far. began_ns, ended_ns: on the monotonic clock, 0 while it is under way.

    found: the ranks that it found, None where there were none. views, groups: what its last stage but one saw of ranks' queues.
    outcomes: of the stages, in their order, with what earlier checks found where this one could not look.
    begun: stage → when the check began that it is of, where that is a later one, which was ended early.
    """

    began_ns: int = 0
    ended_ns: int = 0
    ended_wall_ns: int = 0
    outcomes: tuple[Outcome, ...] = ()
    problems: tuple[str, ...] = ()
    found: Found | None = None
    views: tuple[RankView, ...] = ()
    groups: tuple[GroupReport, ...] = ()
    spaces: dict[str, Space] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)

    @property
    def began_wall_ns(self) -> int:
        """When it began, on the wall clock; 0 while it is under way."""
        return self.ended_wall_ns - (self.ended_ns - self.began_ns) if self.ended_wall_ns else 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all stages, connected."""
        return connect([found for outcome in self.outcomes for found in outcome.findings])


def with_parts(last: Checked, now: Checked | None) -> Checked:
    """Return the last check, with what the one that ended early has found."""
    if now is None:
        return last
    parts = {one.name: one for one in (*last.outcomes, *now.outcomes)}
    begun = last.begun | {one.name: now.began_ns for one in now.outcomes}
    return replace(last, outcomes=tuple(parts.values()), begun=begun)


class Checker:
    """Checks every ``check_s`` seconds and when it is told to. news: set whenever ``last`` or ``now`` is another."""

    def __init__(self, asked: Asked, places: Places, check_s: float, news: threading.Event) -> None:
        self.last = Checked()
        """The last check that came to its end."""
        self.now: Checked | None = None
        """The one that is under way."""
        self._asked, self._places, self._check_s, self._news = asked, places, check_s, news
        self._behind: dict[str, Behind] = {}
        """Far side → the ranks that were last seen there."""
        self._told = threading.Event()
        self.parted = False
        """Ranks have parted: slots, which tell why, are looked at first."""
        self._over = threading.Event()
        self._anew = True
        """Whether this check may be ended for something new: once in ``check_s``."""
        self._thread = threading.Thread(target=self._run, name="pdctl check", daemon=True)
        self._thread.start()

    def tell(self) -> None:
        """Begin the next check as soon as it may be."""
        self._told.set()

    def close(self) -> None:
        """End; a stage that is under way is not waited for longer than a moment."""
        self._over.set()
        self._told.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        began_anew = 0.0
        while not self._over.is_set():
            began, cpu = time.monotonic(), time.thread_time()
            self._told.clear()
            self._anew = began >= began_anew + self._check_s
            try:
                done = self._check()
            except PdctlError as error:
                done = replace(self.last, problems=(error.message,), found=None)
            except Exception as error:  # noqa: BLE001  # a watch of weeks does not end for one check
                done = replace(self.last, problems=(f"the whole check failed: {type(error).__name__}: {error}",))
            self.last, self.now = done or with_parts(self.last, self.now), None
            self._news.set()
            if done is None:
                began_anew = time.monotonic()
                continue
            rest_s = max(LEAST_S, time.thread_time() - cpu)
            self._over.wait(rest_s)
            self._told.wait(max(0.0, self._check_s - (time.monotonic() - began)))

    def _check(self) -> Checked | None:
        """Check everything. None: it was ended, since there is something new that its first stages have not seen."""
        from pdctl.probes.base import PAUSE_S
        from pdctl.probes.queues.collect import collect
        from pdctl.probes.queues.judge import judge
        from pdctl.probes.view import View
        from pdctl.targets.client import Client
        from pdctl.targets.find import discover
        from pdctl.targets.servers import process_key
        from pdctl.watch import storms

        began_ns = time.monotonic_ns()
        timeout_s = max(self._asked.timeout_s, check.PROBE.timeout_s)
        found = discover(
            self._places,
            every_start=self._asked.every_start,
            timeout_s=timeout_s,
            rank_timeout_s=self._asked.rank_timeout_s,
            outside=True,
        ).require()
        away = lost(found.ranks, self._behind)
        chosen, others = choose(found, self._asked.selection)
        with Client(timeout_s=timeout_s, spent_s=found.took_s, rank_timeout_s=self._asked.rank_timeout_s) as client:
            client.give_up_on_silent()
            view = View.open(chosen, client, others=others)
            there = [rank.identity.label for rank in view.ranks if rank.live]
            so_far = self.now = Checked(began_ns=began_ns, found=found)
            self._news.set()
            stages = check.chosen(check.CheckOptions(), recorded=False)
            if self.parted:
                stages.sort(key=lambda stage: stage.name != "metadata")
            for outcome in chain(check.run(view, stages, PAUSE_S), map(storms.look, (view,))):
                if self._over.is_set() or (self._anew and self._told.is_set()):
                    return None
                kept = carried(outcome, self.last.outcomes, there, away)
                so_far = self.now = replace(so_far, outcomes=(*so_far.outcomes, kept))
                self._news.set()
            views = collect(view)
            rooms = [] if view.over else view.rooms([rank for rank in view.ranks if rank.live])
        spaces = {process_key(one.rank.identity): one.body.space for one in rooms if one.body is not None}
        problems = tuple(dict.fromkeys(problem for one in so_far.outcomes for problem in one.problems))
        return replace(
            so_far,
            ended_ns=time.monotonic_ns(),
            ended_wall_ns=time.time_ns(),
            problems=(*problems, *found.problems),
            views=tuple(replace(one, recording=None) for one in views),  # recordings are large
            groups=judge(views).groups,
            spaces=spaces,
        )
