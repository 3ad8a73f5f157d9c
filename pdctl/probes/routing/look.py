"""One whole look at where rooms are: ask, and where something differs ask once more before it is called wrong."""

from __future__ import annotations

from collections.abc import Sequence

from pdctl.probes.routing.collect import collect
from pdctl.probes.routing.judge import judge, pause_s
from pdctl.probes.routing.model import Look, RoutingDocument
from pdctl.targets.client import Client
from pdctl.targets.find import Found


def look(
    found: Found,
    client: Client,
    *,
    grace_s: float,
    rooms: Sequence[int] = (),
    instead: Sequence[str] = (),
) -> RoutingDocument:
    """Return what ``verify-routing`` tells. grace_s: how long a difference must last; the rest is as :func:`collect` has it."""

    def once() -> Look:
        return collect(found, client, rooms=rooms, instead=instead)

    first = once()
    pause = pause_s(first, grace_s)
    if pause is None:
        return judge(first, grace_s=grace_s)
    client.pause(pause)
    return judge(once(), first, grace_s=grace_s)
