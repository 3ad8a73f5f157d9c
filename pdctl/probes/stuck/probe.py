"""The probe ``stuck``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pdctl.probes.base import PAUSE_S, SECONDS, Option, Probe, WrongOptionError, fits
from pdctl.probes.stuck import ORDER, STUCK_S
from pdctl.protocol.documents import Rows
from pdctl.protocol.model import WAITS_FOR_OTHER

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.stuck.model import RankLooks, StuckDocument
    from pdctl.probes.view import View


@dataclass(frozen=True)
class StuckOptions:
    """What ``stuck`` takes."""

    older: Annotated[
        float | None, Option("--older", "Show only requests that have waited this long.", "TIME", SECONDS)
    ] = None
    by: Annotated[str, Option("--by", "Sort by: age, queue, rank.", "WHAT")] = "age"
    pause: Annotated[float, Option("--pause", "Pause between the two looks.", "TIME", SECONDS)] = PAUSE_S
    stuck: Annotated[
        float, Option("--stuck-after", "Age from which a wait without an end is a finding.", "TIME", SECONDS)
    ] = STUCK_S


class Stuck(Probe["StuckOptions", "list[RankLooks]", "StuckDocument"]):
    """Show every waiting request, what the other side says of its room, and which time-out ends the wait.

    pdctl looks twice to tell moving requests from stuck ones. A full decode server is full, and not faulty. Of requests that
    stay where they are, it also says what verify-routing finds wrong. --from shows the polled queues at the end of the
    recordings. Recordings have no time-outs and no memory use.
    """

    name = "stuck"
    about = "every waiting request will end"
    cost = "two questions to each rank, a pause apart"
    examples = ("pdctl stuck --older 10s", "pdctl stuck --by queue --from incident.pdtrace")
    offline = True
    untold = "running batches, space and time-outs"
    repeats = True
    waits_once = True
    pauses = True
    options = StuckOptions

    def refuse(self, options: StuckOptions, *, timeout_s: float, recorded: bool) -> None:
        """Refuse an order that is none, and a pause that is too long."""
        if options.by not in ORDER:
            raise WrongOptionError(", ".join(ORDER), "--by")
        if not recorded:
            fits(options.pause, timeout_s)

    def in_check(self, pause_s: float) -> StuckOptions:
        """Return the usual options, with the pause of ``check``."""
        return StuckOptions(pause=pause_s)

    def settled(self, evidence: list[RankLooks], document: StuckDocument) -> bool:
        """Return whether all is well, and every loop that has requests surely turned even within a short pause."""
        from pdctl.probes.stuck.collect import has_requests

        turned = all(look.turned for look in evidence if has_requests(look))
        return turned and super().settled(evidence, document)

    def collect(self, view: View, options: StuckOptions) -> list[RankLooks]:
        """Return two looks at every rank, or what recordings have in their place."""
        from pdctl.probes.stuck.collect import collect, collect_recorded

        return (collect_recorded if view.recorded else collect)(view, pause_s=options.pause)

    def judge(self, evidence: list[RankLooks], options: StuckOptions) -> StuckDocument:
        """Return every request that waits, and what ends that."""
        from pdctl.probes.stuck.judge import judge

        return judge(
            evidence, pause_s=options.pause, older_s=options.older or 0.0, stuck_s=options.stuck, by=options.by
        )

    def deepen(self, view: View, evidence: list[RankLooks], document: StuckDocument) -> list[RankLooks] | None:
        """Return the looks with whether the metadata of complete transfers that nobody takes on has landed."""
        from pdctl.probes.stuck.collect import with_landed
        from pdctl.probes.stuck.judge import unfinished

        rooms = () if view.recorded else unfinished(document)
        return with_landed(view, evidence, rooms) if rooms else None

    def rests_on_loops(self, options: StuckOptions) -> bool:
        """Return that it does."""
        return True

    def held_up(self, document: StuckDocument) -> Collection[int]:
        """Return the rooms that did not get any further between the looks."""
        return {
            one.room
            for one in document.requests
            if one.room and one.queue in WAITS_FOR_OTHER and one.progress not in ("new", "moving")
        }

    def render(self, document: StuckDocument, *, wide: bool) -> Iterable[RenderableType]:
        """Yield room by room."""
        from pdctl.probes.stuck.render import render

        return render(document, wide=wide)

    def rows(self, document: StuckDocument) -> Rows:
        """Return the requests that wait."""
        from pdctl.probes.stuck.model import Waiting

        return Rows(Waiting, document.requests)

    def summary(self, document: StuckDocument) -> str:
        """Return how many requests wait, each counted once though both sides have it."""
        if not document.space:
            return ""
        if not document.requests and not document.hidden:
            if all(one.kv < 0 and one.slots < 0 for one in document.space):  # as of recordings
                return "no request waits for the other side"
            return "no request waits; if a gauge shows some, it is stale"
        from pdctl.probes.stuck.waiting import is_endless
        from pdctl.protocol.durations import seconds

        count = len({(one.cluster, one.room, one.rid) for one in document.requests})
        said = f"{count} request{'s' if count != 1 else ''} wait{'s'[: count == 1]}"
        endless = {(one.cluster, one.room, one.rid): one for one in document.requests if is_endless(one)}
        if not endless:
            return f"{said}, none is stuck"
        oldest = max(endless.values(), key=lambda one: one.age_s)
        them = "it" if count == 1 else f"{len(endless)} of them"
        return f"{said}; no time-out ends {them}: room {oldest.room} for {seconds(oldest.age_s)}, {oldest.peer}"


PROBE = Stuck()
