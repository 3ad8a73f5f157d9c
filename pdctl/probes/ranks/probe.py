"""The probe ``ranks``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pdctl.probes.base import NoOptions, Probe
from pdctl.protocol.documents import Rows

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.check.model import Outcome
    from pdctl.probes.ranks.collect import Seen
    from pdctl.probes.ranks.judge import RanksDocument
    from pdctl.probes.view import View


class Ranks(Probe["NoOptions", "Seen", "RanksDocument"]):
    """Show every rank and what its main thread does now.

    It also shows role, place, process and rounds, and the state of agent and recording. -o wide adds details.
    """

    name = "ranks"
    about = "every rank answers"
    cost = "one question to each rank"
    examples = ("pdctl ranks", "pdctl ranks --rank 'decode:*' -o wide")
    offline = True
    selects = True
    starts = True
    repeats = True
    options = NoOptions

    def collect(self, view: View, options: NoOptions) -> Seen:
        """Return every rank's status, and the recordings of those that give none."""
        from pdctl.probes.ranks.collect import collect

        return collect(view)

    def judge(self, evidence: Seen, options: NoOptions) -> RanksDocument:
        """Return a row for each rank."""
        from pdctl.probes.ranks.judge import judge

        return judge(
            evidence.answers,
            evidence.recordings,
            earlier=evidence.earlier,
            problems=evidence.problems,
            others=evidence.others,
            loops=evidence.loops,
        )

    def rests_on_loops(self, options: NoOptions) -> bool:
        """Return that it does."""
        return True

    def render(self, document: RanksDocument, *, wide: bool) -> Iterable[RenderableType]:
        """Yield the ranks, server by server."""
        from pdctl.probes.ranks.render import render

        return render(document, wide=wide)

    def rows(self, document: RanksDocument) -> Rows:
        """Return the ranks."""
        from pdctl.probes.ranks.judge import RankRow

        return Rows(RankRow, document.ranks)

    def partial(self, document: RanksDocument) -> bool:
        """Return whether anything of a rank is not known; that its recording is all there is was asked for with --from."""
        recorded = all(row.state == "recorded" and row.source for row in document.ranks)
        return bool(document.problems) or (document.partial and not recorded)

    def outcome(self, document: RanksDocument) -> Outcome:
        """Return a finding for each rank that does not answer; one without an agent that can be read from outside does."""
        from pdctl.probes.check.model import Outcome
        from pdctl.report.findings import finding
        from pdctl.targets.nodeset import none_seen_on

        recorded = any(row.state == "recorded" for row in document.ranks)
        silent = [
            row
            for row in document.ranks
            if row.state not in ("live", "recorded") and not row.state == row.source == "outside"
        ]
        gone = (finding("PD112", f"{row.rank}: {row.reason or row.state}.", ranks=(row.rank,)) for row in silent)
        failed = [row for row in document.ranks if row.hook_errors or row.hooks_removed]
        hosts = [row.rank for row in silent if row.is_host]
        answer = "have a recording" if recorded else "answer"
        ranks = len(document.ranks) - len(hosts)
        said = f"{len(document.ranks) - len(silent)} of {ranks} ranks {answer}" if ranks else "no ranks"
        return Outcome(
            self.name,
            f"{said}; {none_seen_on(sorted(hosts))}" if hosts else said,
            (*document.findings, *gone),
            (*document.problems, *(f"{row.rank}: pdctl's hooks failed there" for row in failed)),
        )


PROBE = Ranks()
