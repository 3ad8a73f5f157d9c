"""One sample of all ranks of a drill: evidence and judgement of ``pdctl diff-queues``, as a line of the journal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pdctl.inject.drill.records import GroupLine, Look
from pdctl.probes.queues.collect import collect
from pdctl.probes.queues.judge import judge, unconfirmed
from pdctl.probes.queues.model import GroupReport, RankView
from pdctl.probes.view import View
from pdctl.targets.client import Client
from pdctl.targets.find import Found, refresh

STALLED_FROM_S = 1.0
"""A scheduler without a turn for less is not worth a line."""


class Sampler:
    """Samples the ranks that existed when the drill began."""

    def __init__(self, client: Client, found: Found) -> None:
        self._client = client
        self._found = found
        self._before: list[RankView] | None = None
        self._turns: dict[str, tuple[int, float]] = {}

    def look(self, at: float, step: str, rooms: Sequence[int] = ()) -> Look:
        """Look once. rooms: those to look for in the queues."""
        self._client.restart()
        found = replace(self._found, ranks=tuple(refresh(rank) for rank in self._found.ranks))
        views = collect(View(found, self._client))
        confirmed = self._before is not None and unconfirmed(views, self._before)
        document = judge(views, confirmed=confirmed)
        self._before = views
        return Look(
            at=at,
            step=step,
            groups=tuple(_line(group) for group in document.groups),
            findings=document.findings,
            problems=document.problems,
            silent=tuple(f"{view.identity.label}: {view.silence}" for view in views if view.silence),
            dead=tuple(view.identity.label for view in views if view.state == "dead"),
            stalled=self._stalled(views),
            lingering=_lingering(views, set(rooms)),
        )

    def _stalled(self, views: Sequence[RankView]) -> dict[str, float]:
        now, stalled = time.monotonic(), {}
        for view in views:
            name = view.identity.label
            ticks = view.status.ticks if view.status is not None else None
            before = self._turns.get(name)
            if before is None or (ticks is not None and ticks != before[0]):
                self._turns[name] = (-1 if ticks is None else ticks, now)
            elif now - before[1] >= STALLED_FROM_S:
                stalled[name] = round(now - before[1], 1)
        return stalled


def _line(group: GroupReport) -> GroupLine:
    return GroupLine(
        title=group.title,
        verdict=group.verdict,
        queue=group.queue,
        round=group.round,
        lengths={row.queue: row.lengths for row in group.queues},
    )


def _lingering(views: Sequence[RankView], rooms: set[int]) -> dict[int, tuple[str, ...]]:
    found: dict[int, list[str]] = {}
    for view in views:
        for queue, entries in (view.snapshot.queues if view.snapshot is not None else {}).items():
            for entry in entries:
                if entry.room in rooms:
                    found.setdefault(entry.room, []).append(f"{view.identity.label} ({queue})")
    return {room: tuple(dict.fromkeys(where)) for room, where in sorted(found.items())}
