"""The one runner of all probes: finds the ranks, lets a probe look, prints what it says, decides the exit code."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pdctl.probes.aborts import with_warnings
from pdctl.probes.base import RANK_TIMEOUT_S, TIMEOUT_S, AnyProbe, WrongOptionError
from pdctl.protocol.documents import Document, Rows
from pdctl.protocol.errors import Exit, PdctlError, exit_of
from pdctl.report import progress
from pdctl.report.causes import connect
from pdctl.report.output import Format, Output
from pdctl.targets.far_connections import FarConnections
from pdctl.targets.reach import Reach
from pdctl.targets.selectors import Selection

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from pdctl.probes.view import View
    from pdctl.protocol.rank import FoundRank
    from pdctl.report.findings import Finding
    from pdctl.targets.find import Found

EXIT_CODES = (
    "Exit code: 0 nothing is wrong, 1 a finding of level warning or above, 3 something could not be judged, 4 nothing could"
    " be looked at."
)
NOBODY = "PD112"
"""The finding that a rank does not answer. Where none does it is no finding but the reason that there is none."""
DRAWN_S = 5.0
"""Seconds of CPU time that drawing may always take: more than it does on the busiest machine, but for thousands of servers."""
LEVELS = ("info", "warning", "error")


@dataclass(frozen=True)
class Asked:
    """The options that probes share. source: ``--from``. every_start: ``--all``. only_findings: ``--findings``."""

    reach: Reach = field(default_factory=Reach)
    source: Path | None = None
    selection: Selection = field(default_factory=Selection)
    every_start: bool = False
    timeout_s: float = TIMEOUT_S
    rank_timeout_s: float = RANK_TIMEOUT_S
    only_findings: bool = False


def run(probe: AnyProbe, options: Any, asked: Asked, out: Output) -> Exit:
    """Look, print, and return what the command exits with.

    Raises WrongOptionError for options that do not fit together, PdctlError where there is nothing to look at.
    """
    if not probe.fails_alone(options):
        return _run(probe, options, asked, out)
    try:
        return _run(probe, options, asked, out)
    except PdctlError as error:
        if error.code is Exit.USAGE:
            raise
        why = error.message
    except WrongOptionError:
        raise
    except Exception as error:  # noqa: BLE001  # whoever restarts on any other code would restart for a defect of pdctl
        why = f"{type(error).__name__}: {error}"
    out.note(f"not judged: {why}")
    return Exit.CLEAN


def _run(probe: AnyProbe, options: Any, asked: Asked, out: Output) -> Exit:
    if asked.only_findings and out.format not in (Format.JSONL, Format.CSV):
        raise WrongOptionError("for -o jsonl and -o csv; the other formats have them", "--findings")
    probe.refuse(options, timeout_s=asked.timeout_s, recorded=asked.source is not None)
    began = time.monotonic()
    if asked.source is not None and probe.bundled:
        kept = bundled(probe, options, asked, asked.source)
        if kept is not None:
            return show(
                probe, kept, options, out, seen=True, asked=asked, notes=("as it was when the bundle was made",)
            )
    with FarConnections() as far:
        found, others = choose(find(asked, out, spent_s=time.monotonic() - began, far=far), asked.selection)
        from pdctl.probes.view import View  # loads what asks: not before there is somebody
        from pdctl.targets.client import Client

        progress.doing(f"looking at {len(found.ranks)} rank{'s'[: len(found.ranks) != 1]}")
        took_s, rank_timeout_s = found.took_s, asked.rank_timeout_s
        with Client(timeout_s=asked.timeout_s, spent_s=took_s, rank_timeout_s=rank_timeout_s, far=far) as client:
            if probe.waits_once:
                client.give_up_on_silent()
            view = View.open(found, client, others=others, recorded=asked.source is not None, asks=probe.asks(options))
            document = look(probe, view, options)
            seen = probe.seen(document, view)
    left_out = f"{found.left_out}; --all shows them" if found.left_out and probe.starts else found.left_out
    return show(
        probe,
        document,
        options,
        out,
        seen=seen,
        problems=found.problems,
        asked=asked,
        notes=(left_out,) if left_out else (),
    )


def bundled(probe: AnyProbe, options: Any, asked: Asked, source: Path) -> Document | None:
    """Return what the bundle ``source`` has of a probe; None where its recordings are to be looked at.

    Raises PdctlError (USAGE) where it has none and recordings do not tell it, or where less is asked for than the whole, and
    as :func:`pdctl.trace.reader.read_documents`.
    """
    from pdctl.protocol import structs
    from pdctl.trace.reader import read_documents

    name, raw = probe.bundled, b""
    if not source.is_dir():
        raw = read_documents(source, lambda one: one == name, timeout_s=asked.timeout_s).get(name, b"")
    whole = options == probe.options() and not asked.selection.given and not asked.every_start
    if raw and whole:
        try:
            found: Document = structs.from_json(raw, probe.document())
        except ValueError:
            raw = b""
        else:
            return found
    if probe.offline:
        return None
    if raw:
        said = "a bundle has that as a whole"
        raise PdctlError(said, "Leave out --rank and the command's own options.", Exit.USAGE)
    said = f"{source} does not tell of that: recordings have nothing of it"
    raise PdctlError(said, "Give a file that pdctl bundle made, or ask live ranks, without --from.", Exit.USAGE)


def show(
    probe: AnyProbe,
    document: Any,
    options: Any,
    out: Output,
    *,
    seen: bool,
    asked: Asked,
    problems: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Exit:
    """Print a document, write the files that belong to it, and return what the command exits with.

    seen: something could be looked at. problems: of those who were found, besides the document's own. notes: besides its own.
    """
    from pdctl.protocol.files import write_new
    from pdctl.report.findings import Finding
    from pdctl.targets.nodeset import fold_lines

    wide = out.format is Format.WIDE

    def draw(shown: Document, console: Console) -> None:
        draw_within(probe.render(shown, wide=wide), console, max(asked.timeout_s, DRAWN_S))

    findings = probe.findings(document)
    code = exit_code(
        findings,
        seen=seen,
        partial=probe.partial(document) or bool(problems),
        level=probe.fails_on(options),
        alone=probe.fails_alone(options),
    )
    out.document(
        document,
        probe.rows(document),
        draw,
        code=code,
        findings=Rows(Finding, findings),
        only_findings=asked.only_findings,
    )
    for new in probe.files(document, options):
        write_new(new.path, new.data, force=new.force)
        out.note(f"wrote {new.path}")
    unseen = fold_lines((*probe.problems(document), *problems))
    if not out.format.whole or probe.fails_alone(options):
        for problem in unseen:
            out.note(f"not seen or in part: {problem}")
        for note in notes:
            out.note(note)
        for note in fold_lines(probe.notes(document)):
            if note not in unseen:
                out.note(note)
    return code


def draw_within(parts: Iterable[RenderableType], console: Console, most_s: float) -> None:
    """Print these parts of a document. After ``most_s`` seconds of CPU time, say that the rest is not drawn.

    Only thousands of servers take as long: a manifest may name as many as somebody likes.
    """
    end = time.process_time() + most_s
    for part in parts:
        if time.process_time() > end:
            console.print(f"The rest is not drawn: that takes more than {most_s:g} s. -o json has all of it.")
            return
        console.print(part)


def look(probe: AnyProbe, view: View, options: Any) -> Any:
    """Return the document of a probe, its findings connected (:func:`pdctl.report.causes.connect`).

    Silent agents that were replaced by a look from outside are among its problems.
    """
    return evidence_and_document(probe, view, options)[1]


def evidence_and_document(probe: AnyProbe, view: View, options: Any) -> tuple[Any, Any]:
    """Return what :func:`look` returns, and before it what that was judged from."""
    evidence = probe.collect(view, options)
    document = probe.judge(evidence, options)
    more = probe.deepen(view, evidence, document)
    if more is not None:
        evidence, document = more, probe.judge(more, options)
    if "findings" in document.__struct_fields__:
        below = view.underlying if probe.rests_on_loops(options) else ()
        rooms = frozenset(probe.held_up(document))
        between, unasked = misrouted(view, rooms) if rooms else ((), ())
        found = with_warnings(
            (*document.findings, *below, *between), (rank.identity for rank in (*view.ranks, *view.others))
        )
        document = msgspec.structs.replace(document, findings=connect(found))
        if unasked:
            document = msgspec.structs.replace(document, problems=(*document.problems, *unasked), partial=True)
    silent = [
        f"{rank.identity.label}: read from outside, its agent is silent: {rank.agent_off}"
        for rank in view.ranks
        if rank.agent_off
    ]
    if silent and "problems" in document.__struct_fields__:
        said = tuple(dict.fromkeys((*silent, *document.problems)))
        document = msgspec.structs.replace(document, problems=said, partial=True)
    return evidence, document


def misrouted(view: View, rooms: frozenset[int]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return what is wrong with the way of these rooms to the other side, and what was not asked for lack of time.

    Who is asked for it, and who is there, is looked at last: a bootstrap server that hangs takes what time is left.
    """
    from pdctl.probes.routing.collect import usual
    from pdctl.probes.routing.judge import judge

    seen = usual(view)
    found = tuple(found for found in judge(seen.look, seen.first).findings if not rooms.isdisjoint(found.rooms))
    unasked = [f"bootstrap server {one.address}: {one.silence}" for one in seen.look.servers.values() if one.hurried]
    if view.over:
        unasked.append(
            f"the way of requests that wait to the other side: {view.over} before it was looked at to the end"
        )
    return found, tuple(unasked)


