"""What ``pdctl replay`` does: plans made from a trace, executed, drawn, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pdctl.protocol import extras
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import check_target, write_new
from pdctl.protocol.model import POLLED_QUEUES
from pdctl.report import progress
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.replay.groups import GroupQueue
    from pdctl.replay.model import ReplayDocument, ReplayGroup, ReplayRun
    from pdctl.replay.plan import Plan
    from pdctl.replay.worker_log import Options

PLOTS = (".svg", ".png", ".html")
GATES = ("on", "off", "both")
BACKENDS = ("gloo", "nccl")
ENGINES = ("", "sglang")
_STYLE = {"AS RECORDED": "green", "DIFFERS": "cyan", "DIVERGES": "bold red", "FAILED": "yellow"}


@dataclass(frozen=True)
class Asked:
    """What was asked. queues: none for all. gate: one of GATES. repeats: equal rounds executed in a row, at most."""

    queues: tuple[str, ...] = ()
    gate: str = "both"
    device: str = "cpu"
    backend: str = "gloo"
    engine: str = ""
    stall_s: float = 5.0
    repeats: int = 1000
    emit: Path | None = None
    plot: Path | None = None


def run(trace: Path, asked: Asked, output: Format) -> int:
    """Execute, print, and return the exit code. Raises PdctlError for what can't be executed."""
    if asked.emit is not None and asked.plot is not None:
        raise PdctlError("--emit-test executes and draws nothing", "Leave --plot out, or --emit-test.", Exit.USAGE)
    check(asked)
    if asked.plot is not None:
        _check_plot(asked.plot)
    plans, problems = plans_of(trace, asked)
    if asked.backend == "nccl":
        enough(_cuda_devices(), plans)
    if asked.emit is not None:
        write_new(asked.emit, text_of(plans).encode())
        Output(output).note(f"{asked.emit}: run it with pytest where SGLang is installed")
        return int(Exit.CLEAN)
    from pdctl.replay.model import ReplayGroup

    document = execute_all(trace, plans, asked, problems)
    out = Output(output)
    out.document(document, Rows(ReplayGroup, document.groups), draw)
    if asked.plot is not None:
        write_new(asked.plot, picture(trace, asked))
        out.note(f"wrote {asked.plot}")
    if not output.whole:
        for problem in document.problems:
            out.note(f"not replayed: {problem}")
    return int(exit_code(document))


def _check_plot(plot: Path) -> None:
    """Raise PdctlError where ``plot`` can't be drawn: another ending than PLOTS, no matplotlib, or it exists."""
    if plot.suffix.lower() not in PLOTS:
        raise PdctlError(f"{plot.name} ends in none of {', '.join(PLOTS)}", "Name the picture so.", Exit.USAGE)
    extras.require("plot", "--plot")
    check_target(plot, force=False)


def text_of(plans: Sequence[Plan]) -> str:
    """Return the test of the transfer queue's rounds. Raises PdctlError where there is none."""
    from pdctl.replay.emit import NothingToShow, source
    from pdctl.replay.plan import HAS_ROWS

    chosen = next((plan for plan in plans if plan.queue == HAS_ROWS), None)
    if chosen is None:
        raise PdctlError(
            f"the trace has no rounds of {HAS_ROWS} on several ranks",
            "Only these can be made a test so far.",
            Exit.USAGE,
        )
    try:
        return source(chosen)
    except NothingToShow as error:
        raise PdctlError(str(error), "There is nothing to reproduce.", Exit.PARTIAL) from None


def plans_of(trace: Path, asked: Asked) -> tuple[list[Plan], list[str]]:
    """Return the plan of every queue and group of the trace, and what can't be planned. Raises PdctlError for nothing."""
    from pdctl.replay.plan import NotReplayable, plan

    found, problems = _targets(trace, asked)
    plans = []
    for target in found:
        name = f"{target.title} · {target.queue}"
        if target.missing:
            problems.append(f"{name}: no recording of {', '.join(target.missing)}")
        if len(target.recordings) < 2:
            continue
        try:
            made = plan(target.recordings, target.queue, target.title, repeats=asked.repeats, missing=target.missing)
        except NotReplayable as error:
            problems.append(f"{name}: {error}")
            continue
        plans.append(made)
    if not plans:
        raise PdctlError(
            f"{trace} has no rounds of several ranks to replay",
            "Record all ranks of a group: pdctl record FILE.pdtrace. Groups of one rank have nothing to compare.",
            Exit.PARTIAL,
            details=problems,
        )
    return plans, problems


