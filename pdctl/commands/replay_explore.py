"""The searching part of ``pdctl replay``: options checked, spaces made, searched, drawn, and the exit code."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pdctl.explore.policies import POLICIES, Policy
from pdctl.explore.space import Space, parse, space_of
from pdctl.protocol import extras
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.escaping import argument
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.explore.document import Counterexample, Explored, ExploreDocument
    from pdctl.explore.space import Schedule

AUTO = 10**8
"""Schedules that are all tried unless told otherwise."""
MOST = 10**10
"""Schedules that are all tried at most."""
SAMPLE = 10**7
"""Schedules drawn where there are more than AUTO."""

_STYLE = {"BROKEN": "bold red", "HOLDS": "green", "INCONCLUSIVE": "yellow"}
_CODES = {"BROKEN": Exit.FINDING, "HOLDS": Exit.CLEAN, "INCONCLUSIVE": Exit.PARTIAL}


@dataclass(frozen=True)
class Search:
    """What was asked. names: policies, none for all that apply. schedules: how many to draw, None to decide by the bound.

    near: how many rounds from where it was recorded something may happen.
    """

    names: tuple[str, ...] = ()
    schedules: int | None = None
    exhaustive: bool = False
    seed: int = 0
    device: str = "cpu"
    limit_s: float = 60.0
    write: Path | None = None
    near: int = 1


def run(asked: Search, model: str, trace: Path | None, output: Format) -> int:
    """Search, print, and return the exit code. Raises PdctlError for what can't be searched."""
    policies = _policies(asked.names)
    if trace is not None:
        return _near(asked, trace, output)
    try:
        bound = parse(model)
    except ValueError as error:
        raise PdctlError(f"--model: {error}", "For example --model ranks=2,requests=3,rounds=3.", Exit.USAGE) from None
    spaces = [space_of(policy, bound) for policy in policies]
    late = f", arriving within {bound.arrivals}" if bound.arrivals > 1 else ""
    text = f"{bound.ranks} ranks × {_count(bound.requests, 'request')} × {_count(bound.rounds, 'round')}{late}"
    document = search(asked, spaces, text)
    Output(output).document(document, document.results, draw)
    return int(_CODES[document.verdict])


def _near(asked: Search, trace: Path, output: Format) -> int:
    import msgspec

    from pdctl.commands.options import find
    from pdctl.explore.near import as_recorded, policies_for, recorded, space_near
    from pdctl.explore.rules import run as step
    from pdctl.recording.reader import BadRecording, read

    found = find(None, None, trace, every_start=True)
    recordings, problems = [], list(found.problems)
    for rank in found.ranks:
        try:
            if rank.recording is not None:
                recordings.append(read(rank.recording))
        except (OSError, BadRecording) as error:
            problems.append(f"{rank.identity.label}: {error}")
    window = recorded(recordings)
    fit = policies_for(window)
    policies = [policy for policy in _policies(asked.names) if policy in fit]
    if not policies:
        there = ", ".join(policy.name for policy in fit)
        raise PdctlError(f"no such policy is about {window.queue}", f"There are: {there}.", Exit.USAGE)
    near = f"{window.text}; everything up to {_count(asked.near, 'round')} earlier or later"
    document = search(asked, [space_near(policy, window, asked.near) for policy in policies], near, str(trace))
    results = tuple(
        msgspec.structs.replace(result, as_recorded=bool(step(policy, as_recorded(policy, window)).splits))
        for policy, result in zip(policies, document.results, strict=True)
    )
    document = msgspec.structs.replace(document, results=results, problems=tuple(problems))
    out = Output(output)
    out.document(document, document.results, draw)
    if output.drawn:
        for problem in problems:
            out.note(f"left out: {problem}")
    return int(_CODES[document.verdict])


