"""Finds processes of a server, beside its schedulers, that have ended or are stopped while those go on. Pure.

No scheduler notices: requests do not come in, or their answers do not go out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdctl.introspect.services import CONTROLLER, DETOKENIZER, MAIN, Service
from pdctl.probes.endings import signal_name
from pdctl.protocol.model import Identity
from pdctl.report.findings import Finding, finding
from pdctl.targets import nodeset

_MEANS = {
    DETOKENIZER: "no answer goes out to a client or to the router",
    CONTROLLER: "no request is handed on to its dp ranks",
    MAIN: "no request comes in and no answer goes out, and a prefill server's bootstrap server is in it, too",
}
_TAKES_IN = "what is sent to it is not taken in"


@dataclass(frozen=True)
class Serving:
    """A process that has ended or is stopped, and a rank of its server, whose process runs."""

    identity: Identity
    service: Service


def judge(held: Sequence[Serving]) -> tuple[Finding, ...]:
    """Return a finding for each server with such processes. held: seen in two looks, the ranks running in both."""
    servers: dict[nodeset.Server, list[Serving]] = {}
    for one in held:
        servers.setdefault(nodeset.server(one.identity), []).append(one)
    names = nodeset.server_names([one.identity for one in held])
    return tuple(_finding(names[server], members) for server, members in servers.items())


def _finding(server: str, held: Sequence[Serving]) -> Finding:
    services = list({one.service.pid: one.service for one in held}.values())
    services.sort(key=lambda one: not one.process.ended)
    said = [
        f"the {one.name} (pid {one.pid}) of {server} {_how(one)}: {_MEANS.get(one.name, _TAKES_IN)}" for one in services
    ]
    summary = f"{'; '.join(said)}. Its schedulers go on and do not notice"
    ended = [one for one in services if one.process.ended]
    stopped = [str(one.pid) for one in services if not one.process.ended]
    go_on = f"kill -CONT {' '.join(stopped)} on {held[0].identity.host or 'its host'} lets it go on."
    return finding(
        "PD118",
        f"{summary[0].upper()}{summary[1:]}.",
        group=server,
        ranks=tuple(dict.fromkeys(one.identity.label for one in held)),
        units=tuple(dict.fromkeys(one.identity.unit for one in held)),
        evidence=tuple(
            f"{one.name}: pid {one.pid}, {one.process.why_silent}, the same in two looks" for one in services
        ),
        next_step="" if ended else go_on,
    )


def _how(one: Service) -> str:
    if not one.process.ended:
        return "is stopped (SIGSTOP)"
    status = one.process.exit_status
    if not status & 0x7F:
        return f"has ended, with exit code {status >> 8}" if status else "has ended"
    return f"has ended, killed by {signal_name(status & 0x7F)}"
