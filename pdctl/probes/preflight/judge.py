"""Says of each check what was seen, and whether the deployment is fit for traffic. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdctl.probes.preflight.checks import CHECKS, finding_of, line, line_of
from pdctl.probes.preflight.defects import defects
from pdctl.probes.preflight.equal import equal
from pdctl.probes.preflight.limits import time_outs
from pdctl.probes.preflight.model import (
    ERROR,
    INFO,
    NOT_APPLICABLE,
    OK,
    SETTINGS,
    UNKNOWN,
    URLS,
    Evidence,
    Line,
    Pair,
    PreflightDocument,
    Side,
)
from pdctl.probes.routing.facts import FOLLOW, forces_query
from pdctl.probes.routing.model import Fault
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import OTHER
from pdctl.protocol.requests import FORCE_QUERY
from pdctl.report.findings import Finding

SKEW_S = 2.0
"""Wall clocks closer than that are told as one."""
_OF = {
    "PD123": "routing", "PD129": "bootstrap", "PD137": "bootstrap", "PD134": "alike",
    "PD112": "ranks", "PD113": "ranks", "PD114": "ranks", "PD115": "ranks", "PD117": "ranks", "PD118": "ranks",
}  # fmt: skip
"""Findings of other probes that are told as lines, and of which check."""
_LOOPBACK = ("127.", "localhost", "::1", "[::1]")
_RANKING = (ERROR, "warning", UNKNOWN, INFO, OK, NOT_APPLICABLE)


def judge(evidence: Evidence) -> PreflightDocument:
    """Return the document of what was seen."""
    said = [(_OF[one.code], one) for one in evidence.said if one.code in _OF]
    lines = [line_of(check, one) for check, one in said]
    told = {check for check, _ in said}
    lines += _servers(evidence)
    if evidence.way != URLS:
        lines += [one for one in _ranks(evidence) if one.verdict != OK or "ranks" not in told]
        if "alike" not in told:
            lines.append(_alike(evidence))
    for pair in evidence.pairs:
        lines += equal(pair, evidence.way)
        if "routing" not in told:
            lines += _routing(pair, evidence.way)
        if "bootstrap" not in told:
            lines += _bootstrap(pair, evidence.way)
        lines += time_outs(pair, evidence.way, evidence.router_s)
        lines += _versions(pair)
        lines += defects(pair)
    lines += _doors(evidence)
    lines += _clocks(evidence)
    lines += _handshake(evidence)
    lines = list(dict.fromkeys(lines))
    order = list(CHECKS)
    lines.sort(key=lambda one: (_RANKING.index(one.verdict), order.index(one.check)))
    findings = _findings(lines, evidence.said)
    partial = any(one.essential and one.verdict == UNKNOWN for one in lines)
    wrong = any(one.verdict == ERROR for one in lines)
    return PreflightDocument(
        way=evidence.way,
        fit=False if wrong else None if partial else True,
        lines=tuple(lines),
        pairs=tuple(pair.name for pair in evidence.pairs),
        findings=findings,
        partial=partial,
        problems=evidence.problems,
    )


def fit_for_a_request(document: PreflightDocument) -> bool:
    """Return whether nothing is known that a request would fail at."""
    return not any(one.verdict == ERROR for one in document.lines)


def _findings(lines: Sequence[Line], said: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings of the lines, those of other probes as these made them."""
    theirs = {(one.code, one.summary): one for one in said}
    found = [theirs.get((one.code, one.found)) or finding_of(one) for one in lines]
    return tuple(dict.fromkeys(one for one in found if one is not None))


# ---- who is there ----------------------------------------------------------------------------------------------------


def _servers(evidence: Evidence) -> Iterator[Line]:
    if evidence.sides and all(side.silence for side in evidence.sides):
        for side in evidence.sides:
            yield line("servers", UNKNOWN, side.silence, about=side.name)
        return
    for side in evidence.sides:
        mode = side.values.get("disaggregation_mode", side.role)
        if side.silence and evidence.way == URLS and not side.unheard:
            yield line("servers", ERROR, side.silence, about=side.name, code="PD170")
        elif side.silence:
            yield line("servers", UNKNOWN, side.silence, about=side.name)
        elif mode != side.role:
            kind = f"a {mode} server" if mode in OTHER else "a server without disaggregation"
            yield line(
                "servers", ERROR, f"it is {kind}, not a {side.role} server", about=side.name, code="PD170",
                cure=f"Name each server with its own option, or start this one with --disaggregation-mode {side.role}.",
            )  # fmt: skip
        elif side.unready:
            yield line("servers", ERROR, side.unready, about=side.name, code="PD170")
        elif side.unheard:
            yield line("servers", UNKNOWN, side.unheard, about=side.name)
    for role in OTHER:
        if all(side.role != role for side in evidence.sides):
            yield line("servers", UNKNOWN, f"no {role} server was found")
    if evidence.unpaired:
        yield line("servers", UNKNOWN, evidence.unpaired)
    if evidence.pairs and not any(side.silence or side.unready or side.unheard for side in evidence.sides):
        many = len(evidence.pairs)
        names = ", ".join(pair.name for pair in evidence.pairs[:3])
        yield line("servers", OK, f"{names}{f' and {many - 3} more pairs' if many > 3 else ''}")


