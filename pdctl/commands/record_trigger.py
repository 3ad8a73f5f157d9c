"""What ``pdctl record --trigger diverged`` waits for: the first divergence that diff-queues would report."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pdctl.targets.client import Client
from pdctl.trace.manifest import Divergence

if TYPE_CHECKING:
    from pdctl.targets.find import Found

EVERY_S = 0.5
AFTER_S = 1.0
"""How long is recorded after a divergence was seen."""


def divergence(found: Found) -> Divergence | None:
    """Return the first divergence in the recordings of these ranks as they are now, None where all agree."""
    from pdctl.probes.queues.collect import collect
    from pdctl.probes.queues.judge import judge
    from pdctl.probes.view import View
    from pdctl.report.findings import Level

    # Through sockets only where a file can't be read: no stopped rank is waited for otherwise.
    sockets = any(rank.live and rank.recording is None and rank.recording_size for rank in found.ranks)
    with Client() as client:
        document = judge(collect(View(found, client), sockets=sockets), stalled_s=float("inf"), confirmed=True)
    for group in document.groups:
        if group.verdict == "DIVERGED":
            rooms = tuple(split.room for split in group.splits)
            codes = [
                f.code
                for f in document.findings
                if f.level is not Level.INFO and (set(f.rooms) & set(rooms) or not rooms)
            ]
            return Divergence(
                group=group.title,
                queue=group.queue,
                round=group.round,
                rooms=rooms,
                ranks=group.leaders + group.stragglers or group.ranks,
                findings=tuple(codes),
            )
    return None


class Trigger:
    """Asked after each look at the recordings; ``seen`` is the divergence once there was one."""

    def __init__(self, found: Found) -> None:
        self.seen: Divergence | None = None
        self._found = found
        self._next = 0.0
        self._end = 0.0

    def __call__(self) -> str:
        """Return why recording is to end, "" to go on."""
        now = time.monotonic()
        if self.seen is not None:
            return "the ranks diverged" if now >= self._end else ""
        if now >= self._next:
            self._next = now + EVERY_S
            self.seen = divergence(self._found)
            self._end = time.monotonic() + AFTER_S
        return ""