def _policies(names: tuple[str, ...]) -> list[Policy]:
    for name in names:
        if name not in POLICIES:
            from difflib import get_close_matches

            near = get_close_matches(name, POLICIES, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise PdctlError(f"there is no policy {name!r}", f"{hint}There are: {', '.join(POLICIES)}.", Exit.USAGE)
    return [policy for name, policy in POLICIES.items() if not names or name in names]


def search(asked: Search, spaces: list[Space], bound: str, source: str = "") -> ExploreDocument:
    """Search every space within the time limit they share. Raises PdctlError (USAGE, REFUSED)."""
    amounts = [_amount(asked, space) for space in spaces]
    _usable(asked.device)
    if asked.write is not None:
        _new(asked.write)
    from pdctl.explore.document import ASSUMES, ExploreDocument, explored, worst
    from pdctl.explore.search import search as run_search

    ends = time.monotonic() + asked.limit_s
    results = []
    for n, (space, amount) in enumerate(zip(spaces, amounts, strict=True)):
        limit = max(0.0, ends - time.monotonic()) / (len(spaces) - n)
        try:
            found = run_search(space, schedules=amount, seed=asked.seed, device=asked.device, limit_s=limit)
        except RuntimeError as error:  # torch's: out of the device's memory, or the device is gone
            why = str(error).splitlines()[0]
            raise PdctlError(f"{asked.device}: {why}", "Use --device cpu.", Exit.UNREACHABLE) from None
        results.append(explored(space, found, lambda *what: _written(asked.write, *what)))
    machines = dict.fromkeys(space.policy.machine for space in spaces)
    return ExploreDocument(
        verdict=worst(tuple(results)),
        bound=bound,
        device=asked.device,
        seed=asked.seed,
        results=tuple(results),
        assumes=tuple(line for machine in machines for line in ASSUMES[machine]),
        source=source,
    )


def _amount(asked: Search, space: Space) -> int | None:
    """Return how many schedules to draw, None to try all."""
    if asked.exhaustive and space.size > MOST:
        raise PdctlError(
            f"{space.policy.name}: {_about(space.size)} schedules are too many to try all (at most {MOST:,})",
            f"Fewer rounds, requests or ranks, or some of them: --schedules {SAMPLE}.",
            Exit.REFUSED,
        )
    if asked.schedules is None and not asked.exhaustive and space.size > AUTO:
        return SAMPLE
    return asked.schedules


def _usable(device: str) -> None:
    extras.require("replay", "a search")
    import torch

    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()) or (kind == "cpu" and number):
        raise PdctlError(f"there is no device {device!r}", "cpu, cuda or cuda:N.", Exit.USAGE)
    if kind == "cpu":
        return
    if not torch.cuda.is_available():
        why = "no CUDA device" if torch.version.cuda else f"torch {torch.__version__} is built without CUDA"
        raise PdctlError(f"--device {device}: {why}", "Use --device cpu: the result is the same.", Exit.USAGE)
    if int(number or 0) >= torch.cuda.device_count():
        raise PdctlError(
            f"--device {device}: there are {torch.cuda.device_count()} CUDA devices", "They count from 0.", Exit.USAGE
        )


def _new(folder: Path) -> None:
    """Make the directory that counterexamples go to before the search: nothing is lost at its end."""
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise PdctlError(
            f"{folder} can't be made: {error.strerror}", "Name a directory that is not there yet.", Exit.USAGE
        ) from None


def _written(folder: Path | None, policy: Policy, schedule: Schedule, way: str) -> str:
    if folder is None:
        return ""
    from pdctl.explore.recordings import write
    from pdctl.trace.container import member_of, write_trace
    from pdctl.trace.manifest import new

    target = folder / f"{policy.name}-{way}.pdtrace"
    with TemporaryDirectory(prefix="pdctl-") as scratch:
        ranks = Path(scratch) / "ranks"
        write(policy, schedule, ranks)
        members = [member_of(path.read_bytes()) for path in sorted(ranks.iterdir())]
    write_trace(target, members, new(f"a counterexample to {policy.name}"))
    return str(target)


# ---- for people ------------------------------------------------------------------------------------------------------


def draw(document: ExploreDocument, console: Console) -> None:
    """Draw the verdict of every policy, then the smallest counterexamples, then what the model leaves out."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{document.bound}, on {document.device}", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("policy", "verdict", "schedules tried", "parted"):
        table.add_column(name, no_wrap=True, justify="right" if name == "parted" else "left")
    recorded = any(result.as_recorded is not None for result in document.results)
    if recorded:
        table.add_column("as recorded")
    for result in document.results:
        verdict = Text(result.verdict, style=_STYLE[result.verdict])
        more = ("they part" if result.as_recorded else "they agree",) if recorded else ()
        table.add_row(result.policy, verdict, _covered(result, document.seed), f"{result.parted:,}", *more)
    console.print(table)
    for result in document.results:
        for example in result.counterexamples:
            console.print()
            _draw_example(result, example, console)
    console.print()
    for n, line in enumerate(document.assumes):
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False, style="dim")
        grid.add_column(width=7, no_wrap=True)
        grid.add_column()
        grid.add_row("" if n else "assumes", line)
        console.print(grid)


def _draw_example(result: Explored, example: Counterexample, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    where = f" ({result.engine})" if result.engine else ""
    console.print(Text.assemble((result.policy, "bold"), f": {example.says}{where}"))
    size = f"{_count(example.ranks, 'rank')}, {_count(example.requests, 'request')}"
    console.print(f"  smallest: {size}; they part in round {example.round}. In {example.schedules:,} schedules.")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column()
    for part in example.parts:
        table.add_row(f"    {part.rank}", f"room {part.room}", part.text)
    console.print(table)
    if example.recordings:
        console.print(f"  Next: pdctl diff-queues --from {argument(example.recordings)}", soft_wrap=True)


def _covered(result: Explored, seed: int) -> str:
    if result.covered == "exhaustive":
        return f"all {result.schedules:,}"
    total = f"{result.of:,}" if result.of is not None and result.of < 10**12 else "too many to count here"
    if result.of is not None and result.of >= 10**12:
        total = _about(result.of)
    cut = ", then time was up" if result.covered == "cut short" else ""
    return f"{result.schedules:,} of {total}, seed {seed}{cut}"


def _about(count: int) -> str:
    from math import log10

    return f"{count:,}" if count < 10**12 else f"about 10^{log10(count):.0f}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
