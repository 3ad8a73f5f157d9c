"""The probe ``leaks``: ``pdctl dump leaks``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pdctl.probes.base import SECONDS, Option, Probe, fits
from pdctl.protocol.documents import Rows

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.leaks.model import LeaksDocument, RankWatch
    from pdctl.probes.view import View


@dataclass(frozen=True)
class LeaksOptions:
    """What ``dump leaks`` takes."""

    watch: Annotated[
        float, Option("--for", "How long to watch. What is held all that time counts.", "TIME", SECONDS)
    ] = 5.0


class Leaks(Probe["LeaksOptions", "list[RankWatch]", "LeaksDocument"]):
    """Show slots, KV space and rooms that are held without a request.

    It also shows failed requests that later pipeline stages keep. pdctl looks at every rank several times. It counts only
    what had no owner at every look. Engines leave rooms behind after aborts; the output names them, and they are no fault.
    """

    name = "leaks"
    about = "nothing is held without an owner"
    cost = "several questions to each rank over a while"
    examples = ("pdctl dump leaks --for 2s", "pdctl dump leaks --for 1s -o json")
    options = LeaksOptions

    def refuse(self, options: LeaksOptions, *, timeout_s: float, recorded: bool) -> None:
        """Refuse a watch that is too long."""
        fits(options.watch, timeout_s, "--for")

    def in_check(self, pause_s: float) -> LeaksOptions:
        """Return the pause of ``check`` as the time to watch."""
        return LeaksOptions(watch=pause_s)

    def collect(self, view: View, options: LeaksOptions) -> list[RankWatch]:
        """Return several looks at every rank."""
        from pdctl.probes.leaks.collect import collect

        return collect(view, watch_s=options.watch)

    def judge(self, evidence: list[RankWatch], options: LeaksOptions) -> LeaksDocument:
        """Return what stayed without an owner."""
        from pdctl.probes.leaks.judge import judge

        return judge(evidence, watch_s=options.watch)

    def render(self, document: LeaksDocument, *, wide: bool) -> Iterable[RenderableType]:
        """Yield a line a rank."""
        from pdctl.probes.leaks.render import render

        return render(document, wide=wide)

    def rows(self, document: LeaksDocument) -> Rows:
        """Return the ranks."""
        from pdctl.probes.leaks.model import RankLeaks

        return Rows(RankLeaks, document.ranks)

    def summary(self, document: LeaksDocument) -> str:
        """Return that nothing leaks, on the ranks that could be judged."""
        judged = sum(rank.judged for rank in document.ranks)
        if judged == len(document.ranks):
            return self.about
        return f"{self.about} on {judged} of {len(document.ranks)} ranks" if judged else ""


PROBE = Leaks()