def _targets(trace: Path, asked: Asked) -> tuple[list[GroupQueue], list[str]]:
    from pdctl.commands.options import find
    from pdctl.probes.queues.collect import collect
    from pdctl.probes.view import View
    from pdctl.replay.groups import targets
    from pdctl.targets.client import Client

    found = find(None, None, trace)
    with Client() as client:
        views = collect(View(found, client), sockets=False)
    problems = list(found.problems)
    problems += [f"{view.identity.label}: {view.recording_off}" for view in views if view.recording is None]
    return targets(views, asked.queues), problems


def picture(trace: Path, asked: Asked) -> bytes:
    """Return the map of rounds × ranks of what the trace recorded."""
    from pdctl.replay.heat import heat
    from pdctl.replay.heat_plot import draw as draw_heat

    assert asked.plot is not None
    found, _ = _targets(trace, asked)
    heats = [heat(target) for target in found if len(target.recordings) > 1]
    return draw_heat(heats, asked.plot.suffix.lower().lstrip("."))


def execute_all(trace: Path, plans: list[Plan], asked: Asked, problems: list[str]) -> ReplayDocument:
    """Return what came of every plan, with the gate on, off or both ways where the queue has one."""
    from pdctl.replay.judge import judge
    from pdctl.replay.run import Workers

    progress.doing(f"executing the rounds of {len(plans)} queue{'s'[: len(plans) != 1]}")
    ways = [(plan, _ways(plan, asked)) for plan in plans]
    with Workers() as workers:
        done = [
            (plan, tuple(judge(plan, each, workers.execute(plan, each)) for each in options)) for plan, options in ways
        ]
    return report(trace, done, ways[0][1][0], problems)


def report(
    trace: Path, done: Sequence[tuple[Plan, tuple[ReplayRun, ...]]], options: Options, problems: Sequence[str]
) -> ReplayDocument:
    """Return the document of what was executed."""
    from pdctl.replay.model import ReplayDocument, ReplayGroup

    groups = [
        ReplayGroup(
            title=plan.title,
            queue=plan.queue,
            ranks=tuple(rank.place for rank in plan.ranks),
            first=plan.ordinals[0],
            last=plan.ordinals[-1],
            executed=plan.rounds,
            left_out=plan.left_out,
            requests=len(plan.requests),
            element=plan.element,
            recorded_gate=plan.gated,
            runs=runs,
            notes=plan.notes,
            missing=plan.missing,
        )
        for plan, runs in done
    ]
    return ReplayDocument(
        trace=str(trace),
        device=options.device,
        backend=options.backend,
        groups=tuple(groups),
        partial=bool(problems),
        problems=tuple(problems),
    )


def _ways(plan: Plan, asked: Asked) -> list[Options]:
    from pdctl.replay.worker_log import Options

    gates = {"on": [True], "off": [False], "both": [False, True]}[asked.gate]
    if plan.queue != "decode.transfer":
        gates = [False]  # it has no gate
    return [Options(gate, asked.device, asked.backend, asked.engine, asked.stall_s) for gate in gates]


def check(asked: Asked) -> None:
    """Raise BadParameter or PdctlError for options that can't be."""
    for option, value, known in (
        ("--gate", asked.gate, GATES),
        ("--backend", asked.backend, BACKENDS),
        ("--engine", asked.engine, ENGINES),
    ):
        if value not in known:
            raise typer.BadParameter(", ".join(filter(None, known)), param_hint=option)
    for queue in asked.queues:
        if queue not in POLLED_QUEUES:
            raise typer.BadParameter(f"{queue!r} has no rounds: {', '.join(POLLED_QUEUES)}", param_hint="--queue")
    cuda = asked.device != "cpu" or asked.backend == "nccl"
    if cuda or asked.emit is None:
        extras.require("replay", "pdctl replay")
    if cuda:
        _check_cuda(asked)
    if asked.engine:
        from pdctl.engines.sglang.replayed import NoEngine, functions

        try:
            _, has_gate = functions()
        except NoEngine as error:
            raise PdctlError(
                str(error), "Run pdctl with the Python that the engine is installed in.", Exit.USAGE
            ) from None
        if asked.gate != "off" and not has_gate:
            raise PdctlError("the SGLang installed here has no metadata gate", "Replay with --gate off.", Exit.USAGE)