def exit_code(
    findings: Sequence[Finding], *, seen: bool, partial: bool, level: str = "warning", alone: bool = False
) -> Exit:
    """Return what a look exits with.

    level: the lowest one of a finding that counts. seen: something could be looked at. alone: nothing but a finding counts.
    """
    counting = LEVELS[LEVELS.index(level) :]
    if any(found.level.value in counting and (seen or found.code != NOBODY) for found in findings):
        return Exit.FINDING
    return Exit.CLEAN if alone else exit_of(seen=seen, partial=partial)


def find(
    asked: Asked,
    out: Output,
    *,
    outside: bool = True,
    spent_s: float = 0.0,
    far: FarConnections | None = None,
) -> Found:
    """Return the ranks that these options mean, and say what was left alone since it belongs to other users.

    outside: also those here that have no agent and are read from outside, within the same time. spent_s: the part of that time
    that reading the source took before. far: as for :func:`pdctl.targets.find.discover`. Raises PdctlError (UNREACHABLE) where
    there are none, or none may be seen.
    """
    from pdctl.targets.find import discover, load_source

    if asked.source is not None:
        there = load_source(asked.source, every_start=asked.every_start, timeout_s=asked.timeout_s, spent_s=spent_s)
        if not there.ranks:
            raise PdctlError(
                f"{asked.source} has no recordings",
                "Give a trace that pdctl record made, or the directory of the ranks' recordings (PDCTL_RECORD_DIR).",
                details=there.problems,
            )
        return there
    found = discover(
        asked.reach.places(),
        every_start=asked.every_start,
        timeout_s=asked.timeout_s,
        rank_timeout_s=min(asked.timeout_s, asked.rank_timeout_s),
        outside=outside,
        far=far,
    )
    if found.ranks and found.others:
        out.note(found.left_alone)
    return found.require()


def choose(found: Found, selection: Selection) -> tuple[Found, tuple[FoundRank, ...]]:
    """Return the ranks that are meant, and the others. Raises PdctlError (:func:`pdctl.targets.selectors.select`)."""
    from pdctl.targets.selectors import select

    if not selection.given:
        return found, ()
    chosen = set(select(selection, [one.identity for one in found.ranks]))
    ranks = tuple(one for n, one in enumerate(found.ranks) if n in chosen)
    return replace(found, ranks=ranks), tuple(one for n, one in enumerate(found.ranks) if n not in chosen)
