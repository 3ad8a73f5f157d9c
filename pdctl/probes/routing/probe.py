"""The probe ``routing``: ``pdctl verify-routing``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pdctl.probes.base import SECONDS, Option, Probe, WrongOptionError
from pdctl.probes.routing import GRACE_S
from pdctl.protocol.documents import Rows
from pdctl.protocol.numbers import whole

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.routing.collect import Seen
    from pdctl.probes.routing.model import RoutingDocument
    from pdctl.probes.view import View


@dataclass(frozen=True)
class RoutingOptions:
    """What ``verify-routing`` takes."""

    rooms: Annotated[tuple[str, ...], Option("", "Rooms to look at. Default: the rooms that wait.", "ROOM")] = ()
    bootstrap: Annotated[
        tuple[str, ...],
        Option("--bootstrap", "Ask this bootstrap server instead of those that the ranks name.", "HOST:PORT"),
    ] = ()
    grace: Annotated[
        float, Option("--grace", "A younger difference may be skew and is no finding.", "TIME", SECONDS)
    ] = GRACE_S


class Routing(Probe["RoutingOptions", "Seen", "RoutingDocument"]):
    """Show the prefill dp rank of each room, as formula, bootstrap server, prefill and decode say.

    pdctl asks a bootstrap server over HTTP and waits for --rank-timeout, at least the 5 s that decode waits. Where the server
    is in another network namespace, pdctl asks from inside that namespace and needs root. A difference must last longer than
    --grace. pdctl also compares the ports and sessions that each side uses of the other with those that are there. --from
    reads registrations, queries and queues from recordings. They have neither settings nor the answers of bootstrap servers.
    """

    name = "routing"
    about = "everyone takes each room to be on one rank"
    cost = "a few questions to ranks and servers"
    examples = ("pdctl verify-routing", "pdctl verify-routing --from incident.pdtrace")
    offline = True
    untold = "settings and what bootstrap servers answer"
    options = RoutingOptions

    def refuse(self, options: RoutingOptions, *, timeout_s: float, recorded: bool) -> None:
        """Refuse what is no room, and what is no address."""
        from pdctl.probes.routing.bootstrap import split

        for text in options.rooms:
            if not whole(text):
                raise WrongOptionError(f"{text!r} is no room: a whole number from 1 to 2^64 - 1", "ROOM")
        for address in options.bootstrap:
            try:
                split(address)
            except ValueError as error:
                raise WrongOptionError(str(error), "--bootstrap") from None

    def collect(self, view: View, options: RoutingOptions) -> Seen:
        """Return what ranks and bootstrap servers believe, twice where they differ."""
        from pdctl.probes.routing.collect import twice

        rooms = [int(text) for text in options.rooms]
        return twice(view, grace_s=options.grace, rooms=rooms, instead=options.bootstrap)

    def judge(self, evidence: Seen, options: RoutingOptions) -> RoutingDocument:
        """Return every room with what each believes of it."""
        from pdctl.probes.routing.judge import judge

        return judge(evidence.look, evidence.first, grace_s=options.grace)

    def render(self, document: RoutingDocument, *, wide: bool) -> Iterable[RenderableType]:
        """Yield servers, then rooms."""
        from pdctl.probes.routing.render import render

        return render(document, wide=wide)

    def rows(self, document: RoutingDocument) -> Rows:
        """Return the rooms."""
        from pdctl.probes.routing.model import RoomRow

        return Rows(RoomRow, document.rooms)

    def summary(self, document: RoutingDocument) -> str:
        """Return how many rooms wait, and how many servers were heard."""
        heard = sum(1 for server in document.servers if not server.silence and not server.info_off)
        many, young = len(document.rooms), document.young
        servers = f"{heard} of {len(document.servers)} bootstrap servers heard"
        contradicts = "nothing contradicts"
        if young:
            contradicts = f"{young} difference{'s'[: young != 1]} too young to be told from skew"
        return ", ".join(
            (
                f"{many} room{'s'[: many != 1]} wait{'s'[: many == 1]}",
                servers if document.servers else "no bootstrap server was asked",
                contradicts,
            )
        )

    def notes(self, document: RoutingDocument) -> Iterable[str]:
        """Yield what is known less well, and which rooms nobody knows."""
        from pdctl.probes.unknown import nearest_words, unknown_words

        yield from document.notes
        for unknown in document.unknown:
            said = unknown_words(f"room {unknown.room}", "no rank and no bootstrap server that answered has it")
            yield f"{said}; pdctl story {unknown.room} tells whether it ever came here. {nearest_words(unknown.nearest)}"


PROBE = Routing()
