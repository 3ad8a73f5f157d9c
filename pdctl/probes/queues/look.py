"""One whole look at all queues: ask, confirm what has no rounds, ask again for what explains a difference."""

from __future__ import annotations

from pdctl.probes.queues.collect import again, collect, flights
from pdctl.probes.queues.judge import judge, unconfirmed
from pdctl.probes.queues.model import QueuesDocument
from pdctl.targets.client import Client
from pdctl.targets.find import Found


def look(
    found: Found, client: Client, *, stalled_s: float, confirm: int, sockets: bool = True, files: bool = True
) -> QueuesDocument:
    """Return what ``diff-queues`` tells. sockets, files: what may be used, as :func:`collect` has them.

    stalled_s: how long one rank may keep its group waiting. confirm: looks that a difference must last where no rounds
    are recorded.
    """
    views = collect(found, client, sockets=sockets, files=files)
    confirmed = True
    if unconfirmed(views):
        for _ in range(confirm - 1):
            later = again(found, client, views)
            if client.over:
                confirmed = False  # nobody was asked
                break
            confirmed = unconfirmed(later, views)
            views = later
            if not confirmed:
                break
    document = judge(views, stalled_s=stalled_s, confirmed=confirmed)
    if sockets and any(group.verdict in ("DIVERGED", "WAITING", "SKEWED") for group in document.groups):
        views = flights(found, client, views)  # dear, so only when there is something to explain
        document = judge(views, stalled_s=stalled_s, confirmed=confirmed)
    return document
