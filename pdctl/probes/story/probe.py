"""The probe ``story``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pdctl.probes.base import TARGET, NewFile, Option, Probe, WrongOptionError
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, PdctlError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.story.collect import Seen
    from pdctl.probes.story.model import StoryDocument
    from pdctl.probes.view import View

PLOTS = (".svg", ".png", ".html")


@dataclass(frozen=True)
class StoryOptions:
    """What ``story`` takes."""

    asked: Annotated[str, Option("", "A room, or the id of a request.", "ROOM|RID")]
    perfetto: Annotated[
        Path | None, Option("--perfetto", "Write a JSON trace for ui.perfetto.dev, too.", "FILE", TARGET)
    ] = None
    plot: Annotated[
        Path | None,
        Option("--plot", "Draw it, too: FILE.svg, FILE.png or FILE.html. Needs pdctl[plot].", "FILE", TARGET),
    ] = None
    force: Annotated[bool, Option("--force", "Replace existing files.")] = False
    through: Annotated[
        str,
        Option(
            "--through", "Read only sockets, or only recordings. Default: sockets where no file can be read.", "WAY"
        ),
    ] = ""


class Story(Probe["StoryOptions", "Seen", "StoryDocument"]):
    """Tell what happened to one room on all ranks of both sides, on one time line.

    It reads recordings. Shared rounds and messages between the sides align the clocks of different hosts. The output shows
    how far each clock may be off, and what recordings have lost.
    """

    name = "story"
    about = "what happened to one room"
    cost = "reads recordings"
    examples = ("pdctl story 16851422098683615 --from incident.pdtrace", "pdctl story 4711 --perfetto room.json")
    offline = True
    starts = True
    options = StoryOptions

    def refuse(self, options: StoryOptions, *, timeout_s: float, recorded: bool) -> None:
        """Refuse a way that is none, and files that can't be written."""
        from pdctl.protocol.files import check_target

        if options.through not in ("", "sockets", "recordings"):
            raise WrongOptionError("sockets or recordings", "--through")
        if recorded and options.through == "sockets":
            raise WrongOptionError("--from reads recordings, not sockets", "--through")
        for path in (options.perfetto, options.plot):
            if path is not None:
                check_target(path, force=options.force)
        if options.perfetto and options.plot and options.perfetto.absolute() == options.plot.absolute():
            raise WrongOptionError("--perfetto and --plot name one file", "--plot")
        if options.plot is not None:
            _plottable(options.plot)

    def asks(self, options: StoryOptions) -> bool:
        """Recordings are asked for, which nobody has of a rank that is read from outside."""
        return False

    def collect(self, view: View, options: StoryOptions) -> Seen:
        """Return the recordings."""
        from pdctl.probes.story.collect import collect

        sockets = options.through != "recordings" and not view.recorded
        return collect(view, sockets=sockets, files=options.through != "sockets")

    def judge(self, evidence: Seen, options: StoryOptions) -> StoryDocument:
        """Return the stories that are meant. Raises PdctlError: PARTIAL for an unknown room, UNREACHABLE without recordings."""
        return _document(options.asked, evidence)

    def render(self, document: StoryDocument, *, wide: bool) -> Iterable[RenderableType]:
        """Yield a time line for each room."""
        from pdctl.probes.story.render import render

        return render(document)

    def rows(self, document: StoryDocument) -> Rows:
        """Return the lines of all stories."""
        from pdctl.probes.story.model import Entry

        return Rows(Entry, tuple(entry for story in document.stories for entry in story.entries))

    def files(self, document: StoryDocument, options: StoryOptions) -> Iterable[NewFile]:
        """Yield the trace, and the picture."""
        if options.perfetto is not None:
            from pdctl.probes.story.perfetto import trace
            from pdctl.report.escaping import json_encoded

            yield NewFile(options.perfetto, json_encoded(trace(document.stories)).encode(), options.force)
        if options.plot is not None:
            from pdctl.probes.story.plot import draw

            form = options.plot.suffix.lower().lstrip(".")
            yield NewFile(options.plot, draw(document.stories, form), options.force)


def _document(asked: str, seen: Seen) -> StoryDocument:
    from msgspec.structs import replace

    from pdctl.probes.story.absence import never_came, others_of, shared
    from pdctl.probes.story.find import known_rooms, meant, nearest
    from pdctl.probes.story.judge import story
    from pdctl.probes.story.model import StoryDocument
    from pdctl.probes.unknown import nearest_words

    recordings = [past.recording for past in seen.pasts if past.recording is not None]
    if not recordings:
        if seen.unrecorded is not None:
            raise seen.unrecorded
        why = "; ".join(dict.fromkeys(past.why_not for past in seen.pasts if past.why_not))
        raise PdctlError(
            f"no recording can be read: {why or 'no rank has one'}",
            "Start ranks with recording on (PDCTL_RECORD_DIR on a file system with room), or give --from DIR.",
        )
    known = known_rooms(recordings)
    rooms = meant(asked, known, recordings, hashed=_hashed(asked, seen.salts))
    if not rooms:
        said, hint = never_came(asked, seen.pasts, seen.now_ns)
        earlier = f"; {seen.earlier} ranks of earlier starts were left out, --all reads them" if seen.earlier else ""
        raise PdctlError(f"{said}{earlier}", f"{hint} {nearest_words(nearest(asked, known))}", Exit.PARTIAL)
    told = (story(seen.pasts, room) for room in rooms)
    others = [one for one in known if one.room not in rooms]
    stories = tuple(replace(one, notes=(*one.notes, *others_of(one, others))) for one in told)
    return StoryDocument(asked=asked, stories=stories, findings=shared(stories), earlier=seen.earlier)


def _hashed(rid: str, salts: tuple[str, ...]) -> list[str]:
    """Return what a request id is called in traces whose names are hashed with these salts."""
    if not salts:
        return []
    from pdctl.trace.redact import Names

    return [Names(salt).rid(rid) for salt in salts]


def _plottable(path: Path) -> None:
    from pdctl.protocol import extras

    if path.suffix.lower() not in PLOTS:
        raise WrongOptionError(f"{path.name} ends in none of {', '.join(PLOTS)}", "--plot")
    extras.require("plot", "--plot")


PROBE = Story()
