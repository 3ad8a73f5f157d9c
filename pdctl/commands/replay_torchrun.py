"""One rank of a replay that torchrun started, on one machine or on several; rank 0 gathers, judges and prints."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from pdctl.commands.options import OutputOption, seconds, source_place
from pdctl.protocol import structs
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Format, Output, settle_streams

if TYPE_CHECKING:
    from pdctl.replay.plan import Plan
    from pdctl.replay.worker_log import Options

_KEY = "pdctl/replay"


def one_rank(
    trace: Annotated[
        Path, typer.Argument(parser=source_place, metavar="TRACE", help="The same .pdtrace on every machine.")
    ],
    queue: Annotated[str, typer.Option("--queue", metavar="QUEUE", help="The queue to replay.")] = "decode.transfer",
    gate: Annotated[str, typer.Option("--gate", metavar="WAY", help="With the metadata gate: on or off.")] = "off",
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N.")] = "cpu",
    backend: Annotated[str, typer.Option("--backend", metavar="BACKEND", help="gloo or nccl.")] = "gloo",
    round_timeout: Annotated[
        float,
        typer.Option(
            "--round-timeout", parser=seconds, metavar="TIME", help="Time after which a round counts as hung."
        ),
    ] = 5.0,
    output: OutputOption = Format.TABLE,
) -> None:
    """Run one rank of TRACE under torchrun. Rank 0 prints and exits as pdctl replay does."""
    from pdctl.commands.replay_rounds import Asked, check, plans_of
    from pdctl.replay.worker_log import Options

    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        raise PdctlError(
            "RANK and WORLD_SIZE are not set: torchrun sets them",
            "torchrun --nproc-per-node 2 -m pdctl.commands.replay_torchrun TRACE, or pdctl replay TRACE without torchrun.",
            Exit.USAGE,
        ) from None
    if gate not in ("on", "off"):
        raise typer.BadParameter("on, off", param_hint="--gate")
    asked = Asked((queue,), gate, device, backend, stall_s=round_timeout)
    check(asked)
    plans, problems = plans_of(trace, asked)
    fitting = [plan for plan in plans if len(plan.ranks) == size]
    if len(fitting) != 1:
        have = ", ".join(f"{plan.title} ({len(plan.ranks)} ranks)" for plan in plans)
        raise PdctlError(
            f"{len(fitting)} groups of the trace have the {size} ranks that torchrun started: {have}",
            "Give torchrun as many processes as the group has ranks.",
            Exit.USAGE,
        )
    options = Options(gate == "on", device, backend, "", round_timeout)
    _work(trace, fitting[0], rank, options, Output(output), problems)


def _work(trace: Path, plan: Plan, rank: int, options: Options, out: Output, problems: list[str]) -> None:
    import msgspec
    import torch
    import torch.distributed as dist

    from pdctl.commands.replay_rounds import draw, exit_code, report
    from pdctl.replay.judge import judge
    from pdctl.replay.model import ReplayGroup, Worked
    from pdctl.replay.run import worked
    from pdctl.replay.worker import Worker

    torch.set_num_threads(1)
    if options.backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(options.backend)
    store: Any = dist.distributed_c10d._get_default_store()
    folder = Path(tempfile.mkdtemp(prefix="pdctl-replay-"))
    wait = timedelta(seconds=4 * options.stall_s + 10)

    def told_to_end(number: int, _: FrameType | None) -> NoReturn:  # torchrun tells all when one has failed
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, told_to_end)

    def ended(status: int) -> NoReturn:
        """Say how this rank ended; rank 0 prints. torchrun ends all ranks as soon as one exits with another code than 0."""
        store.set(f"{_KEY}/{rank}", msgspec.msgpack.encode(worked(folder, rank, status)))
        code = 0
        if rank == 0:
            left = []
            for peer in range(len(plan.ranks)):
                try:
                    store.wait([f"{_KEY}/{peer}"], wait)
                    left.append(structs.from_msgpack(store.get(f"{_KEY}/{peer}"), Worked))
                except (RuntimeError, dist.DistError):
                    left.append(worked(folder, peer, 1))
            document = report(trace, [(plan, (judge(plan, options, left),))], options, problems)
            out.document(document, Rows(ReplayGroup, document.groups), draw)
            code = int(exit_code(document))
            store.set(f"{_KEY}/over", b"1")
        else:
            try:
                store.wait([f"{_KEY}/over"], 3 * wait)
            except (RuntimeError, dist.DistError):
                code = 0  # rank 0 is gone: it says so itself
        sys.stdout.flush()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(code)

    Worker(plan, rank, options, folder, ended=ended).run()
    ended(0)


def main() -> None:
    """Run as ``torchrun -m pdctl.commands.replay_torchrun`` does; exits the process."""
    settle_streams()
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(one_rank)
    try:
        app()
    except PdctlError as error:
        Output().error(error.message, error.next_step, error.details)
        sys.exit(int(error.code))


if __name__ == "__main__":
    main()
