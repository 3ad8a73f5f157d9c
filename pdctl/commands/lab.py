"""``pdctl lab``: the embedded cluster; starts it, sends requests through it, looks at it, ends it."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from pdctl.commands.lab_load import abort, load
from pdctl.commands.lab_parts import NameOption, env_of, find_lab, one_of
from pdctl.commands.lab_processes import crash, kill, restart
from pdctl.commands.lab_show import LabDown, draw_down, show_lab
from pdctl.commands.options import OutputOption, RecordDirOption, RunDirOption, seconds
from pdctl.lab.config import DEVICES, FIXES, LOAD_BALANCE, MAX_PREFILLS, SIDES, STEP_S, TRANSPORTS
from pdctl.protocol.errors import Exit
from pdctl.report.output import Format, Output

EXAMPLES = {
    "up": ("pdctl lab up", "pdctl lab up --prefills 2 --step prefill=12s --without gate"),
    "status": ("pdctl lab status", "pdctl lab status -o json"),
    "load": ("pdctl lab load --requests 4 --room 4711", "pdctl lab load -n 2 --rid a-name --new-tokens 64"),
    "abort": ("pdctl lab abort a-name", "pdctl lab abort a-name-0 a-name-1 --to decode"),
    "restart": ("pdctl lab restart prefill", "pdctl lab restart bootstrap"),
    "kill": ("pdctl lab kill decode:tp1 --signal STOP", "pdctl lab kill decode:tp1 --signal CONT"),
    "crash": ("pdctl lab crash decode:tp1", "pdctl lab crash 'decode dp0 pp0 tp0' --name two"),
    "down": ("pdctl lab down", "pdctl lab down --name two"),
}

app = typer.Typer(
    name="lab",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run an embedded PD cluster of real processes without a model, to learn, to test, and to break on purpose.",
)

_FIXES_HELP = "\n\n".join(
    ["Fixes that --without takes:", *(f"{name}: {what}." for name, what in FIXES.items())],
)


@app.command(epilog=_FIXES_HELP)
def up(
    name: NameOption = "lab",
    prefill: Annotated[
        str, typer.Option(metavar="SIZES", help="Sizes of the prefill server: tp=1,dp=1,pp=1.")
    ] = "tp=1",
    decode: Annotated[str, typer.Option(metavar="SIZES", help="Sizes of the decode server: tp=2,dp=1,pp=1.")] = "tp=2",
    prefills: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=MAX_PREFILLS, help="Prefill servers of these sizes, each with a bootstrap server."
        ),
    ] = 1,
    shared_bootstrap: Annotated[
        bool,
        typer.Option("--shared-bootstrap", help="Register all prefill servers with the first one's bootstrap server."),
    ] = False,
    slow_bootstrap: Annotated[
        Optional[float],  # noqa: UP045  # typer evaluates annotations
        typer.Option(
            parser=seconds, metavar="TIME", help="How long a bootstrap server thinks before it answers decode."
        ),
    ] = None,
    dp_attention: Annotated[
        bool, typer.Option("--dp-attention", help="The dp ranks of a server meet in a collective each turn.")
    ] = False,
    prefill_set: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            metavar="NAME=VALUE", help="Set an argument or a variable of SGLang on prefill alone; repeatable."
        ),
    ] = None,
    decode_set: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="NAME=VALUE", help="The same on decode, as page_size=16."),
    ] = None,
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
            help="Sides with FORCE_QUERY_PREFILL_DP_RANK=1 of SGLang: prefill, decode.",
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
    step: Annotated[
        str,
        typer.Option(metavar="TIME", help="Duration of a forward: 12s (prefill's), or prefill=12s,decode=50ms."),
    ] = f"prefill={STEP_S * 1000:.0f}ms,decode={STEP_S * 1000:.0f}ms",
    max_running: Annotated[
        int, typer.Option(metavar="N", min=1, max=4096, help="Requests that decode's running batch holds.")
    ] = 32,
    slots: Annotated[int, typer.Option(metavar="N", min=1, max=4096, help="Metadata slots of each rank.")] = 64,
    kv_tokens: Annotated[
        int, typer.Option(metavar="N", min=64, max=1 << 20, help="Tokens that each rank's KV pool holds.")
    ] = 4096,
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
            metavar="N",
            min=1,
            max=1000,
            help="Decode fails the rooms of a prefill server after this number of missed heartbeats.",
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
    from pdctl.lab.config import LabConfig, check, check_name, parse_names, parse_settings, parse_shape, parse_steps

    env = env_of(run_dir, record_dir)
    steps = parse_steps(step)
    config = check(
        LabConfig(
            name=check_name(name),
            prefill=parse_shape(prefill),
            decode=parse_shape(decode),
            prefills=prefills,
            shared_bootstrap=shared_bootstrap,
            dp_attention=dp_attention,
            prefill_set=parse_settings(prefill_set or ()),
            decode_set=parse_settings(decode_set or ()),
            slow_bootstrap_s=slow_bootstrap or 0.0,
            without=parse_names(without or [], tuple(FIXES), "fix"),
            metadata_device=one_of(metadata_device, DEVICES, "device"),
            transport=one_of(transport, TRANSPORTS, "transport"),
            load_balance=one_of(load_balance, LOAD_BALANCE, "load balancing method"),
            force_query=parse_names(force_query or [], SIDES, "side"),
            armed=armed,
            netns=netns and listen is None,
            listen=_listen(listen),
            slots=slots,
            kv_tokens=kv_tokens,
            max_running=max_running,
            prefill_step_s=steps.get("prefill", STEP_S),
            decode_step_s=steps.get("decode", STEP_S),
            bootstrap_timeout_s=bootstrap_timeout,
            waiting_timeout_s=waiting_timeout,
            heartbeat_s=heartbeat,
            heartbeat_failures=heartbeat_failures,
            entry_cleanup_s=entry_cleanup,
            owner=owner,
            run_dir=str(state.run_dir(env)),
            record_dir=str(state.record_dir(env)),
        )
    )
    out = Output(output)
    return int(Exit.CLEAN if show_lab(config, launch.up(config, timeout, out.note), out) else Exit.PARTIAL)


@app.command()
def status(
    name: NameOption = "lab",
    output: OutputOption = Format.TABLE,
    run_dir: RunDirOption = None,
) -> int:
    """Show the processes of a lab, its KV transport and its network.

    Exit code: 0 all processes run, 3 some do not run, or do not listen as asked, 4 there is no such lab.
    """
    config, processes = find_lab(name, env_of(run_dir))
    listen = show_lab(config, processes, Output(output))
    from pdctl.lab.launch import expected

    there = {process.label for process in processes if process.alive}
    return int(Exit.CLEAN if listen and there >= {"supervisor", *expected(config)} else Exit.PARTIAL)


for _command in (load, abort, restart, kill, crash):
    app.command()(_command)


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

    config, _ = find_lab(name, env_of(run_dir))
    ended, left = launch.down(config.state_dir)
    document = LabDown(name=name, ended=[process.label for process in ended], left=tuple(left))
    out = Output(output)
    out.document(document, draw=draw_down)
    for file in left:
        out.note(f"left: {file}")
    return int(Exit.PARTIAL if left else Exit.CLEAN)


def _listen(text: str | None) -> str:
    from pdctl.protocol.listen import parse_listen

    if text is None:
        return ""
    try:
        parse_listen(text)
    except ValueError as error:
        raise typer.BadParameter(str(error).partition(": ")[2], param_hint="--listen") from None
    return text
