"""What is behind a line of ``top``: the documents of probes, drawn as their commands draw them. Each is one bounded look."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from pdctl.probes.run import choose, draw_within, find, look
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.findings import Code, Finding
from pdctl.report.output import Format, Output, sentence
from pdctl.watch.top.tables import rooms

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from pdctl.probes.base import AnyProbe
    from pdctl.probes.run import Asked
    from pdctl.probes.view import View
    from pdctl.protocol.rank import FoundRank
    from pdctl.watch.model import GroupState, RankState

MOST_ROOMS = 50
"""Rooms of a rank that are offered, the oldest first."""
DRAW_S = 2.0
"""Seconds of CPU time that drawing may take."""


@dataclass(frozen=True)
class Detail:
    """What one look gave. rooms: those in it, for a look at their stories. at_wall: when it ended, seconds."""

    document: msgspec.Struct
    draw: Callable[[Any, Console], None]
    rooms: tuple[int, ...] = ()
    at_wall: float = 0.0

    def text(self, width: int) -> str:
        """Return it drawn ``width`` columns wide, with colours of a terminal unless NO_COLOR is set."""
        env = {"COLUMNS": str(max(20, width)), "TERM": "xterm-256color", "NO_COLOR": os.environ.get("NO_COLOR", "")}
        return Output(Format.TABLE, out=_Page(), err=io.StringIO(), env=env).drawn(self.document, self.draw)


class _Page(io.StringIO):
    """A terminal, as far as colours are concerned."""

    def isatty(self) -> bool:
        """Return that it is one."""
        return True


class _Said(msgspec.Struct, frozen=True):
    """Lines: why there is nothing else to show."""

    lines: tuple[str, ...]


class _Found(msgspec.Struct, frozen=True):
    """A finding, and what the catalogue says of its kind."""

    found: Finding
    codes: tuple[Code, ...]


class Looker:
    """Looks at what is behind a line, one look at a time. Its methods raise nothing: what failed is what they give."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._one = threading.Lock()

    def group(self, group: GroupState) -> Detail:
        """Return what ``diff-queues`` says of a group; of all where that group is no more."""
        from pdctl.probes.queues.probe import PROBE, QueuesOptions

        def told(view: View) -> Detail:
            document = look(PROBE, view, QueuesOptions())
            own = tuple(one for one in document.groups if (one.title, one.cluster) == (group.title, group.cluster))
            if own:
                found = tuple(one for one in document.findings if one.group in ("", group.title))
                document = msgspec.structs.replace(document, groups=own, findings=found)
            split = (split.room for one in document.groups for split in one.splits)
            return _drawn(PROBE, document, rooms(document.findings, *split))

        return self._look(PROBE, QueuesOptions(), told)

    def rank(self, rank: RankState) -> Detail:
        """Return what ``stacks`` says of a rank, and the rooms of its requests."""
        from pdctl.probes.stacks.probe import PROBE, StacksOptions

        def told(view: View) -> Detail:
            document = look(PROBE, view, StacksOptions())
            [answer] = view.rooms()
            entries = () if answer.body is None else tuple(answer.body.rooms)
            oldest = sorted((one for one in entries if one.room), key=lambda one: -one.age_s)[:MOST_ROOMS]
            return _drawn(PROBE, document, rooms((), *(one.room for one in oldest)))

        def meant(found: Sequence[FoundRank]) -> tuple[FoundRank, ...]:
            called = tuple(one for one in found if one.identity.label == rank.rank)
            own = (rank.cluster, rank.service, rank.instance)
            same = (one for one in called if (one.identity.cluster, one.identity.service, one.identity.instance) == own)
            return (*same, *called)[:1]

        return self._look(PROBE, StacksOptions(), told, meant)

    def room(self, asked: str) -> Detail:
        """Return the story of a room, or of a request's id."""
        from pdctl.probes.story.probe import PROBE, StoryOptions

        options = StoryOptions(asked=asked)
        return self._look(PROBE, options, lambda view: _drawn(PROBE, look(PROBE, view, options), ()))

    def problem(self, text: str) -> Detail:
        """Return what could not be seen. Asks nobody."""
        return _said((text,))

    def finding(self, found: Finding) -> Detail:
        """Return what was found, and what ``explain`` says of it. Asks nobody."""
        from pdctl.report import drawing, explaining
        from pdctl.report.findings import catalogue

        code = catalogue().get(found.code)
        document = _Found(found, () if code is None else (code,))

        def draw(shown: _Found, console: Console) -> None:
            for part in drawing.findings((shown.found,)):
                console.print(part)
            for line in shown.found.evidence:
                console.print(f"  {line}")
            console.print()
            if shown.codes:
                explaining.draw(explaining.FindingsDocument(codes=shown.codes), console)

        return Detail(document, draw, rooms((found,)), time.time())

    def _look(
        self,
        probe: AnyProbe,
        options: Any,
        told: Callable[[View], Detail],
        meant: Callable[[Sequence[FoundRank]], tuple[FoundRank, ...]] = tuple,
    ) -> Detail:
        from pdctl.probes.view import View
        from pdctl.targets.client import Client

        asked = self._asked
        try:
            with self._one:
                found, others = choose(find(asked, Output(out=io.StringIO(), err=io.StringIO())), asked.selection)
                ranks = meant(found.ranks)
                if not ranks:
                    raise PdctlError("it is no longer there", "Go back: others may have come.", Exit.UNREACHABLE)
                others = (*others, *(one for one in found.ranks if one not in ranks))
                with Client(
                    timeout_s=asked.timeout_s, spent_s=found.took_s, rank_timeout_s=asked.rank_timeout_s
                ) as client:
                    there = replace(found, ranks=ranks)
                    return told(View.open(there, client, others=others, asks=probe.asks(options)))
        except PdctlError as error:
            return _said(
                (error.message, *error.details, f"Next: {sentence(error.next_step)}" if error.next_step else "")
            )
        except Exception as error:  # noqa: BLE001  # the screen stays: what went wrong stands on it
            return _said((f"This could not be shown: {type(error).__name__}: {error}",))


def _drawn(probe: AnyProbe, document: Any, found: tuple[int, ...]) -> Detail:
    def draw(shown: Any, console: Console) -> None:
        draw_within(_parts(probe, shown), console, DRAW_S)

    return Detail(document, draw, found, time.time())


def _parts(probe: AnyProbe, shown: Any) -> Iterable[RenderableType]:
    yield from probe.render(shown, wide=False)
    problems = tuple(probe.problems(shown))
    for number, line in enumerate(problems):
        yield f"{'' if number else chr(10)}not seen or in part: {line}"


def _said(lines: Iterable[str]) -> Detail:
    def draw(shown: _Said, console: Console) -> None:
        for line in shown.lines:
            console.print(line)

    return Detail(_Said(tuple(filter(None, lines))), draw, (), time.time())
