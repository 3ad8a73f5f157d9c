"""``pdctl drill``: breaks something, heals it, and says whether the engine held."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands import options as opt
from pdctl.commands.completing import values
from pdctl.commands.drill_show import EXPECTED, DrillList, DrillRow, DrillShow, draw_list, row_of, show_verdict
from pdctl.commands.ending import STOPPING, handled
from pdctl.commands.options import place, reach_of, seconds, target_place
from pdctl.inject.drill.records import Verdict
from pdctl.inject.drill.schema import Drill, LabLoad, LoadSpec
from pdctl.protocol import extras
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from pdctl.inject.drill.servers import Address
    from pdctl.lab.config import LabConfig
    from pdctl.targets.find import Found
    from pdctl.targets.reach import Reach

EXAMPLES = {
    "list": ("pdctl drill list", "pdctl drill list -o json"),
    "show": ("pdctl drill show metadata-gate", "pdctl drill show my-drill.yaml"),
    "run": ("pdctl drill run metadata-gate --lab", "pdctl drill run metadata-gate --journal drill.jsonl"),
    "judge": ("pdctl drill judge drill.jsonl", "pdctl drill judge drill.jsonl -o json"),
}

app = typer.Typer(
    name="drill",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Inject a fault, heal it, and judge whether the engine held: HOLDS, BROKEN or INCONCLUSIVE.",
)

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE", autocompletion=values("drill"), help="A drill of pdctl, or a drill file (YAML)."
    ),
]


@app.command("list")
def list_drills(output: opt.OutputOption = Format.TABLE) -> int:
    """List the drills that come with pdctl."""
    from pdctl.inject.drill import files

    rows = [row_of(files.load(path)) for path in files.built_in().values()]
    Output(output).document(DrillList(drills=rows), Rows(DrillRow, rows), draw_list)
    return Exit.CLEAN


@app.command()
def show(name: NameArgument, output: opt.OutputOption = Format.TABLE) -> int:
    """Check a drill and show it.

    Exit code: 0, or 2 where there is no such drill, or its file has an error. The error names line and key.
    """
    from pdctl.inject.drill import files

    path = files.find(name)
    text = files.read(path)
    drill = files.parse(text, str(path))
    out = Output(output)
    if output.drawn:
        out.lines(text.rstrip("\n"))
    else:
        out.document(DrillShow(path=str(path), drill=drill))
    return Exit.CLEAN


@app.command()
def run(
    ctx: typer.Context,
    name: NameArgument,
    lab: Annotated[
        bool, typer.Option("--lab", help="Start the embedded cluster that the drill needs, and end it afterwards.")
    ] = False,
    control: Annotated[
        bool,
        typer.Option(
            "--control",
            help="Run on an engine without the fix. The drill must be BROKEN there, else it proves nothing.",
        ),
    ] = False,
    expect: Annotated[
        str,
        typer.Option(
            "--expect",
            metavar="VERDICT",
            help="holds or broken: exit with 0 where the drill comes out so, with 1 where it comes out the other way.",
        ),
    ] = "",
    load: Annotated[
        str, typer.Option("--load", metavar="WHAT", help="Replace the drill's load: none (your own traffic), lab.")
    ] = "",
    seed: Annotated[
        Optional[int],  # noqa: UP045  # typer evaluates annotations
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            max=(1 << 31) - 1,
            help="The same seed hits the same rooms.",
            show_default="the drill's",
        ),
    ] = None,
    prefill_url: opt.PrefillUrlOption = "",
    decode_url: opt.DecodeUrlOption = "",
    bootstrap: opt.BootstrapOption = "",
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="The cluster to use, where there are several.")
    ] = "",
    journal: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--journal",
            parser=target_place,
            metavar="FILE",
            help="File of the journal.",
            show_default="beside the audit log",
        ),
    ] = None,
    rank_timeout: opt.RankTimeoutOption = opt.RANK_TIMEOUT_S,
    lab_timeout: Annotated[
        float, typer.Option("--lab-timeout", parser=seconds, metavar="TIME", help="Time limit for the start of a lab.")
    ] = 90.0,
    output: opt.OutputOption = Format.TABLE,
    run_dir: opt.RunDirOption = None,
    record_dir: opt.RecordDirOption = None,
) -> int:
    """Run a drill: steady state, fault, probes, heal, probes again.

    It injects nothing where there is no steady state.

    Exit code: 0 HOLDS, 1 BROKEN (with --expect: 0 as expected, 1 the other way), 2 the drill file has an error, 3
    INCONCLUSIVE, also where the fault never fired, 6 a fault may still be active, 130 interrupted and healed.
    """
    import time

    from pdctl.inject.drill import files
    from pdctl.inject.drill.journal import Journal, default_path
    from pdctl.inject.drill.servers import Address

    if expect not in ("", *EXPECTED):
        raise typer.BadParameter(" or ".join(EXPECTED), param_hint="--expect")
    out = Output(output)
    reach = reach_of(ctx, run_dir, record_dir)
    if lab:
        extras.require("lab", "--lab")
    else:  # a lab of its own is not what a context means
        reach.forbid_faults()
    drill = _changed(files.load(files.find(name)), load, seed)
    address = Address.parse(prefill_url, decode_url, bootstrap)
    if address is not None:
        _may_be_sent(drill, lab)
    with _interruptible():
        kept = Journal(journal or default_path(drill.name, os.environ, time.time()))
        try:
            verdict = _run(out, drill, kept, lab, address, control, cluster, rank_timeout, lab_timeout, reach)
        except KeyboardInterrupt:
            out.note(f"interrupted, and healed; journal {kept.path}")
            raise
        finally:
            kept.close()
    return show_verdict(out, kept.records, verdict, kept.path, recorded=verdict.verdict, expect=expect)


@app.command()
def judge(
    journal: Annotated[Path, typer.Argument(parser=place, metavar="JOURNAL", help="A journal that a drill wrote.")],
    output: opt.OutputOption = Format.TABLE,
) -> int:
    """Judge a drill again, from its journal alone.

    Exit code: 0 HOLDS, 1 BROKEN, 3 INCONCLUSIVE, also where the journal is cut off, or a newer pdctl wrote it, 4 the file is
    not there, or no journal.
    """
    from pdctl.inject.drill.journal import read
    from pdctl.inject.drill.judge import judge as judge_records

    records = read(journal)
    verdict = judge_records(records)
    recorded = next((record.verdict for record in reversed(records) if isinstance(record, Verdict)), "")
    out = Output(output)
    if recorded and recorded != verdict.verdict:
        out.note(
            f"The journal says {recorded}: it was changed, or this pdctl judges otherwise than the one that wrote it."
        )
    return show_verdict(out, records, verdict, journal, recorded=recorded)


# ---- parts -----------------------------------------------------------------------------------------------------------


def _changed(drill: Drill, load: str, seed: int | None) -> Drill:
    import msgspec

    if load not in ("", "none", "lab"):
        raise typer.BadParameter("none or lab", param_hint="--load")
    if load and drill.fault is None:
        raise PdctlError(f"the load of {drill.name} is what it breaks things with", "leave --load out", Exit.USAGE)
    if load:
        drill = msgspec.structs.replace(drill, load=load)
    return drill if seed is None else msgspec.structs.replace(drill, seed=seed)


def _may_be_sent(drill: Drill, lab: bool) -> None:
    if lab:
        raise PdctlError("--lab starts servers of its own", "leave --lab out, or both URLs", Exit.USAGE)
    if not isinstance(_load_of(drill), LabLoad):
        raise PdctlError(
            f"{drill.name} sends no requests of its own here", "leave --prefill-url and --decode-url out", Exit.USAGE
        )


def _run(
    out: Output,
    drill: Drill,
    kept: object,
    lab: bool,
    address: Address | None,
    control: bool,
    cluster: str,
    rank_timeout_s: float,
    lab_timeout_s: float,
    reach: Reach,
) -> Verdict:
    from pdctl.inject.audit import Audit, audit_path
    from pdctl.inject.drill.journal import Journal
    from pdctl.inject.drill.load import Sender
    from pdctl.inject.drill.own_lab import describe, lab_of, own_lab
    from pdctl.inject.drill.run import Run
    from pdctl.inject.drill.servers import check, check_version
    from pdctl.targets.client import TIMEOUT_S, Client
    from pdctl.targets.find import discover
    from pdctl.targets.places import parse_places

    assert isinstance(kept, Journal)
    env = reach.environment()

    def on(config: LabConfig | None, env: dict[str, str]) -> Verdict:
        found = _one_cluster(discover(parse_places(env)).require(), cluster)
        config = config or lab_of(found.ranks[0].identity.cluster, env)
        load, pair = _load_of(drill), None
        if address is not None and isinstance(load, LabLoad):
            pair = address.reach()
            check(load, pair)
            check_version(pair, {rank.identity.engine_version for rank in found.ranks} - {""})
        sender = Sender(load, pair or config, drill.seed)
        with Client(timeout_s=TIMEOUT_S, rank_timeout_s=rank_timeout_s, acts=True) as client:
            return Run(
                drill, found, client, sender, kept, Audit(audit_path(os.environ), out.note), out.note,
                control=control, lab=describe(config) if config else "", servers=pair.describe() if pair else "",
            ).run()  # fmt: skip

    if not lab:
        return on(None, env)
    out.note(f"starting a lab for {drill.name}{' without its fix' if control else ''}")
    with own_lab(drill, env, control=control, timeout_s=lab_timeout_s) as (config, its_env):
        return on(config, its_env)


def _load_of(drill: Drill) -> LabLoad | tuple[str, ...] | None:
    if isinstance(drill.load, LoadSpec):
        return drill.load.lab or drill.load.command
    return LabLoad() if drill.load == "lab" else None


def _one_cluster(found: Found, cluster: str) -> Found:
    from dataclasses import replace

    names = sorted({rank.identity.cluster for rank in found.ranks})
    if cluster and cluster not in names:
        raise PdctlError(f"no rank of a cluster {cluster!r}", f"there are: {', '.join(map(repr, names))}", Exit.USAGE)
    if not cluster and len(names) > 1:
        raise PdctlError(
            f"there are {len(names)} clusters: {', '.join(map(repr, names))}", "choose one with --cluster", Exit.USAGE
        )
    chosen = cluster or names[0]
    return replace(found, ranks=tuple(rank for rank in found.ranks if rank.identity.cluster == chosen))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn the first of STOPPING into KeyboardInterrupt; later ones are not heard, since healing must not be cut short."""
    heard = False

    def hear(*_: object) -> None:
        nonlocal heard
        if not heard:
            heard = True
            raise KeyboardInterrupt

    with handled(hear, *STOPPING):
        yield
