"""How ``dump config`` is drawn: the settings that differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.report import drawing

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.config.model import ConfigDocument

SERVERS = 4
"""Servers that have a line and a column each; of more, those that are alike have one."""


def render(document: ConfigDocument, *, wide: bool) -> Iterable[RenderableType]:
    """Yield the settings that differ, all of them when ``wide``, then the findings."""
    folds = len(document.servers) > SERVERS and not wide
    kinds = drawing.alike(
        document.servers, lambda one: (one.role, one.version, one.ranks, one.peers) if folds else id(one)
    )
    for servers in kinds:
        server = servers[0]
        peers = f" · deals with {drawing.some(server.peers)}" if server.peers else ""
        ranks = f"{server.ranks} rank{'s'[: server.ranks != 1]}{' each' if len(servers) > 1 else ''}"
        many = f"{len(servers)} servers: " if len(servers) > 1 else ""
        names = f"{many}{drawing.some(one.server for one in servers)}"
        yield Text(f"{' · '.join(filter(None, (names, server.version.strip(), ranks)))}{peers}", style="bold")
    shown = [s for s in document.settings if wide or s.verdict not in ("same", "per rank")]
    if not shown:
        yield "all settings are the same everywhere"
    else:
        columns = drawing.alike(
            [one.server for one in document.servers],
            lambda name: tuple(setting.servers.get(name, "") for setting in shown) if folds else name,
        )
        heads = [f"{names[0]} +{len(names) - 1}" if len(names) > 1 else names[0] for names in columns]
        drawn = drawing.table("setting", "verdict", *heads)
        style = {"mismatch": "bold red", "ranks differ": "yellow"}
        for setting in shown:
            values = [setting.servers.get(names[0], "") for names in columns]
            drawn.add_row(setting.name, Text(setting.verdict, style=style.get(setting.verdict, "")), *values)
        yield drawn
        if not wide and len(shown) < len(document.settings):
            more = len(document.settings) - len(shown)
            yield drawing.dim(f"({more} more are the same, or each rank's own: -o wide shows them)")
    yield from drawing.findings(document.findings)
