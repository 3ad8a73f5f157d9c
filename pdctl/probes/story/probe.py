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
    otlp: Annotated[
        Path | None, Option("--otlp", "Write it as spans for OpenTelemetry, too: OTLP/JSON.", "FILE", TARGET)
    ] = None
    logs: Annotated[
        tuple[Path, ...],
        Option("--logs", "Tell what this log of a router or an engine says, too; repeatable. May be .gz.", "FILE"),
    ] = ()
    force: Annotated[bool, Option("--force", "Replace existing files.")] = False
    through: Annotated[
        str,
        Option(
            "--through", "Read only sockets, or only recordings. Default: sockets where no file can be read.", "WAY"
        ),
    ] = ""


class Story(Probe["StoryOptions", "Seen", "StoryDocument"]):
    """Tell what happened to one room on all ranks of both sides, on one time line.

    It reads recordings, and logs of routers and engines where they are given. Shared rounds and messages between the sides
    align the clocks of different hosts. The output shows how far each clock may be off, and what recordings have lost.
    """

    name = "story"
    about = "what happened to one room"
    cost = "reads recordings"
    examples = (
        "pdctl story 16851422098683615 --from incident.pdtrace",
        "pdctl story RID --logs router.log --logs decode.log",
    )
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
        given = {"--perfetto": options.perfetto, "--plot": options.plot, "--otlp": options.otlp}
        written: dict[Path, str] = {}
        for option, path in given.items():
            if path is not None:
                check_target(path, force=options.force)
                other = written.setdefault(path.absolute(), option)
                if other != option:
                    raise WrongOptionError(f"{other} and {option} name one file", option)
        if options.plot is not None:
            _plottable(options.plot)
        for path in options.logs:
            _readable(path)

    def asks(self, options: StoryOptions) -> bool:
        """Recordings are asked for, which nobody has of a rank that is read from outside."""
        return False

    def collect(self, view: View, options: StoryOptions) -> Seen:
        """Return the recordings, and the lines of logs."""
        from pdctl.probes.story.collect import collect, with_logs

        sockets = options.through != "recordings" and not view.recorded
        asked = "" if options.logs else options.asked  # a log may call it something else, of which all has to be known
        seen = collect(view, asked, sockets=sockets, files=options.through != "sockets")
        return with_logs(view, seen, options.asked, options.logs) if options.logs else seen

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
        """Yield the traces, and the picture."""
        if options.perfetto is not None:
            from pdctl.probes.story.perfetto import trace
            from pdctl.report.escaping import json_encoded

            yield NewFile(options.perfetto, json_encoded(trace(document.stories)).encode(), options.force)
        if options.otlp is not None:
            from pdctl.probes.story.otlp import spans
            from pdctl.report.escaping import json_encoded

            yield NewFile(options.otlp, json_encoded(spans(document.stories)).encode(), options.force)
        if options.plot is not None:
            from pdctl.probes.story.plot import draw

            form = options.plot.suffix.lower().lstrip(".")
            yield NewFile(options.plot, draw(document.stories, form), options.force)


def _document(asked: str, seen: Seen) -> StoryDocument:
    from collections import Counter

    from msgspec.structs import replace

    from pdctl.probes.story.absence import never_came, others_of, shared
    from pdctl.probes.story.cancelled import left_running, named_by
    from pdctl.probes.story.find import hashed, known_rooms, meant, nearest
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
    names = [asked, *(one for one in seen.called if one != asked)]
    found = (meant(one, known, recordings, hashed=hashed(one, seen.salts)) for one in names)
    rooms = next((rooms for rooms in found if rooms), [])
    if not rooms:
        said, hint = never_came(asked, seen.pasts, seen.now_ns)
        named = "".join(f"; {one}" for one in named_by(asked, seen.logs))
        earlier = f"; {seen.earlier} ranks of earlier starts were left out, --all reads them" if seen.earlier else ""
        raise PdctlError(f"{said}{named}{earlier}", f"{hint} {nearest_words(nearest(asked, known))}", Exit.PARTIAL)
    others = [one for one in known if one.room not in rooms]
    ids = {one.room: set(one.rids) for one in known}
    told = []
    for room in rooms:
        foreign = {name for other in known if other.room != room for name in other.rids} - ids.get(room, set())
        called = [one for one in names if one not in foreign and one not in map(str, rooms)]
        told.append(story(seen.pasts, room, seen.logs, called))
    stories = tuple(replace(one, notes=(*one.notes, *others_of(one, others))) for one in told)
    rooms_of = Counter(rid for one in known for rid in one.rids)
    findings = (*shared(stories), *left_running(stories, seen.logs, rooms_of))
    return StoryDocument(asked=asked, stories=stories, findings=findings, earlier=seen.earlier)


def _readable(path: Path) -> None:
    import os

    from pdctl.protocol.files import open_regular

    try:
        os.close(open_regular(path, follow=True))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise PdctlError(f"{path} can't be read: {why}", "Give a log file that you may read.", Exit.USAGE) from None


def _plottable(path: Path) -> None:
    from pdctl.protocol import extras

    if path.suffix.lower() not in PLOTS:
        raise WrongOptionError(f"{path.name} ends in none of {', '.join(PLOTS)}", "--plot")
    extras.require("plot", "--plot")


PROBE = Story()
