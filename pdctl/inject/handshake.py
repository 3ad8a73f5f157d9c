"""One request of pdctl's own through a pair, followed through the queues of the ranks that record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pdctl.inject import proof
from pdctl.probes.preflight.model import Handshake
from pdctl.probes.story.collect import collect
from pdctl.probes.story.judge import story
from pdctl.protocol.errors import Exit, PdctlError

if TYPE_CHECKING:
    from pdctl.inject.drill.servers import Address
    from pdctl.probes.view import View

WHAT = "a request of pdctl's own"


def handshake(view: View | None, address: Address | None, env: Mapping[str, str], limit_s: float) -> Handshake:
    """Return what became of one request: sent to the servers at ``address``, else to the embedded cluster of the view's ranks.

    view: None where no rank is looked at. Raises PdctlError (REFUSED) where a rank was not armed: nothing is sent to servers
    that pdctl may not act on.
    """
    ranks = view.ranks if view is not None else ()
    unarmed = [rank.identity.label for rank in ranks if rank.live and not rank.identity.armed]
    if unarmed:
        raise PdctlError(
            f"{unarmed[0]} was not armed when it started: no request is sent through it",
            "Start the ranks with PDCTL_ARM=1, or leave --handshake out.",
            Exit.REFUSED,
        )
    try:
        left_s = limit_s if view is None else 0.8 * view.left(limit_s)  # its recordings are read afterwards
        sent = proof.send(proof.place(ranks, address, env), left_s, what=WHAT)
    except PdctlError as error:
        return Handshake(None, f"not sent: {error.message}")
    if view is None or not sent.room:
        return Handshake(sent.answered, sent.said, sent.room)
    pasts = collect(view.again(), str(sent.room)).pasts
    told = story(pasts, sent.room)
    queues: dict[str, tuple[str, ...]] = {}
    unseen = []
    for one in told.ranks:
        if one.why_not:
            unseen.append(one.rank)
        elif one.saw or not one.elsewhere:
            stays = sorted((stay for stay in told.stays if stay.rank == one.rank), key=lambda stay: stay.since_s)
            queues[one.rank] = tuple(dict.fromkeys(stay.queue for stay in stays))
    return Handshake(sent.answered, sent.said, sent.room, queues, tuple(unseen))
