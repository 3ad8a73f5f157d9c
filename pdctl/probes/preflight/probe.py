"""The probe ``preflight``. What a request of its own shows is found by the command, which may send one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pdctl.probes.base import Probe, WrongOptionError
from pdctl.protocol.documents import Rows

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.preflight.model import Evidence, Handshake, PreflightDocument
    from pdctl.probes.view import View

LEVELS = ("info", "warning", "error")


@dataclass(frozen=True)
class PreflightOptions:
    """What ``preflight`` takes. handshake: sends a request and follows it on the ranks of a view; None: none is sent."""

    bootstrap: str = ""
    router_s: float = 0.0
    fail_on: str = "warning"
    handshake: Callable[[View | None], Handshake] | None = None


class Preflight(Probe["PreflightOptions", "Evidence", "PreflightDocument"]):
    """Check that a deployment is fit for traffic."""

    name = "preflight"
    about = "both sides fit each other"
    cost = "a few questions to ranks and servers"
    options = PreflightOptions

    def refuse(self, options: PreflightOptions, *, timeout_s: float, recorded: bool) -> None:
        """Refuse what is no address."""
        from pdctl.probes.routing.bootstrap import split

        try:
            split(options.bootstrap or "a:1")
        except ValueError as error:
            raise WrongOptionError(str(error), "--bootstrap") from None

    def collect(self, view: View, options: PreflightOptions) -> Evidence:
        """Return what ranks tell; with what a request shows, where nothing is known that it would fail at."""
        from pdctl.probes.preflight.collect import collect

        return with_handshake(collect(view, bootstrap=options.bootstrap, router_s=options.router_s), options, view)

    def judge(self, evidence: Evidence, options: PreflightOptions) -> PreflightDocument:
        """Return a line for each check."""
        from pdctl.probes.preflight.judge import judge

        return judge(evidence)

    def render(self, document: PreflightDocument, *, wide: bool) -> Iterable[RenderableType]:
        """Yield a line for each check."""
        from pdctl.probes.preflight.render import render

        return render(document, wide=wide)

    def rows(self, document: PreflightDocument) -> Rows:
        """Return the checks."""
        from pdctl.probes.preflight.model import Line

        return Rows(Line, document.lines)

    def fails_on(self, options: PreflightOptions) -> str:
        """Return --fail-on."""
        return options.fail_on


def with_handshake(evidence: Evidence, options: PreflightOptions, view: View | None) -> Evidence:
    """Return the evidence with what a request of its own shows, if one was asked for and can get through."""
    from pdctl.probes.preflight.judge import fit_for_a_request, judge
    from pdctl.probes.preflight.model import Handshake

    if options.handshake is None:
        return evidence
    if not fit_for_a_request(judge(evidence)):
        return replace(evidence, handshake=Handshake(None, "not sent: a request would fail at what stands above"))
    return replace(evidence, handshake=options.handshake(view))


PROBE = Preflight()
