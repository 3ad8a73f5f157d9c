"""How ``ranks`` is drawn: a block for each start of a server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from pdctl.report.drawing import MANY, alike, dim, findings, headline, some, table
from pdctl.targets.nodeset import join, listed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from pdctl.probes.ranks.judge import RankRow, RanksDocument

_INDENT = (0, 0, 0, 2)
_WELL = ("live", "outside", "recorded")
_WELL_ORDER = 2
_MOST_PLACES = 3
"""Places of main threads that a line of many ranks names."""
_STYLE = {"live": "green", "silent": "yellow", "dead": "red", "outside": "cyan", "no agent": "yellow"}


def render(document: RanksDocument, *, wide: bool) -> Iterable[RenderableType]:
    """Yield what is wrong, then the ranks, server by server; wide adds what explains an odd row.

    What is not well comes first: servers as well as the ranks of each.
    """
    yield from headline(document.findings)
    blocks = groupby(document.ranks, key=lambda row: (row.cluster, row.role, row.service, row.instance))
    servers = sorted((sorted(members, key=_order) for _, members in blocks), key=lambda rows: _order(rows[0]))
    folds = len(document.ranks) > MANY and not wide
    for number, members in enumerate(alike(servers, _looks if folds else id)):
        if number:
            yield ""
        yield from _folded(members) if folds else _server(members[0], wide=wide)
    if len(document.findings) > 1:  # else all of it stands above
        yield from findings(document.findings, below=True)


def _order(row: RankRow) -> int:
    """Return the place of a rank among others, those with trouble first."""
    return 0 if row.stands else 1 if row.state not in _WELL else _WELL_ORDER


def _server(rows: list[RankRow], *, wide: bool) -> Iterable[RenderableType]:
    yield Text(_heading(rows), style="bold")
    drawn = table("", "rank", "pid", "state", "turn", "round", "main thread", wraps=("main thread",), breaks=True)
    for row in rows:
        place = row.rank.removeprefix(f"{row.role} ")
        drawn.add_row(
            "",
            f"{place} ({row.logged})" if row.logged else place,
            str(row.pid or "-"),
            _state(row),
            _age(row.tick_age_s),
            "\n".join(_rounds(row.rounds)) or "-",
            row.where or "-",
        )
    yield drawn
    yield from _remarks(rows, wide=wide)
    if wide:
        yield _wide(rows)


def _looks(rows: list[RankRow]) -> Hashable:
    """Return what servers have in common that are told as one: they are of one kind, and no rank is worse than the others."""
    troubles = {tuple(_troubles(row)) for row in rows}
    if len(troubles) > 1 or any(_order(row) < _WELL_ORDER for row in rows):
        return id(rows)
    one = rows[0]
    kinds = {(row.state, row.engine, row.engine_version, row.armed, row.recording_size) for row in rows}
    return one.cluster, one.role, len(rows), frozenset(kinds), frozenset(troubles)


def _folded(servers: list[list[RankRow]]) -> Iterable[RenderableType]:
    """Yield servers that look alike: the ranks that are not well first, those at one place in a line, then all others."""
    rows = [row for members in servers for row in members]
    yield Text(_heading(rows), style="bold")
    if len(servers) > 1:
        yield Padding(dim(some((members[0].service for members in servers), MANY)), _INDENT, expand=False)
    drawn = table("", "ranks", "#", "state", "turn", "main thread", right=("#",), wraps=("ranks", "main thread"))
    odd = alike((row for row in rows if _order(row) < _WELL_ORDER), lambda row: (row.state, row.stands, row.where))
    for those in odd[:MANY]:
        _line(drawn, those)
    for those in alike((row for row in rows if _order(row) == _WELL_ORDER), lambda row: row.state):
        _line(drawn, those)
    yield drawn
    if len(odd) > MANY:
        yield Padding(dim(f"… and ranks at {len(odd) - MANY} more places (-o wide shows all)"), _INDENT, expand=False)
    yield from _remarks(rows, wide=False)


def _line(drawn: Table, rows: list[RankRow]) -> None:
    """Add a line for ranks of one state."""
    ages = [row.tick_age_s for row in rows if row.tick_age_s is not None]
    places = Counter(row.where for row in rows).most_common()
    where = [f"{number} × {place or 'unknown'}" for place, number in places[:_MOST_PLACES]]
    if len(places) > _MOST_PLACES:
        where.append(f"{sum(number for _, number in places[_MOST_PLACES:])} elsewhere")
    drawn.add_row(
        "",
        join(row.rank.removeprefix(f"{row.role} ") for row in rows),
        str(len(rows)),
        _state(rows[0]),
        f"{'≤ ' if len(ages) > 1 else ''}{_age(max(ages, default=None))}",
        places[0][0] or "-" if len(places) == 1 else "\n".join(where),
    )


def _state(row: RankRow) -> Text:
    if row.stands:
        return Text(f"{row.state}, stands", style="red")
    return Text(row.state, style=_STYLE.get(row.state, ""))


def _heading(rows: list[RankRow]) -> str:
    one = rows[0]
    engines = sorted({f"{row.engine} {row.engine_version}".strip() for row in rows if row.source or row.pid})
    cluster = [f"cluster {one.cluster}"] if one.cluster and one.cluster not in one.service else []
    armed = [row for row in rows if row.armed]
    arm = ["armed" if len(armed) == len([r for r in rows if r.pid]) else "partly armed"] if armed else []
    recorded = sorted({row.recording_size for row in rows if row.recording})
    recording = [f"recording {' / '.join(map(_bytes, recorded))}"] if recorded else []
    hosts = sorted({row.host for row in rows if row.host})
    services = {row.service: None for row in rows}
    if len(services) > 1:
        return " · ".join((one.role, f"{len(services)} servers", *cluster, ", ".join(engines), *arm, *recording))
    service = one.service.removeprefix(f"{one.role} ")
    if hosts and not any(host in service for host in hosts):
        service = f"{service} on {', '.join(hosts)}"
    role = "" if service.startswith(one.role) else one.role
    return " · ".join(part for part in (role, service, *cluster, ", ".join(engines), *arm, *recording) if part)


def _remarks(rows: list[RankRow], *, wide: bool) -> Iterable[RenderableType]:
    for who, text in _notes(rows, wide=wide):
        # a hanging indent, so that a long reason still belongs to its rank at a glance
        yield Padding(Text(f"{who}:"), _INDENT, expand=False)
        yield Padding(Text(text), (0, 0, 0, 4), expand=False)


def _notes(rows: list[RankRow], *, wide: bool) -> Iterable[tuple[str, str]]:
    """Return (ranks, what) for all that is out of the ordinary, ranks with the same trouble together."""
    said: dict[str, list[str]] = {}
    for row in rows:
        place = row.rank.removeprefix(f"{row.role} ")
        for text in [*_troubles(row), *(_seams(row) if wide else ())]:
            said.setdefault(text, []).append(place)
    for text, places in said.items():
        yield "every rank" if len(places) == len(rows) > 1 else listed(places), text


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
    drawn = table("", "rank", "host", "instance", "loaded by", "pdctl", "agent CPU", "endpoint", "store", "recording")
    for row in rows:
        cpu = "-" if row.agent_cpu_s is None else f"{row.agent_cpu_s:.2f} s"
        if row.agent_cpu_share is not None:
            cpu += f" ({row.agent_cpu_share:.2%})"
        recording = f"{row.recording} ({_bytes(row.recording_size)})" if row.recording else "off"
        place = row.rank.removeprefix(f"{row.role} ")
        drawn.add_row(
            "",
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
    return drawn


def _seams(row: RankRow) -> Iterable[str]:
    present = [seam.name for seam in row.seams if seam.present]
    missing = [f"{seam.name} ({seam.detail})" if seam.detail else seam.name for seam in row.seams if not seam.present]
    if present:
        yield f"seams present: {', '.join(present)}"
    if missing:
        yield f"seams missing: {', '.join(missing)}"


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
