"""``pdctl ranks``: who is there, what each rank does now, and what pdctl can see of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

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
)
from pdctl.protocol.errors import Exit
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pdctl.probes.ranks.judge import RankRow, RanksDocument

_INDENT = (0, 0, 0, 2)
_STYLE = {"live": "green", "silent": "yellow", "dead": "red", "outside": "cyan", "no agent": "yellow"}


def command(
    output: OutputOption = Format.TABLE,
    every_start: AllStartsOption = False,
    source: FromOption = None,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
) -> int:
    """Show every rank and what its main thread does now.

    Also role, place, process, rounds, and what agent and recording can do. -o wide adds what explains an odd row.

    Exit code: 0 when every rank answered, 3 when some did not, 4 when none could be reached and none left a recording.
    """
    from pdctl.probes.ranks.collect import collect
    from pdctl.probes.ranks.judge import judge
    from pdctl.targets.client import Client
    from pdctl.targets.fallback import stand_in

    found = find(run_dir, record_dir, source, every_start=every_start, timeout=timeout, rank_timeout=rank_timeout)
    with Client(timeout_s=timeout, spent_s=found.took_s, rank_timeout_s=rank_timeout) as client:
        found = stand_in(found, client)
        answers, recordings = collect(found, client)
        document = judge(answers, recordings, earlier=found.earlier, problems=found.problems, others=found.others)
    out = Output(output)
    code = int(exit_code(document, from_recordings=source is not None))
    out.document(document, document.ranks, partial(draw, wide=output is Format.WIDE), code=code)
    if output.drawn:
        for problem in document.problems:
            out.note(f"not understood, or in part: {problem}")
        if document.earlier:
            out.note(f"{document.earlier} dead rank{'s'[: document.earlier != 1]} of earlier starts; --all shows them")
    return code


def exit_code(document: RanksDocument, *, from_recordings: bool) -> Exit:
    """Return what the command exits with; from_recordings: dead ranks were asked for, so being dead is no lack."""
    if not any(row.source for row in document.ranks):
        return Exit.UNREACHABLE
    if from_recordings and not document.problems and all(row.source for row in document.ranks):
        return Exit.CLEAN
    return Exit.PARTIAL if document.partial else Exit.CLEAN


# ---- for people ------------------------------------------------------------------------------------------------------


def draw(document: RanksDocument, console: Console, *, wide: bool) -> None:
    """Draw the ranks, a block for each start of a server; wide adds what explains an odd row."""
    blocks = groupby(document.ranks, key=lambda row: (row.cluster, row.role, row.service, row.instance))
    for number, (_, members) in enumerate(blocks):
        if number:
            console.print()
        _draw_server(list(members), console, wide=wide)


def _draw_server(rows: list[RankRow], console: Console, *, wide: bool) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Text(_heading(rows), style="bold"))
    table = _table(["rank", "pid", "state", "turn", "round", "main thread"])
    for row in rows:
        place = row.rank.removeprefix(f"{row.role} ")
        table.add_row(
            place,
            str(row.pid or "-"),
            Text(row.state, style=_STYLE.get(row.state, "")),
            _age(row.tick_age_s),
            "\n".join(_rounds(row.rounds)) or "-",
            row.where or "-",
        )
    console.print(Padding(table, _INDENT, expand=False))
    for who, text in _notes(rows, wide=wide):
        # a hanging indent, so that a long reason still belongs to its rank at a glance
        console.print(Padding(Text(f"{who}:"), _INDENT, expand=False))
        console.print(Padding(Text(text), (0, 0, 0, 4), expand=False))
    if wide:
        console.print(Padding(_wide(rows), _INDENT, expand=False))


def _heading(rows: list[RankRow]) -> str:
    one = rows[0]
    engines = sorted({f"{row.engine} {row.engine_version}".strip() for row in rows if row.source or row.pid})
    cluster = [f"cluster {one.cluster}"] if one.cluster and one.cluster not in one.service else []
    armed = [row for row in rows if row.armed]
    arm = ["armed" if len(armed) == len([r for r in rows if r.pid]) else "partly armed"] if armed else []
    recorded = sorted({row.recording_size for row in rows if row.recording})
    recording = [f"recording {' / '.join(map(_bytes, recorded))}"] if recorded else []
    hosts = sorted({row.host for row in rows if row.host})
    service = one.service.removeprefix(f"{one.role} ")
    if hosts and not any(host in service for host in hosts):
        service = f"{service} on {', '.join(hosts)}"
    role = "" if service.startswith(one.role) else one.role
    return " · ".join(part for part in (role, service, *cluster, ", ".join(engines), *arm, *recording) if part)


def _notes(rows: list[RankRow], *, wide: bool) -> Iterable[tuple[str, str]]:
    """Return (ranks, what) for all that is out of the ordinary, ranks with the same trouble together."""
    said: dict[str, list[str]] = {}
    for row in rows:
        place = row.rank.removeprefix(f"{row.role} ")
        for text in [*_troubles(row), *(_seams(row) if wide else ())]:
            said.setdefault(text, []).append(place)
    for text, places in said.items():
        who = "every rank" if len(places) == len(rows) > 1 else ", ".join(places)
        yield who, text


def _troubles(row: RankRow) -> Iterable[str]:
    if row.reason:
        yield f"{row.state}: {row.reason}" + (" (numbers are from its recording)" if row.tick_age_s is not None else "")
    if row.recording_off:
        yield f"recording off: {row.recording_off}"
    if row.tcp_off:
        yield row.tcp_off
    for site, count in row.hook_errors.items():
        yield f"hook {site} failed {count} time{'s'[: count != 1]}" + (
            " and removed itself" if site in row.hooks_removed else ""
        )
    if row.faults:
        yield f"{row.faults} fault{'s'[: row.faults != 1]} in place: pdctl faults shows what, pdctl heal ends it"


def _wide(rows: list[RankRow]) -> Table:
    table = _table(["rank", "host", "instance", "loaded by", "pdctl", "agent CPU", "endpoint", "store", "recording"])
    for row in rows:
        cpu = "-" if row.agent_cpu_s is None else f"{row.agent_cpu_s:.2f} s"
        if row.agent_cpu_share is not None:
            cpu += f" ({row.agent_cpu_share:.2%})"
        recording = f"{row.recording} ({_bytes(row.recording_size)})" if row.recording else "off"
        place = row.rank.removeprefix(f"{row.role} ")
        table.add_row(
            place,
            row.host,
            row.instance,
            row.loaded_by or "-",
            row.pdctl_version or "-",
            cpu,
            row.endpoint or "-",
            row.store or "-",
            recording,
        )
    return table


def _seams(row: RankRow) -> Iterable[str]:
    present = [seam.name for seam in row.seams if seam.present]
    missing = [f"{seam.name} ({seam.detail})" if seam.detail else seam.name for seam in row.seams if not seam.present]
    if present:
        yield f"seams present: {', '.join(present)}"
    if missing:
        yield f"seams missing: {', '.join(missing)}"


def _table(names: list[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, no_wrap=name != "main thread")
    return table


def _rounds(rounds: dict[str, int]) -> list[str]:
    """Return ``transfer 881``: the queue without its role, and its group where a queue is polled over several."""
    queues = [name.partition("/")[0] for name in rounds]
    lines = []
    for name, ordinal in rounds.items():
        queue, _, group = name.partition("/")
        short = queue.partition(".")[2] or queue
        lines.append(f"{short} {ordinal}" if queues.count(queue) == 1 else f"{short}/{group} {ordinal}")
    return lines


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


def _bytes(size: int) -> str:
    return f"{size / 2**20:.4g} MiB" if size >= 2**20 else f"{size / 2**10:.4g} KiB"
