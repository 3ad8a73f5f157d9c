"""``pdctl lab restart``, ``kill`` and ``crash``: what happens to the processes of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.commands.lab_parts import NameOption, check_alive, env_of, find_lab, one_of
from pdctl.commands.lab_show import LabKill, LabProcess, draw_kill, row_of, show_lab
from pdctl.commands.options import OutputOption, RunDirOption, seconds
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from pdctl.lab.config import LabConfig
    from pdctl.lab.state import Process

SERVER = "A server, as prefill, prefill1 or decode, or a bootstrap server, as bootstrap."
PROCESS = "A process as pdctl lab status names it, all ranks that a pattern as decode:tp1 fits, or a server."


def restart(
    server: Annotated[str, typer.Argument(metavar="SERVER", help=SERVER, show_default=False)],
    name: NameOption = "lab",
    timeout: Annotated[float, typer.Option(parser=seconds, metavar="TIME", help="Time limit for the start.")] = 90.0,
    output: OutputOption = Format.TABLE,
    run_dir: RunDirOption = None,
) -> int:
    """End a server and start it again at the same address.

    A prefill server has its own bootstrap server with it, unless that is another server's. The address of the bootstrap server
    stays, and where requests go. The processes are new, and so are their ports and transfer sessions.

    Exit code: 0 ready again, 2 there is no such server, 4 there is no such lab or a process did not start, 124 not ready in
    time.
    """
    from pdctl.lab import launch

    config, processes = find_lab(name, env_of(run_dir))
    check_alive(name, processes)
    show_lab(config, launch.restart(config, server.strip(), timeout), Output(output))
    return int(Exit.CLEAN)


def kill(
    process: Annotated[str, typer.Argument(metavar="PROCESS", help=PROCESS, show_default=False)],
    signal: Annotated[
        str, typer.Option(metavar="NAME", help="Signal: TERM, KILL, STOP, CONT, INT, ABRT, SEGV.")
    ] = "KILL",
    name: NameOption = "lab",
    output: OutputOption = Format.TABLE,
    run_dir: RunDirOption = None,
) -> int:
    """Send a signal to processes of a lab.

    Exit code: 0 each process that is left got it, 2 there is no such process or signal, 4 there is no such lab or the process
    has ended.
    """
    from pdctl.lab import processes as chosen

    config, processes = find_lab(name, env_of(run_dir))
    number = one_of(signal.upper().removeprefix("SIG"), chosen.SIGNALS, "signal")
    found = chosen.select(config, processes, process)
    reached = chosen.send_signal(found, number)
    if not reached:
        raise PdctlError(f"{', '.join(p.label for p in found)}: ended before", "pdctl lab status", Exit.UNREACHABLE)
    _show(config, reached, f"SIG{number}", output)
    return int(Exit.CLEAN)


def crash(
    process: Annotated[str, typer.Argument(metavar="RANK", help="The rank, as decode:tp1.", show_default=False)],
    name: NameOption = "lab",
    timeout: Annotated[float, typer.Option(parser=seconds, metavar="TIME", help="Time limit for its end.")] = 10.0,
    output: OutputOption = Format.TABLE,
    run_dir: RunDirOption = None,
) -> int:
    """Make the scheduler of a rank raise an exception.

    The traceback is in the log of the rank, and its process exits with 1. Other ranks of its groups follow when they miss it.

    Exit code: 0 it has ended, 2 there is no such rank, 4 there is no such lab or the rank has ended, 124 its scheduler does not
    take messages.
    """
    from pdctl.lab import processes as chosen

    config, processes = find_lab(name, env_of(run_dir))
    found = chosen.select(config, processes, process)
    if len(found) > 1:
        raise PdctlError(f"{process!r} are {len(found)} processes", f"name one: {found[0].label}", Exit.USAGE)
    chosen.crash(config, found[0], timeout)
    _show(config, found, "an exception", output)
    return int(Exit.CLEAN)


def _show(config: LabConfig, reached: list[Process], sent: str, output: Format) -> None:
    from pdctl.lab.processes import how_they_are

    rows = [row_of(config, process) for process in how_they_are(config, reached)]
    document = LabKill(name=config.name, sent=sent, processes=rows)
    Output(output).document(document, Rows(LabProcess, rows), draw_kill)
