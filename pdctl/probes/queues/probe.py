"""The probe ``queues``: ``pdctl diff-queues``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import msgspec

from pdctl.probes.base import SECONDS, Option, Probe, WrongOptionError
from pdctl.probes.queues import CONFIRM, STALLED_S
from pdctl.protocol.documents import Rows

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.queues.collect import Seen
    from pdctl.probes.queues.model import QueuesDocument
    from pdctl.probes.view import View


@dataclass(frozen=True)
class QueuesOptions:
    """What ``diff-queues`` takes."""

    stalled: Annotated[float, Option("--stalled", "How long one rank may keep its group waiting.", "TIME", SECONDS)] = (
        STALLED_S
    )
    confirm: Annotated[
        int,
        Option(
            "--confirm", "How many looks a difference must last where no rounds are recorded.", "N", least=1, most=100
        ),
    ] = CONFIRM
    through: Annotated[str, Option("--through", "Use only: sockets, recordings. Default: both.", "WAY")] = ""


class Queues(Probe["QueuesOptions", "Seen", "QueuesDocument"]):
    """Compare the queues of all ranks of each group, and name the first difference and its cause.

    It compares round by round where rounds are recorded.
    """

    name = "queues"
    about = "the ranks of each group are in step"
    cost = "reads recordings"
    examples = ("pdctl diff-queues", "pdctl diff-queues --from incident.pdtrace")
    offline = True
    starts = True
    repeats = True
    options = QueuesOptions

    def refuse(self, options: QueuesOptions, *, timeout_s: float, recorded: bool) -> None:
        """Refuse a way that is none."""
        if options.through not in ("", "sockets", "recordings"):
            raise WrongOptionError("sockets or recordings", "--through")

    def asks(self, options: QueuesOptions) -> bool:
        """Return whether sockets may be used."""
        return options.through != "recordings"

    def collect(self, view: View, options: QueuesOptions) -> Seen:
        """Return the queues and rounds of every rank."""
        from pdctl.probes.queues.collect import look

        sockets = self.asks(options) and not view.recorded
        return look(view, confirm=options.confirm, sockets=sockets, files=options.through != "sockets")

    def judge(self, evidence: Seen, options: QueuesOptions) -> QueuesDocument:
        """Return every group with the first round in which its ranks differ."""
        from pdctl.probes.queues.judge import judge

        document = judge(evidence.views, stalled_s=options.stalled, confirmed=evidence.confirmed)
        return msgspec.structs.replace(document, earlier=evidence.earlier)

    def deepen(self, view: View, evidence: Seen, document: QueuesDocument) -> Seen | None:
        """Return what flight recorders say as well, where there is something to explain: they are dear."""
        from pdctl.probes.queues.collect import flights

        explained = all(group.verdict not in ("DIVERGED", "WAITING", "SKEWED") for group in document.groups)
        if explained or not any(one.status for one in evidence.views):
            return None
        return replace(evidence, views=flights(view, evidence.views))

    def rests_on_loops(self, options: QueuesOptions) -> bool:
        """Return whether ranks are asked."""
        return self.asks(options)

    def render(self, document: QueuesDocument, *, wide: bool) -> Iterable[RenderableType]:
        """Yield group by group."""
        from pdctl.probes.queues.render import render

        return render(document, wide=wide)

    def rows(self, document: QueuesDocument) -> Rows:
        """Return the groups."""
        from pdctl.probes.queues.model import GroupReport

        return Rows(GroupReport, document.groups)

    def partial(self, document: QueuesDocument) -> bool:
        """Return whether something could not be judged; without a group nothing could."""
        return document.partial or not document.groups

    def summary(self, document: QueuesDocument) -> str:
        """Return how much was compared."""
        parts = [part for kind, (one, many, unit) in _KINDS.items() if (part := _part(document, kind, one, many, unit))]
        return "; ".join(parts) or "every group has one rank: nothing to compare"


_KINDS = {
    "polls": ("group of several ranks", "groups of several ranks", "rounds"),
    "stages": ("pipeline", "pipelines", "requests"),
    "lockstep": ("dp attention", "dp attentions", ""),
}


def _part(document: QueuesDocument, kind: str, one: str, many: str, unit: str) -> str:
    """Return what was compared in groups of one kind, "" without one."""
    from pdctl.probes.queues.model import WELL

    groups = [group for group in document.groups if group.kind == kind and len(group.ranks) > 1]
    if not groups:
        return ""
    compared = sum(sum(group.compared.values()) for group in groups)
    said = f"{compared:,} {unit} compared" if compared else f"no {unit} yet" if unit else "every loop turns"
    not_known = [group.title for group in groups if group.verdict not in WELL]
    if not_known:
        said += f", not known of {not_known[0]}" + (f" and {len(not_known) - 1} more" if len(not_known) > 1 else "")
    elif compared:
        said += ", in step"
    return f"{len(groups)} {one if len(groups) == 1 else many}, {said}"


PROBE = Queues()