def _ranks(evidence: Evidence) -> Iterator[Line]:
    for side in evidence.sides:
        if side.silence:
            continue
        if side.silent:
            more = f" (and {len(side.silent) - 1} more)" if len(side.silent) > 1 else ""
            found = f"{side.answered} of {side.ranks} ranks of {side.name} answer: {side.silent[0]}{more}"
            yield line("ranks", UNKNOWN, found, about=side.name)
        elif evidence.way == SETTINGS:
            yield line("ranks", OK, f"the file has {side.ranks} of {side.ranks} ranks of {side.name}", about=side.name)
        else:
            yield line("ranks", OK, f"{side.ranks} of {side.ranks} ranks of {side.name} answer", about=side.name)


def _alike(evidence: Evidence) -> Line:
    """Return the line of servers whose ranks are not known to differ."""
    if all(side.silence for side in evidence.sides):
        return line("alike", UNKNOWN, "no rank tells its settings")
    if any(side.silent or side.silence for side in evidence.sides):
        return line("alike", OK, "of each server, the ranks that answer have the same settings")
    return line("alike", OK, "the ranks of each server have the same settings")


# ---- between the sides -----------------------------------------------------------------------------------------------


def _routing(pair: Pair, way: str) -> Iterator[Line]:
    prefill, decode = pair.prefill, pair.decode
    size, balance = prefill.number("dp_size"), prefill.values.get("load_balance_method", "")
    if size == 1:
        yield line("routing", OK, "prefill has one dp rank: there is nothing to choose", about=pair.name)
    elif not size or not balance:
        yield line("routing", UNKNOWN, "prefill does not tell its dp size and load balancing", about=pair.name)
    elif balance != FOLLOW:
        yield line("routing", OK, f"{balance}: prefill registers every room, and decode asks for it", about=pair.name)
    elif prefill.env is None or decode.env is None:
        said = f"{FOLLOW}; whether {FORCE_QUERY} is set on one side only is not told"
        yield line("routing", UNKNOWN, said, about=pair.name)
    else:
        on = [forces_query(side.env) for side in (prefill, decode)]
        if way == SETTINGS and on[0] != on[1]:  # of ranks, who looks at their code has said it
            there, missing = ("prefill", "decode") if on[0] else ("decode", "prefill")
            yield line(
                "routing",
                ERROR,
                f"{FORCE_QUERY} is set on {there} and not set on {missing}",
                about=pair.name,
                code="PD123",
            )
        else:
            asks = f", {FORCE_QUERY} on both sides" if all(on) else ""
            yield line("routing", OK, f"{FOLLOW}{asks}: room % {size}, if the router does so too", about=pair.name)


def _bootstrap(pair: Pair, way: str) -> Iterator[Line]:
    server = pair.bootstrap
    if way == SETTINGS:
        yield line("bootstrap", NOT_APPLICABLE, "saved settings do not tell of it", about=pair.name)
        return
    if _out_of_reach(pair):
        yield line(
            "bootstrap", ERROR, f"prefill listens on {pair.prefill.values['host']} only, and decode is on another host",
            about=pair.name, code="PD145", cure="Start prefill with --host 0.0.0.0, or the address that decode reaches.",
        )  # fmt: skip
        return
    if server is None:
        yield line("bootstrap", UNKNOWN, "it is not known where prefill's bootstrap server is", about=pair.name)
    elif server.silence and server.fault in (Fault.REFUSES, Fault.UNREACHABLE, Fault.SILENT):
        yield line("bootstrap", ERROR, f"{server.address}: {server.silence}", about=pair.name, code="PD145")
    elif server.silence:
        yield line("bootstrap", UNKNOWN, f"{server.address}: {server.silence}", about=pair.name)
    elif server.info_off:
        yield line(
            "bootstrap", ERROR, f"{server.address} does not know all ranks of prefill yet: {server.info_off}",
            about=pair.name, code="PD170",
            cure="Wait until prefill's log says that it is ready. If this lasts, restart it as a whole: ranks register once.",
        )  # fmt: skip
    else:
        yield from _table(pair)


