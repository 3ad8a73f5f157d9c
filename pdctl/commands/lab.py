"""``pdctl lab``: the embedded cluster; starts it, sends requests through it, looks at it, ends it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands.options import OutputOption, RecordDirOption, RunDirOption, seconds
from pdctl.lab.config import DEVICES, FIXES, LOAD_BALANCE, SIDES, TRANSPORTS
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Document, Format, Output
from pdctl.targets.reach import Reach

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from pdctl.lab.config import LabConfig
    from pdctl.lab.state import Process

EXAMPLES = {
    "up": ("pdctl lab up", "pdctl lab up --name two --decode tp=2,dp=2 --without gate"),
    "status": ("pdctl lab status", "pdctl lab status -o json"),
    "load": ("pdctl lab load", "pdctl lab load --requests 4 --room 4711"),
    "down": ("pdctl lab down", "pdctl lab down --name two"),
}

app = typer.Typer(
    name="lab",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run an embedded PD cluster of real processes without a model, to learn, to test, and to break on purpose.",
)

NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of the lab. Several labs need different names.")
]

_FIXES_HELP = "\n\n".join(
    ["Fixes that --without takes:", *(f"{name}: {what}." for name, what in FIXES.items())],
)


class LabProcess(Document, frozen=True, kw_only=True, tag="pdctl.lab.process"):
    """One process of a lab. state: ``ready``, ``starting``, ``stopped`` (by a signal), ``failed``, ``ended`` or ``gone``
    (without a word). tcp: where a rank listens for other hosts, "" where it was not asked to, or tcp_off says why it does not.
    """

    process: str
    pid: int
    state: str
    detail: str
    transport: str
    endpoint: str
    tcp: str = ""
    tcp_off: str = ""


class LabStatus(Document, frozen=True, kw_only=True, tag="pdctl.lab.status"):
    """A lab: how it was started and its processes. network says whether it has one of its own."""

    name: str
    prefill: str
    decode: str
    without: list[str]
    armed: bool
    load_balance: str
    metadata_device: str
    network: str
    bootstrap: str
    run_dir: str
    processes: list[LabProcess]


class LabLoad(Document, frozen=True, kw_only=True, tag="pdctl.lab.load"):
    """What came of a load. Times in seconds. See :class:`pdctl.lab.client.Outcome`."""

    name: str
    sent: int
    completed: int
    failed: int
    wrong: int
    unfinished: int
    aborted: int
    seconds: float
    latency_p50_s: float | None
    latency_p99_s: float | None
    latency_max_s: float | None
    errors: dict[str, int]
    unfinished_rooms: list[int]


class LabDown(Document, frozen=True, kw_only=True, tag="pdctl.lab.down"):
    """Processes that were ended. left: files of the lab that could not be removed, and why."""

    name: str
    ended: list[str]
    left: tuple[str, ...] = ()


@app.command(epilog=_FIXES_HELP)
def up(
    name: NameOption = "lab",
    prefill: Annotated[
        str, typer.Option(metavar="SIZES", help="Sizes of the prefill server: tp=1,dp=1,pp=1.")
    ] = "tp=1",
    decode: Annotated[str, typer.Option(metavar="SIZES", help="Sizes of the decode server: tp=2,dp=1,pp=1.")] = "tp=2",
    without: Annotated[
        list[str] | None, typer.Option(metavar="FIX[,FIX...]", help="Leave out fixes of the engine, to have the bugs.")
    ] = None,
    armed: Annotated[bool, typer.Option(help="Whether faults can be injected.")] = True,
    load_balance: Annotated[
        str, typer.Option(metavar="METHOD", help=f"How rooms go to prefill dp ranks: {', '.join(LOAD_BALANCE)}.")
    ] = "follow_bootstrap_room",
    force_query: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIDE[,SIDE]",
            help="Sides with SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1: prefill, decode.",
        ),
    ] = None,
    metadata_device: Annotated[
        str, typer.Option(metavar="DEVICE", help=f"Device of the MetadataBuffers: {', '.join(DEVICES)}.")
    ] = "cpu",
    transport: Annotated[
        str, typer.Option(metavar="NAME", help="What moves KV: auto (Mooncake if it loads), mooncake, socket.")
    ] = "auto",
    netns: Annotated[bool, typer.Option(help="Use a separate network namespace, where the machine allows it.")] = True,
    listen: Annotated[
        Optional[str],  # noqa: UP045  # typer evaluates annotations
        typer.Option(
            metavar="tcp://ADDRESS[:PORTS]",
            help="Make ranks listen there, too, with the keys of pdctl keys. Implies --no-netns.",
        ),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=4096, help="Metadata slots of each rank.")] = 64,
    kv_tokens: Annotated[int, typer.Option(min=64, max=1 << 20, help="Tokens that each rank's KV pool holds.")] = 4096,
    bootstrap_timeout: Annotated[
        float,
        typer.Option(parser=seconds, metavar="TIME", help="Time after which prefill fails a room in Bootstrapping."),
    ] = 300.0,
    waiting_timeout: Annotated[
        float,
        typer.Option(parser=seconds, metavar="TIME", help="Time after which decode fails a room in WaitingForInput."),
    ] = 300.0,
    heartbeat: Annotated[
        float,
        typer.Option(parser=seconds, metavar="TIME", help="Interval of decode's heartbeats to prefill."),
    ] = 5.0,
    heartbeat_failures: Annotated[
        int,
        typer.Option(
            min=1, max=1000, help="Decode fails the rooms of a prefill server after this number of missed heartbeats."
        ),
    ] = 2,
    entry_cleanup: Annotated[
        float,
        typer.Option(parser=seconds, metavar="TIME", help="How long the bootstrap server keeps a room's registration."),
    ] = 120.0,
    timeout: Annotated[float, typer.Option(parser=seconds, metavar="TIME", help="Time limit for the start.")] = 90.0,
    owner: Annotated[int, typer.Option(min=0, metavar="PID", help="End the lab when this process ends; 0: never.")] = 0,
    output: OutputOption = Format.TABLE,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
) -> int:
    """Start a lab and wait until it is ready.

    The lab runs until pdctl lab down ends it.

    Exit code: 0 ready, 2 wrong options, no torch or an unusable directory, 3 ready, but a rank does not listen as --listen
    asks, 4 a process did not start, 5 the name is in use, 124 not ready in time.
    """
    from pdctl.lab import launch, state
    from pdctl.lab.config import LabConfig, check, check_name, parse_names, parse_shape
    from pdctl.protocol import paths

    env = _env(run_dir, record_dir)
    config = check(
        LabConfig(
            name=check_name(name),
            prefill=parse_shape(prefill),
            decode=parse_shape(decode),
            without=parse_names(without or [], tuple(FIXES), "fix"),
            metadata_device=_one_of(metadata_device, DEVICES, "device"),
            transport=_one_of(transport, TRANSPORTS, "transport"),
            load_balance=_one_of(load_balance, LOAD_BALANCE, "load balancing method"),
            force_query=parse_names(force_query or [], SIDES, "side"),
            armed=armed,
            netns=netns and listen is None,
            listen=_listen(listen),
            slots=slots,
            kv_tokens=kv_tokens,
            bootstrap_timeout_s=bootstrap_timeout,
            waiting_timeout_s=waiting_timeout,
            heartbeat_s=heartbeat,
            heartbeat_failures=heartbeat_failures,
            entry_cleanup_s=entry_cleanup,
            owner=owner,
            run_dir=str(state.run_dir(env)),
            record_dir=str(paths.record_dir(env)),
        )
    )
    return int(Exit.CLEAN if _show(config, launch.up(config, timeout), Output(output)) else Exit.PARTIAL)


@app.command()
def status(
    name: NameOption = "lab",
    output: OutputOption = Format.TABLE,
    run_dir: RunDirOption = None,
) -> int:
    """Show the processes of a lab, its KV transport and its network.

    Exit code: 0 all processes run, 3 some do not run, or do not listen as asked, 4 there is no such lab.
    """
    config, processes = _find(name, _env(run_dir))
    listen = _show(config, processes, Output(output))
    from pdctl.lab.launch import expected

    there = {process.label for process in processes if process.alive}
    return int(Exit.CLEAN if listen and there >= {"supervisor", *expected(config)} else Exit.PARTIAL)


@app.command()
def load(
    name: NameOption = "lab",
    requests: Annotated[
        int, typer.Option("--requests", "-n", min=0, help="How many requests to send; 0: until --seconds ends.")
    ] = 32,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="How many requests at a time.")] = 8,
    rate: Annotated[float, typer.Option(min=0, help="Requests a second; 0: as fast as the concurrency allows.")] = 0.0,
    time_s: Annotated[
        float, typer.Option("--seconds", min=0.1, help="Time limit for sending and waiting, in seconds.")
    ] = 30.0,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of a prompt.")] = 24,
    new_tokens: Annotated[int, typer.Option(min=1, help="Length of an answer.")] = 8,
    room: Annotated[
        int, typer.Option(min=0, help="Room of the first request; the next ones count up. 0: random rooms.")
    ] = 0,
    prefill_dp: Annotated[
        int, typer.Option(min=-1, help="Prefill dp rank that gets every request; -1: load balancing.")
    ] = -1,
    to: Annotated[
        str, typer.Option(metavar="SIDE", help="Side that gets the requests: both, prefill, decode.")
    ] = "both",
    abort_after: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Abort requests that are not done after this time; 0: never."),
    ] = 0.0,
    lost_on: Annotated[
        int, typer.Option(min=-1, metavar="TP", help="Decode tp rank that alone loses every request; -1: none.")
    ] = -1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same rooms and prompts; -1: a new seed.")] = -1,
    output: OutputOption = Format.TABLE,
    run_dir: RunDirOption = None,
) -> int:
    """Send requests to a lab as a router does, and check the answers.

    The tokens depend on the prompt, the KV and the metadata. A request with the KV or metadata of another request has wrong
    tokens.

    Exit code: 0 all requests completed with the right tokens, 1 some did not, 4 there is no such lab.
    """
    from pdctl.lab.client import Client, Load

    config, processes = _find(name, _env(run_dir))
    if not any(process.alive for process in processes):
        raise PdctlError(f"no process of lab {name!r} is there any more", f"pdctl lab down --name {name}, then up")
    side = _one_of(to, ("both", *SIDES), "side")
    if prefill_dp >= config.prefill.dp:
        raise PdctlError(f"there is no prefill dp {prefill_dp}", f"this lab has {config.prefill.dp}", Exit.USAGE)
    client = Client(
        config,
        Load(
            requests=requests,
            concurrency=concurrency,
            rate=rate,
            seconds=time_s,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
            room=room,
            prefill_dp=prefill_dp,
            to=side,
            abort_after_s=abort_after,
            lost_on=lost_on,
            seed=None if seed < 0 else seed,
        ),
    )
    try:
        outcome = client.run()
    finally:
        client.close()
    document = LabLoad(name=name, **{field: getattr(outcome, field) for field in outcome.__struct_fields__})
    Output(output).document(document, draw=_draw_outcome)
    return int(Exit.CLEAN if outcome.good else Exit.FINDING)


@app.command()
def down(
    name: NameOption = "lab",
    output: OutputOption = Format.TABLE,
    run_dir: RunDirOption = None,
) -> int:
    """End every process of a lab and remove its sockets and recordings.

    It also ends processes that hang or are stopped.

    Exit code: 0 nothing of the lab is left, 3 a process could not be ended, or a file not removed, 4 there is no such lab.
    """
    from pdctl.lab import launch

    config, _ = _find(name, _env(run_dir))
    ended, left = launch.down(config.state_dir)
    document = LabDown(name=name, ended=[process.label for process in ended], left=tuple(left))
    out = Output(output)
    out.document(document, draw=_draw_down)
    for file in left:
        out.note(f"left: {file}")
    return int(Exit.PARTIAL if left else Exit.CLEAN)


# ---- parts -----------------------------------------------------------------------------------------------------------


def _listen(text: str | None) -> str:
    from pdctl.protocol.listen import parse_listen

    if text is None:
        return ""
    try:
        parse_listen(text)
    except ValueError as error:
        raise typer.BadParameter(str(error).partition(": ")[2], param_hint="--listen") from None
    return text


def _env(run_dir: Path | None, record_dir: Path | None = None) -> dict[str, str]:
    return Reach(run_dir=run_dir, record_dir=record_dir).over(os.environ)


def _find(name: str, env: dict[str, str]) -> tuple[LabConfig, list[Process]]:
    from pdctl.lab import launch, state
    from pdctl.lab.config import check_name

    try:
        return launch.status(check_name(name), env)
    except PdctlError as error:
        others = [other for other in state.labs(env) if other != name]
        if others and error.code == Exit.UNREACHABLE:
            raise PdctlError(error.message, f"running: {', '.join(others)} (choose with --name)", error.code) from None
        raise


def _one_of(value: str, known: tuple[str, ...], what: str) -> str:
    if value not in known:
        raise PdctlError(f"there is no {what} {value!r}", f"known: {', '.join(known)}", Exit.USAGE)
    return value


def _show(config: LabConfig, processes: list[Process], out: Output) -> bool:
    """Write the lab; returns whether its ranks listen as they were asked to, and says so where they do not."""
    from pdctl.lab.listening import complaints

    by_label = {process.label: process for process in processes}
    supervisor, bootstrap = by_label.get("supervisor"), by_label.get("bootstrap")
    rows = [_row(config, process) for process in sorted(processes, key=_order)]
    document = LabStatus(
        name=config.name,
        prefill=str(config.prefill),
        decode=str(config.decode),
        without=list(config.without),
        armed=config.armed,
        load_balance=config.load_balance,
        metadata_device=config.metadata_device,
        network=supervisor.detail if supervisor is not None else "unknown",
        bootstrap=bootstrap.endpoint if bootstrap is not None else "",
        run_dir=config.run_dir,
        processes=rows,
    )
    out.document(document, Rows(LabProcess, rows), _draw)
    asked = {row.process: row.tcp_off for row in rows if row.tcp or row.tcp_off}
    for said in complaints(asked, config.name):
        out.note(said)
    return not any(asked.values())


def _order(process: Process) -> tuple[int, str]:
    roles = ("supervisor", "bootstrap", "prefill", "decode")
    return roles.index(process.label.split()[0]), process.label


def _row(config: LabConfig, process: Process) -> LabProcess:
    from pdctl.lab.listening import listening
    from pdctl.protocol.processes import look

    state = process.state if process.alive or process.state in ("failed", "ended") else "gone"
    if process.alive and look(process.pid).state in ("T", "t"):
        state = "stopped"  # by a signal or a debugger: it has been ready, and does nothing now
    tcp, tcp_off = listening(config, process)
    return LabProcess(
        process=process.label,
        pid=process.pid,
        state=state,
        detail=process.detail,
        transport=process.transport,
        endpoint=process.endpoint,
        tcp=tcp,
        tcp_off=tcp_off,
    )


def _draw(document: LabStatus, console: Console) -> None:
    from rich.table import Table

    without = f"without {', '.join(document.without)}" if document.without else "with every fix"
    armed = "armed" if document.armed else "not armed"
    console.print(f"lab {document.name} · prefill {document.prefill} · decode {document.decode} · {without} · {armed}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    listen = any(row.tcp or row.tcp_off for row in document.processes)
    for column in ("process", "pid", "state", "KV moved by", *(("listens on",) if listen else ()), "detail"):
        table.add_column(column)
    for row in document.processes:
        detail = f"http://{row.endpoint}" if row.process == "bootstrap" and not row.detail else row.detail
        table.add_row(
            row.process,
            str(row.pid),
            row.state,
            row.transport or "-",
            *([row.tcp or "-"] if listen else []),
            detail or "-",
        )
    console.print(table)


def _draw_down(document: LabDown, console: Console) -> None:
    count = len(document.ended)
    ended = f"{count} process{'es'[: 2 * (count != 1)]} ended"
    files = "not all its files could be deleted" if document.left else "its sockets and recordings are deleted"
    console.print(f"lab {document.name}: {ended}; {files}")


def _draw_outcome(outcome: LabLoad, console: Console) -> None:
    parts = [f"{outcome.completed} completed", f"{outcome.failed} failed", f"{outcome.wrong} with wrong tokens"]
    parts.append(f"{outcome.unfinished} unfinished")
    console.print(f"{outcome.sent} sent in {outcome.seconds:.1f} s: {', '.join(parts)}")
    if outcome.latency_p50_s is not None and outcome.latency_p99_s is not None and outcome.latency_max_s is not None:
        ms = [1000 * value for value in (outcome.latency_p50_s, outcome.latency_p99_s, outcome.latency_max_s)]
        console.print(f"latency p50 {ms[0]:.0f} ms, p99 {ms[1]:.0f} ms, max {ms[2]:.0f} ms")
    for error, count in outcome.errors.items():
        console.print(f"  {count} × {error}")
    if outcome.unfinished_rooms:
        shown = ", ".join(map(str, outcome.unfinished_rooms[:8]))
        console.print(f"  unfinished rooms: {shown}{' …' if len(outcome.unfinished_rooms) > 8 else ''}")
