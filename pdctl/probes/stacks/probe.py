"""The probe ``stacks``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pdctl.probes.base import SECONDS, Option, Probe, WrongOptionError
from pdctl.protocol.documents import Rows

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.stacks.model import RankLooks, StacksDocument
    from pdctl.probes.view import View


@dataclass(frozen=True)
class StacksOptions:
    """What ``stacks`` takes."""

    samples: Annotated[
        int,
        Option(
            "--samples", "Least number of looks at each rank. One can't tell stuck from moving.", "N", least=1, most=100
        ),
    ] = 3
    every: Annotated[float, Option("--every", "Time between two looks.", "TIME", SECONDS)] = 0.2
    collectives: Annotated[
        bool | None,
        Option(
            "--collectives/--no-collectives",
            "Read PyTorch's flight recorders, or leave collectives out. Default: read them where a rank is stuck.",
        ),
    ] = None
    outside: Annotated[
        bool,
        Option("--outside/--no-outside", "Read silent ranks from outside, with py-spy where it is installed."),
    ] = True


class Stacks(Probe["StacksOptions", "list[RankLooks]", "StacksDocument"]):
    """Show the stacks of all main threads, merged, and the collectives they are in.

    Ranks that differ from their group come first. Ranks in different collectives of a group are a finding after two
    seconds.
    """

    name = "stacks"
    about = "no rank sits in another collective than its peers"
    cost = "several stacks of each rank"
    examples = ("pdctl stacks", "pdctl stacks --rank decode:tp1 --samples 5")
    offline = True
    bundled = "stacks"
    live_stage = True
    selects = True
    starts = True
    options = StacksOptions

    def document(self) -> type[StacksDocument]:
        """Return its type."""
        from pdctl.probes.stacks.model import StacksDocument

        return StacksDocument

    def refuse(self, options: StacksOptions, *, timeout_s: float, recorded: bool) -> None:
        """Refuse looks that take too long."""
        if (options.samples - 1) * options.every >= timeout_s:
            raise WrongOptionError(f"{options.samples} looks take longer than --timeout", "--samples")

    def asks(self, options: StacksOptions) -> bool:
        """Return whether ranks may be read from outside."""
        return options.outside

    def in_check(self, pause_s: float) -> StacksOptions:
        """Return the options without a py-spy for each silent rank, and without flight recorders: no finding rests on them.

        Two looks tell whether any rank stands. Where one may stand for good, more are taken.
        """
        return StacksOptions(samples=2, outside=False, collectives=False)

    def collect(self, view: View, options: StacksOptions) -> list[RankLooks]:
        """Return several looks at every rank's stack."""
        from pdctl.probes.stacks.collect import collect

        return collect(
            view,
            looks=options.samples,
            every_s=options.every,
            flights=options.collectives,
            outside=options.outside,
        )

    def judge(self, evidence: list[RankLooks], options: StacksOptions) -> StacksDocument:
        """Return who stands where, and in which collectives."""
        from pdctl.probes.stacks.judge import judge

        return judge(evidence, with_collectives=options.collectives is not False)

    def rests_on_loops(self, options: StacksOptions) -> bool:
        """Return that it does."""
        return True

    def render(self, document: StacksDocument, *, wide: bool) -> Iterable[RenderableType]:
        """Yield outliers, collectives, stacks."""
        from pdctl.probes.stacks.render import render

        return render(document, wide=wide)

    def rows(self, document: StacksDocument) -> Rows:
        """Return the ranks."""
        from pdctl.probes.stacks.model import RankStack

        return Rows(RankStack, document.ranks)

    def summary(self, document: StacksDocument) -> str:
        """Return that all stand together, where somebody was seen."""
        return self.about if document.looks else ""

    def notes(self, document: StacksDocument) -> Iterable[str]:
        """Yield what is less than it could be."""
        return (f"less: {note}" for note in document.notes)


PROBE = Stacks()
