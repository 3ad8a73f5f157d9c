"""``pdctl stacks``: where the main threads of all ranks are, who stands elsewhere than its group, and in which collectives."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands.options import (
    RANK_TIMEOUT_S,
    TIMEOUT_S,
    AllStartsOption,
    FromOption,
    OutputOption,
    RankTimeoutOption,
    RecordDirOption,
    RunDirOption,
    TimeoutOption,
    find,
    seconds,
)
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from pdctl.probes.stacks.model import StacksDocument
    from pdctl.targets.find import Found

LOOKS = 3
EVERY_S = 0.2


def command(
    output: OutputOption = Format.TABLE,
    rank: Annotated[
        Optional[list[str]],  # noqa: UP045  # typer evaluates annotations, and older typer does not take 3.10's own
        typer.Option("--rank", metavar="PATTERN", help="Only these ranks, e.g. decode:dp0 or *:tp[01]."),
    ] = None,
    samples: Annotated[
        int,
        typer.Option("--samples", min=1, max=100, help="Looks at each rank, at least; 1 can't tell stuck from moving."),
    ] = LOOKS,
    every: Annotated[
        float, typer.Option("--every", parser=seconds, metavar="TIME", help="Time between two looks.")
    ] = EVERY_S,
    collectives: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option(
            "--collectives/--no-collectives",
            help="Read PyTorch's flight recorders, or say nothing of collectives. Default: read them where a rank is stuck.",
        ),
    ] = None,
    outside: Annotated[
        bool,
        typer.Option("--outside/--no-outside", help="Let py-spy, where installed, read ranks that do not answer."),
    ] = True,
    every_start: AllStartsOption = False,
    source: FromOption = None,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
) -> int:
    """Show where the main threads of all ranks are, outliers against their own group first, and their collectives.

    Ranks that stand in different collectives of a group are looked at for two seconds before that is a finding.

    Exit code: 0 when every rank answered, 1 on a finding, 3 when some ranks did not answer, 4 when none could be reached
    and none left a recording.
    """
    if (samples - 1) * every >= timeout:
        raise typer.BadParameter(f"{samples} looks take longer than --timeout", param_hint="--samples")
    found = _chosen(
        find(run_dir, record_dir, source, every_start=every_start, timeout=timeout, rank_timeout=rank_timeout),
        rank or [],
    )
    from pdctl.probes.stacks.collect import collect
    from pdctl.probes.stacks.judge import judge
    from pdctl.targets.client import Client

    with Client(timeout_s=timeout, spent_s=found.took_s, rank_timeout_s=rank_timeout) as client:
        views = collect(found, client, looks=samples, every_s=every, flights=collectives, outside=outside)
    document = judge(views, with_collectives=collectives is not False)
    out = Output(output)
    wide = output is Format.WIDE
    code = int(exit_code(document, found_problems=bool(found.problems)))
    out.document(document, document.ranks, partial(_draw, wide=wide), code=code)
    if output.drawn:
        for problem in (*document.problems, *found.problems, *(f"less: {note}" for note in document.notes)):
            out.note(problem)
    return code


def exit_code(document: StacksDocument, *, found_problems: bool = False) -> Exit:
    """Return what the command exits with: findings come first, then ranks that did not answer."""
    if document.findings:
        return Exit.FINDING
    if not any(rank.stack or rank.last_round for rank in document.ranks):
        return Exit.UNREACHABLE
    return Exit.PARTIAL if document.partial or found_problems else Exit.CLEAN


def _chosen(found: Found, patterns: list[str]) -> Found:
    """Return the ranks that a pattern matches; all without one. Raises PdctlError where one matches none."""
    from pdctl.targets import selectors

    if not patterns:
        return found
    chosen = set()
    for text in patterns:
        try:
            selector = selectors.parse(text)
        except ValueError as error:
            raise PdctlError(str(error), code=Exit.USAGE) from None
        matched = [n for n, one in enumerate(found.ranks) if selector.matches(one.identity)]
        if not matched:
            raise PdctlError(
                f"no rank matches {text!r}", f"There are: {_some(found)}. pdctl ranks shows all.", Exit.USAGE
            )
        chosen.update(matched)
    return replace(found, ranks=tuple(one for n, one in enumerate(found.ranks) if n in chosen))


def _some(found: Found) -> str:
    from pdctl.targets import nodeset

    identities = [one.identity for one in found.ranks]
    names = nodeset.server_names(identities)
    return nodeset.fold((nodeset.place(one, names) for one in identities), nodeset.shown_axes(identities))


def _draw(document: StacksDocument, console: object, *, wide: bool) -> None:
    from pdctl.commands.stacks_drawn import draw

    draw(document, console, wide=wide)  # type: ignore[arg-type]