def _check_cuda(asked: Asked) -> None:
    import torch

    try:
        kind = torch.device(asked.device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise typer.BadParameter(f"{asked.device!r}: cpu, cuda or cuda:N", param_hint="--device")
    count = _cuda_devices()
    number = torch.device(asked.device).index or 0
    if kind == "cuda" and number >= count:
        raise PdctlError(f"torch sees {count} CUDA devices here", "Replay with --device cpu.", Exit.USAGE)
    if asked.backend == "nccl" and not count:
        raise PdctlError("nccl needs CUDA devices, and torch sees none here", "Replay with --backend gloo.", Exit.USAGE)


def _cuda_devices() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def enough(devices: int, plans: Sequence[Plan]) -> None:
    """Raise PdctlError where nccl would need more devices than there are: it takes one a rank."""
    ranks = max(len(plan.ranks) for plan in plans)
    if devices < ranks:
        raise PdctlError(
            f"nccl needs a CUDA device for each of {ranks} ranks, and torch sees {devices} here",
            "Replay with --backend gloo, or on several machines with torchrun.",
            Exit.USAGE,
        )


def exit_code(document: ReplayDocument) -> Exit:
    """Return what the command exits with: ranks that part come first, then what is missing."""
    verdicts = {one.verdict for group in document.groups for one in group.runs}
    differs = any(one.engine_differs for group in document.groups for one in group.runs)
    if "DIVERGES" in verdicts or differs:
        return Exit.FINDING
    return Exit.PARTIAL if document.partial or "FAILED" in verdicts else Exit.CLEAN


# ---- for people ------------------------------------------------------------------------------------------------------


def draw(document: ReplayDocument, console: Console) -> None:
    """Draw every queue with a line for each way it was executed."""
    from rich.text import Text

    for number, group in enumerate(document.groups):
        if number:
            console.print()
        console.print(Text(f"{group.title} · {group.queue}", style="bold"))
        console.print(f"  {_extent(group)}")
        if group.missing:
            absent = ", ".join(group.missing)
            console.print(f"  without {absent}: what its polls held back, or let pass, is not replayed")
        for one in group.runs:
            _draw_run(group, one, console)
        for note in group.notes:
            console.print(Text(f"  {note}", style="dim"))


def _extent(group: ReplayGroup) -> str:
    rounds = (
        f"rounds {group.first} to {group.last} of {', '.join(group.ranks)}"
        if group.last > group.first
        else f"round {group.first}"
    )
    skipped = f", {group.left_out:,} that repeat others left out" if group.left_out else ""
    requests = f"{group.requests} request{'s'[: group.requests != 1]}"
    return f"{rounds}{skipped}; {requests}, reduced as {group.element}"


def _draw_run(group: ReplayGroup, one: ReplayRun, console: Console) -> None:
    from rich.text import Text

    name = f"gate {one.gate}" if group.queue == "decode.transfer" else "replayed"
    recorded = (
        " (as recorded)" if group.queue == "decode.transfer" and (one.gate == "on") == group.recorded_gate else ""
    )
    line = Text(f"  {name}{recorded}  ")
    line.append(one.verdict, style=_STYLE.get(one.verdict, ""))
    if one.round >= 0:
        line.append(f" at round {one.round}")
    console.print(line)
    console.print(f"      {one.text}", highlight=False)
    if one.held and one.gate == "on":
        rooms = ", ".join(map(str, one.held[:3])) + (f" and {len(one.held) - 3} more" if len(one.held) > 3 else "")
        console.print(
            f"      the gate held room {rooms}" if len(one.held) == 1 else f"      the gate held rooms {rooms}"
        )
    for differs in one.engine_differs[:3]:
        console.print(f"      {differs}")