def _table(pair: Pair) -> Iterator[Line]:
    server = pair.bootstrap
    if server is None or server.info is None:
        return
    wrong = False
    for name, own in _sizes(pair.prefill):
        told = server.info.get(name, "")
        if told and own and told != own:
            wrong = True
            yield line(
                "bootstrap", ERROR, f"{server.address} says {name} {told}, and prefill has {own}", about=pair.name,
                code="PD170", cure="The address is another server's: look at the host and port that are named for it.",
            )  # fmt: skip
    if pair.unknown_places and not wrong:
        places = ", ".join(pair.unknown_places[:3])
        more = f" and {len(pair.unknown_places) - 3} more" if len(pair.unknown_places) > 3 else ""
        yield line("bootstrap", ERROR, f"{server.address} does not know {places}{more}", about=pair.name, code="PD129")
    elif not wrong:
        known = sum(port > 0 for port in server.routes.values())
        where = f", {known} of its ranks were asked for" if known else ""
        yield line("bootstrap", OK, f"{server.address} answers for prefill{where}", about=pair.name)


def _sizes(side: Side) -> Iterator[tuple[str, str]]:
    yield "dp_size", side.values.get("dp_size", "")
    yield "pp_size", side.values.get("pp_size", "")
    yield "page_size", side.values.get("page_size", "") if side.values.get("enable_hisparse") != "True" else ""
    yield "attn_tp_size", str(side.attention_tp or "")


def _out_of_reach(pair: Pair) -> bool:
    """Return whether prefill's bootstrap server, which listens where its HTTP does, is on a loopback of another host."""
    host = pair.prefill.values.get("host", "")
    apart = pair.prefill.hosts and pair.decode.hosts and not pair.prefill.hosts & pair.decode.hosts
    return bool(apart) and host.startswith(_LOOPBACK)


def _versions(pair: Pair) -> Iterator[Line]:
    one, other = pair.prefill.version, pair.decode.version
    if not one or not other:
        yield line("versions", UNKNOWN, "a server does not tell its version", about=pair.name)
    elif one == other:
        yield line("versions", OK, f"{one} on both", about=pair.name)
    else:
        yield line(
            "versions", INFO, f"prefill is {one} and decode is {other}", about=pair.name, code="PD136",
            cure="Run one version on both sides; what differs between two is not held against each other by the engine.",
        )  # fmt: skip


# ---- around them -----------------------------------------------------------------------------------------------------


def _doors(evidence: Evidence) -> Iterator[Line]:
    if evidence.way == SETTINGS or not evidence.pairs:
        return
    if evidence.doors is None:
        said = "not tried: only from where ranks are, and HTTP does not lead there"
        yield line("ports", UNKNOWN, said)
        return
    closed = [door for door in evidence.doors if door.tried and door.why]
    for door in closed[:8]:
        yield line(
            "ports", ERROR, f"{door.origin} can't connect to {door.to} at {door.address}: {door.why}", code="PD173"
        )
    untried = [door for door in evidence.doors if not door.tried]
    if untried and not closed:
        more = f" (and {len(untried) - 1} more)" if len(untried) > 1 else ""
        first = untried[0]
        yield line("ports", UNKNOWN, f"{first.to} was not tried from {first.origin}: {first.why}{more}")
    elif evidence.doors and not closed:
        yield line(
            "ports", OK, f"{len(evidence.doors)} addresses of ranks accept connections from the other side's network"
        )
    elif not evidence.doors:
        yield line("ports", UNKNOWN, "the ranks do not tell their addresses")


def _clocks(evidence: Evidence) -> Iterator[Line]:
    if not evidence.clocks:
        if evidence.way != SETTINGS:
            yield line("clocks", UNKNOWN, "nobody tells the time")
        return
    ahead = sorted(evidence.clocks, key=lambda one: one.ahead_s)
    first, last = ahead[0], ahead[-1]
    apart = last.ahead_s - first.ahead_s - first.within_s - last.within_s
    if apart > SKEW_S:
        said = f"the clock of {last.name} is {seconds(last.ahead_s - first.ahead_s)} ahead of that of {first.name}"
        yield line("clocks", INFO, said, cure="Let both hosts follow one time server (chronyc tracking).")
    else:
        said = (
            f"within {seconds(max(SKEW_S, last.within_s))} of each other"
            if len(ahead) > 1
            else "all ranks are on one host"
        )
        yield line("clocks", OK, said)


def _handshake(evidence: Evidence) -> Iterator[Line]:
    sent = evidence.handshake
    if sent is None:
        return
    if sent.answered is None:
        yield line("handshake", UNKNOWN, sent.said)
        return
    way = "; ".join(f"{rank}: {' > '.join(queues) or 'never'}" for rank, queues in sent.queues.items())
    unseen = f" Not followed on {', '.join(sent.unseen[:3])}." if sent.unseen else ""
    found = f"{sent.said}.{f' {way}.' if way else ''}{unseen}"
    if sent.answered:
        yield line("handshake", OK, found)
    else:
        cure = f"pdctl story {sent.room} shows where it stopped." if sent.queues and sent.room else "pdctl check"
        yield line("handshake", ERROR, found, code="PD174", cure=cure)
