"""The documents of ``pdctl lab``, and how they are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.protocol.documents import Rows
from pdctl.report.output import Document, Output

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.lab.config import LabConfig
    from pdctl.lab.state import Process


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


class LabKill(Document, frozen=True, kw_only=True, tag="pdctl.lab.kill"):
    """Processes that got a signal, or an exception, and their state after it."""

    name: str
    sent: str
    processes: list[LabProcess]


class LabAbort(Document, frozen=True, kw_only=True, tag="pdctl.lab.abort"):
    """Requests that servers were told to abort. servers: those that were told; not_told: dp ranks that nobody listens for."""

    name: str
    rids: tuple[str, ...]
    servers: tuple[str, ...]
    not_told: tuple[str, ...] = ()


class LabLoad(Document, frozen=True, kw_only=True, tag="pdctl.lab.load"):
    """What came of a load. Times in seconds. See :class:`pdctl.lab.client.Outcome`."""

    name: str
    sent: int
    completed: int
    failed: int
    wrong: int
    unfinished: int
    aborted: int
    given_up: int
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


def show_lab(config: LabConfig, processes: list[Process], out: Output) -> bool:
    """Write the lab; returns whether its ranks listen as they were asked to, and says so where they do not."""
    from pdctl.lab.listening import complaints

    by_label = {process.label: process for process in processes}
    supervisor, bootstrap = by_label.get("supervisor"), by_label.get("bootstrap")
    rows = [row_of(config, process) for process in sorted(processes, key=_order)]
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
    out.document(document, Rows(LabProcess, rows), draw_lab)
    asked = {row.process: row.tcp_off for row in rows if row.tcp or row.tcp_off}
    for said in complaints(asked, config.name):
        out.note(said)
    return not any(asked.values())


def _order(process: Process) -> tuple[int, str]:
    kinds = ("supervisor", "bootstrap", "prefill", "decode")
    return kinds.index(process.label.split()[0].rstrip("0123456789")), process.label


def row_of(config: LabConfig, process: Process) -> LabProcess:
    """Return the row of a process: what it said of itself, and what is seen of it."""
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


def draw_lab(document: LabStatus, console: Console) -> None:
    """Draw a lab and its processes."""
    from rich.table import Table

    without = f"without {', '.join(document.without)}" if document.without else "with every fix"
    armed = "armed" if document.armed else "not armed"
    console.print(f"lab {document.name} · prefill {document.prefill} · decode {document.decode} · {without} · {armed}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    listen = any(row.tcp or row.tcp_off for row in document.processes)
    for column in ("process", "pid", "state", "KV moved by", *(("listens on",) if listen else ()), "detail"):
        table.add_column(column)
    for row in document.processes:
        detail = f"http://{row.endpoint}" if row.process.startswith("bootstrap") and not row.detail else row.detail
        table.add_row(
            row.process,
            str(row.pid),
            row.state,
            row.transport.partition(" (")[0] or "-",
            *([row.tcp or "-"] if listen else []),
            detail or "-",
        )
    console.print(table)
    for how in dict.fromkeys(row.transport for row in document.processes if " (" in row.transport):
        name, _, why = how.partition(" (")
        console.print(f"{name}: {why.removesuffix(')')}")


def draw_down(document: LabDown, console: Console) -> None:
    """Draw what ended."""
    count = len(document.ended)
    ended = f"{count} process{'es'[: 2 * (count != 1)]} ended"
    files = "not all its files could be deleted" if document.left else "its sockets and recordings are deleted"
    console.print(f"lab {document.name}: {ended}; {files}")


def draw_kill(document: LabKill, console: Console) -> None:
    """Draw what came of a signal."""
    for row in document.processes:
        how = (row.state in ("ended", "failed") and row.detail) or row.state
        console.print(f"{row.process} (pid {row.pid}) got {document.sent}: {how}")


def draw_abort(document: LabAbort, console: Console) -> None:
    """Draw who was told what."""
    rids = ", ".join(document.rids)
    if document.servers:
        console.print(f"{', '.join(document.servers)} told to abort {rids}")
    if document.not_told:
        console.print(f"not told to abort {rids}: {', '.join(document.not_told)}")


def draw_outcome(outcome: LabLoad, console: Console) -> None:
    """Draw what came of a load."""
    parts = [f"{outcome.completed} completed", f"{outcome.failed} failed", f"{outcome.wrong} with wrong tokens"]
    parts.append(f"{outcome.unfinished} unfinished")
    if outcome.given_up:
        parts.append(f"{outcome.given_up} given up")
    console.print(f"{outcome.sent} sent in {outcome.seconds:.1f} s: {', '.join(parts)}")
    if outcome.latency_p50_s is not None and outcome.latency_p99_s is not None and outcome.latency_max_s is not None:
        ms = [1000 * value for value in (outcome.latency_p50_s, outcome.latency_p99_s, outcome.latency_max_s)]
        console.print(f"latency p50 {ms[0]:.0f} ms, p99 {ms[1]:.0f} ms, max {ms[2]:.0f} ms")
    for error, count in outcome.errors.items():
        console.print(f"  {count} × {error}")
    if outcome.unfinished_rooms:
        shown = ", ".join(map(str, outcome.unfinished_rooms[:8]))
        console.print(f"  unfinished rooms: {shown}{' …' if len(outcome.unfinished_rooms) > 8 else ''}")
