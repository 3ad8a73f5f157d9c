"""The probe ``check``: all others one after the other, with one view of the ranks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from pdctl.probes.base import PAUSE_S, SECONDS, TIMEOUT_S, Option, Probe, WrongOptionError, fits
from pdctl.probes.check.model import Outcome
from pdctl.protocol.documents import Rows

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.base import AnyProbe
    from pdctl.probes.check.model import CheckDocument
    from pdctl.probes.view import View

SHORT_PAUSE_S = 0.25
"""The pause where all is well: some hundred turns of a loop that nothing holds up."""


@dataclass(frozen=True)
class CheckOptions:
    """What ``check`` takes."""

    only: Annotated[
        tuple[str, ...],
        Option("--only", "Run only this stage; repeatable. -o wide says what each one does.", "STAGE", values="stage"),
    ] = ()
    skip: Annotated[
        tuple[str, ...], Option("--skip", "Leave out this stage; repeatable.", "STAGE", values="stage")
    ] = ()
    fail_on: Annotated[
        str,
        Option(
            "--fail-on", "Lowest level of a finding that exits with 1: info, warning, error.", "LEVEL", values="level"
        ),
    ] = "warning"
    suppress: Annotated[
        tuple[str, ...],
        Option("--suppress", "Leave out this finding, for all rooms or for one.", "PDnnn[=ROOM]", values="finding"),
    ] = ()
    probe: Annotated[
        bool,
        Option("--probe", "For liveness probes: exit with 1 for a finding of level error, else with 0."),
    ] = False
    pause: Annotated[float, Option("--pause", "Longest pause of the stages that look twice.", "TIME", SECONDS)] = (
        PAUSE_S
    )


@dataclass(frozen=True)
class Seen:
    """What each stage came to. others: what belongs to other users and was left alone.

    not_recorded: stages that recordings do not tell of, where recordings are all there is.
    """

    outcomes: list[Outcome]
    others: tuple[str, ...] = ()
    not_recorded: tuple[str, ...] = ()


class Check(Probe["CheckOptions", "Seen", "CheckDocument"]):
    """Run all probes, from cheap to intrusive, and print a line for each. They change nothing.

    --from runs the probes that recordings can answer. --timeout holds for all stages together. A stage that has no time
    left is not run and says so. pdctl waits once for a rank that does not answer, and asks each question once.
    A kubelet restarts a container on any code but 0. --probe is for it: what could not be judged goes to standard error.
    """

    name = "check"
    about = "all of it"
    cost = "as much as several commands: some stages look more than once, with pauses between"
    examples = ("pdctl check -o json", "pdctl check --probe --only ranks --only queues")
    offline = True
    timeout_s = 3 * TIMEOUT_S
    repeats = True
    waits_once = True
    options = CheckOptions

    def refuse(self, options: CheckOptions, *, timeout_s: float, recorded: bool) -> None:
        """Refuse stages, levels and findings that there are not, and a pause that is too long."""
        from pdctl.probes.check.judge import FAIL_ON, parse_suppressed

        chosen(options, recorded=recorded)
        if options.fail_on not in FAIL_ON:
            raise WrongOptionError(", ".join(FAIL_ON), "--fail-on")
        if options.probe and options.fail_on != CheckOptions.fail_on:
            raise WrongOptionError("--probe fails on errors alone", "--fail-on")
        try:
            parse_suppressed(options.suppress)
        except ValueError as error:
            raise WrongOptionError(str(error), "--suppress") from None
        if not recorded:
            fits(options.pause, timeout_s)

    def collect(self, view: View, options: CheckOptions) -> Seen:
        """Return what each stage came to."""
        stages = chosen(options, recorded=view.recorded)
        names = {stage.name for stage in stages}
        live = tuple(name for stage in chosen(options, recorded=False) if (name := stage.name) not in names)
        return Seen(list(run(view, stages, options.pause)), view.found.others, live)

    def judge(self, evidence: Seen, options: CheckOptions) -> CheckDocument:
        """Return the stages summed up."""
        from pdctl.probes.check.judge import judge, parse_suppressed

        suppressed = parse_suppressed(options.suppress)
        return judge(
            evidence.outcomes,
            suppressed=suppressed,
            fail_on=self.fails_on(options),
            others=evidence.others,
            not_recorded=evidence.not_recorded,
        )

    def render(self, document: CheckDocument, *, wide: bool) -> Iterable[RenderableType]:
        """Yield a line for each stage."""
        from pdctl.probes.check.render import render

        return render(document, wide=wide)

    def rows(self, document: CheckDocument) -> Rows:
        """Return the stages."""
        from pdctl.probes.check.model import StageRow

        return Rows(StageRow, document.stages)

    def fails_on(self, options: CheckOptions) -> str:
        """Return --fail-on, and the level of a liveness probe."""
        return "error" if options.probe else options.fail_on

    def fails_alone(self, options: CheckOptions) -> bool:
        """Return --probe."""
        return options.probe


def chosen(options: CheckOptions, *, recorded: bool) -> list[AnyProbe]:
    """Return the stages to run. Raises WrongOptionError for one that there is not, or that recordings do not tell of."""
    from pdctl.probes.registry import stages

    every = stages()
    live = [stage.name for stage in every if stage.live_stage or not stage.offline]
    for name in options.only if recorded else ():
        if name in live:
            raise WrongOptionError(f"recordings do not tell of {name}: ask live ranks, without --from", "--only")
    known = [stage.name for stage in every]
    for option, given in (("--only", options.only), ("--skip", options.skip)):
        for name in given:
            if name not in known:
                raise WrongOptionError(f"there is no stage {name!r}: {', '.join(known)}", option)
    left = [one for one in every if (not options.only or one.name in options.only) and one.name not in options.skip]
    left = [one for one in left if not recorded or one.name not in live]
    if not left:
        raise WrongOptionError("no stage is left", "--skip")
    return left


def run(view: View, stages: Iterable[AnyProbe], pause_s: float) -> Iterator[Outcome]:
    """Run the stages in their order, and yield what each came to.

    The view's deadline is that of all of them: a stage that finds no time left is not run, and says so.
    """
    from pdctl.report import progress

    for stage in stages:
        over = view.over
        if over:
            yield Outcome(stage.name, "", problems=(f"{stage.name}: {over}",))
            continue
        progress.doing(f"{stage.name} of {len(view.ranks)} rank{'s'[: len(view.ranks) != 1]}")
        started = time.monotonic()
        outcome = stage.outcome(_document(stage, view, pause_s))
        if view.recorded:
            outcome = replace(outcome, untold=stage.untold)
        over = view.over
        if over:
            late = f"{stage.name}: {over} before it had looked at everything"
            outcome = replace(outcome, problems=(*outcome.problems, late))
        yield replace(outcome, seconds=round(time.monotonic() - started, 3))


def _document(stage: AnyProbe, view: View, pause_s: float) -> Any:
    """Return what a stage says: after a short pause, if that settles it, else after the whole one."""
    from pdctl.probes.run import evidence_and_document, look

    if stage.pauses and pause_s > SHORT_PAUSE_S and not view.recorded:
        evidence, document = evidence_and_document(stage, view, stage.in_check(SHORT_PAUSE_S))
        if stage.settled(evidence, document):
            return document
    return look(stage, view, stage.in_check(pause_s))


PROBE = Check()
