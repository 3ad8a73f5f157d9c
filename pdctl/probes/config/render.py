"""How ``dump config`` is drawn: the settings that differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.report import drawing

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.config.model import ConfigDocument


def render(document: ConfigDocument, *, wide: bool) -> Iterable[RenderableType]:
    """Yield the settings that differ, all of them when ``wide``, then the findings."""
    for server in document.servers:
        peers = f" · deals with {', '.join(server.peers)}" if server.peers else ""
        ranks = f"{server.ranks} rank{'s'[: server.ranks != 1]}"
        named = " · ".join(filter(None, (server.server, server.version.strip(), ranks)))
        yield Text(f"{named}{peers}", style="bold")
    shown = [s for s in document.settings if wide or s.verdict not in ("same", "per rank")]
    if not shown:
        yield "all settings are the same everywhere"
    else:
        drawn = drawing.table("setting", "verdict", *(server.server for server in document.servers))
        style = {"mismatch": "bold red", "ranks differ": "yellow"}
        for setting in shown:
            values = [setting.servers.get(server.server, "") for server in document.servers]
            drawn.add_row(setting.name, Text(setting.verdict, style=style.get(setting.verdict, "")), *values)
        yield drawn
        if not wide and len(shown) < len(document.settings):
            more = len(document.settings) - len(shown)
            yield drawing.dim(f"({more} more are the same, or each rank's own: -o wide shows them)")
    yield from drawing.findings(document.findings)
