"""What live ranks tell of their deployment: settings, what other probes find in it, ports, clocks."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pdctl import __version__
from pdctl.introspect.packages import version_of
from pdctl.probes.config.collect import collect as collect_settings
from pdctl.probes.config.judge import judge as judge_settings
from pdctl.probes.config.model import RankSettings
from pdctl.probes.preflight.doors import MOST, TRY_S, Try, knock
from pdctl.probes.preflight.model import RANKS, TRANSFER_VERSION, Clock, Door, Evidence, Pair, Side
from pdctl.probes.preflight.sides import pairs_of, side_of
from pdctl.probes.routing.addresses import near
from pdctl.probes.routing.bootstrap import Question, ask
from pdctl.probes.routing.collect import DECODE_WAITS_S, twice, usual
from pdctl.probes.routing.facts import registers
from pdctl.probes.routing.judge import judge as judge_routing
from pdctl.probes.routing.model import Fault, Look, RankView, ServerView
from pdctl.protocol.model import Status
from pdctl.protocol.numbers import PORT, whole
from pdctl.protocol.processes import network_of
from pdctl.protocol.rank import Answer

if TYPE_CHECKING:
    from pdctl.probes.view import View
    from pdctl.protocol.rank import FoundRank

_PACKAGES = ("mooncake_transfer_engine", "nixl")
_ROUTED = ("PD123", "PD129", "PD137")
"""Of ``verify-routing``: what is wrong before any request comes, and is not seen in the evidence itself."""


@dataclass(frozen=True)
class _Server:
    """One server with all that was found of its ranks."""

    side: Side
    ranks: tuple[RankSettings, ...]
    found: tuple[FoundRank, ...]
    views: tuple[RankView, ...]


def collect(view: View, *, bootstrap: str = "", router_s: float = 0.0) -> Evidence:
    """Return what ranks tell. bootstrap: ask this bootstrap server for all, "" for those that the ranks name."""
    settings = collect_settings(view)
    document = judge_settings(settings)
    look = (usual(view) if not bootstrap else twice(view, grace_s=0.0, instead=(bootstrap,))).look
    answers = {id(answer.rank): answer for answer in view.status()}
    servers = _servers(view, settings, look, [side_of(one) for one in document.servers], answers)
    sides = [server.side for server in servers]
    pairs, unpaired = pairs_of(document, sides)
    by_side = {id(server.side): server for server in servers}
    pairs = tuple(replace(pair, bootstrap=_bootstrap(by_side[id(pair.prefill)], look, view)) for pair in pairs)
    said = (
        *view.underlying,
        *(one for one in document.findings if one.code == "PD134"),
        *(one for one in judge_routing(look).findings if one.code in _ROUTED),
    )
    return Evidence(
        way=RANKS,
        sides=tuple(sides),
        pairs=pairs,
        unpaired=unpaired,
        said=said,
        doors=tuple(_doors(pairs, by_side, view)),
        clocks=tuple(_clocks(view)),
        router_s=router_s,
    )


def _servers(
    view: View,
    settings: Sequence[RankSettings],
    look: Look,
    sides: Sequence[Side],
    answers: Mapping[int, Answer[Status]],
) -> list[_Server]:
    """Return the servers in the order in which ``dump config`` has them."""
    groups: dict[tuple[str, str], list[int]] = {}
    for number, one in enumerate(settings):
        groups.setdefault((one.identity.cluster, one.identity.instance), []).append(number)
    routed = {(v.identity.host, v.identity.pid, v.identity.label, v.identity.instance): v for v in look.views}
    servers = []
    for side, numbers in zip(sides, groups.values(), strict=True):
        ranks = tuple(settings[number] for number in numbers)
        found = tuple(view.ranks[number] for number in numbers)
        views = tuple(
            routed[key]
            for one in ranks
            if (key := (one.identity.host, one.identity.pid, one.identity.label, one.identity.instance)) in routed
        )
        bodies = [
            answer.body for one in found if (answer := answers.get(id(one))) is not None and answer.body is not None
        ]
        told = {lack for body in bodies for lack in body.identity.lacks}
        ours = bool(bodies) and all(body.identity.pdctl_version == __version__ for body in bodies)
        packages = {version_of(one.identity.pid, _PACKAGES) for one in found if _network(one)} - {""}
        values = {**side.values, TRANSFER_VERSION: packages.pop()} if len(packages) == 1 else side.values
        way = {registers(each) for each in views if each.settings is not None} if side.role == "prefill" else set()
        servers.append(
            _Server(
                replace(
                    side,
                    values=values,
                    silent=tuple(f"{one.identity.label}: {one.silence}" for one in ranks if one.silence),
                    lacks=frozenset(told) if ours or told else None,  # an older agent does not tell all of them
                    registers=way.pop() if len(way) == 1 else "",
                    hosts=frozenset(one.identity.host for one in ranks if one.body is not None),
                ),
                ranks,
                found,
                views,
            )
        )
    return servers


# ---- bootstrap servers and ports -------------------------------------------------------------------------------------


def _bootstrap(server: _Server, look: Look, view: View) -> ServerView | None:
    """Return what the bootstrap server of a prefill server says, asked where its ranks are, else where decode finds it."""
    first = next((one for one in server.views if one.identity.world_rank == 0), None)
    seen = [found for one in server.views for found in near(one, look)]
    usable = next((one for one in seen if one.usable), next(iter(seen), None))
    if usable is not None and not (usable.silence and usable.fault is Fault.OTHER):
        return usable
    port = server.side.values.get("disaggregation_bootstrap_port", "")
    ip = first.settings.values.get("rank_ip", "") if first is not None and first.settings is not None else ""
    if not ip or not port.isdecimal() or _loopback(ip):
        return usable
    address = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
    [told] = ask([Question(address)], view.left(max(view.client.rank_timeout_s, DECODE_WAITS_S)), DECODE_WAITS_S)
    return told


def _doors(pairs: Sequence[Pair], servers: Mapping[int, _Server], view: View) -> Iterator[Door]:
    """Yield the addresses of ranks of one side, tried from the network of the other side's ranks."""
    tries: list[Try] = []
    untried: list[Door] = []
    for pair in pairs:
        ends = (servers[id(pair.prefill)], servers[id(pair.decode)])
        for origin, target in (ends, ends[::-1]):
            _plan(origin, target, tries, untried)
    yield from untried
    if tries:
        yield from knock(list(dict.fromkeys(tries))[:MOST], view.left(4 * TRY_S))


def _plan(origin: _Server, target: _Server, tries: list[Try], untried: list[Door]) -> None:
    """Add what to try from one server to another, and what can't be."""
    here = {network: one for one in origin.found if (network := _network(one))}
    own = network_of(os.getpid())
    for one in target.ranks:
        values = one.body.values if one.body is not None else {}
        ip, port = values.get("rank_ip", ""), whole(values.get("rank_port", ""), PORT)
        if not ip or not port:
            continue
        address = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        apart = origin.side.hosts and one.identity.host not in origin.side.hosts
        if _loopback(ip) and apart:
            why = "it is a loopback address of another host"
            untried.append(Door(origin.side.name, one.identity.label, address, why))
        elif not here:
            why = "its ranks are on another host, and pdctl runs here"
            untried.append(Door(origin.side.name, one.identity.label, address, why, tried=False))
        else:
            tries += [
                Try(origin.side.name, one.identity.label, ip, port, rank.identity.pid if network != own else 0)
                for network, rank in here.items()
            ]


def _network(rank: FoundRank) -> str:
    if rank.access is not None or not rank.process.runs_since(rank.identity.proc_start):
        return ""
    return network_of(rank.identity.pid)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# ---- clocks ----------------------------------------------------------------------------------------------------------


def _clocks(view: View) -> Iterator[Clock]:
    """Yield how far the wall clock of each host is ahead of this one's, by its ranks' own; all of this host have one."""
    yield Clock(socket.gethostname(), 0.0, 0.0)
    away = {a.rank.identity.host: a.rank for a in view.status() if a.rank.access is not None and a.body is not None}
    for rank in list(away.values())[:MOST]:
        began = time.time_ns()
        [answer] = view.again().status([rank])
        ended = time.time_ns()
        if answer.body is not None and answer.body.identity.started_wall_ns:
            i = answer.body.identity
            there = i.started_wall_ns + answer.body.mono_ns - i.started_mono_ns
            within_s = (ended - began) / 2e9
            yield Clock(i.label, (there - (began + ended) / 2) / 1e9, within_s)
