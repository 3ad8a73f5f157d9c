"""Whether the time-outs of both sides, of the heartbeat between them and of the router fit each other. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from pdctl.probes.preflight.checks import line
from pdctl.probes.preflight.model import OK, UNKNOWN, URLS, WARNING, Line, Pair
from pdctl.protocol.durations import seconds
from pdctl.protocol.requests import ENTRY_CLEANUP

BOOTSTRAP = "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"
WAITING = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
INTERVAL = "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL"
FAILURES = "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE"
DEFAULTS = {BOOTSTRAP: 300.0, WAITING: 300.0, INTERVAL: 5.0, FAILURES: 2.0, ENTRY_CLEANUP: 120.0}
"""Where a variable is not set: SGLang 0.5.9 to 0.5.23."""
LOOKUPS_S = 15.0
"""So long decode asks a bootstrap server in vain, 15 times, before it fails a request."""
BEAT_S = 3.0
"""So long a heartbeat waits for its answer (``heartbeat_checker``)."""
_ON = {BOOTSTRAP: "prefill", ENTRY_CLEANUP: "prefill", WAITING: "decode", INTERVAL: "decode", FAILURES: "decode"}


class Limits(NamedTuple):
    """Seconds, as the engine takes them. given: variables that are set. registers: prefill tells its dp rank room by room."""

    bootstrap_s: float
    waiting_s: float
    heartbeat_s: float
    cleanup_s: float
    router_s: float
    given: frozenset[str]
    registers: bool


class Rule(NamedTuple):
    """What must not be so. wrong: whether it is. found: what to say then. cure: what to change."""

    wrong: Callable[[Limits], bool]
    found: Callable[[Limits], str]
    cure: str


RULES = (
    Rule(
        lambda at: at.bootstrap_s <= LOOKUPS_S,
        lambda at: (
            f"prefill gives a request up after {seconds(at.bootstrap_s)} without decode's addresses, while decode may"
            f" still ask for those of prefill for {LOOKUPS_S:g} s"
        ),
        f"Set {BOOTSTRAP} on prefill to well over {LOOKUPS_S:g}, or unset it.",
    ),
    Rule(
        lambda at: at.waiting_s <= LOOKUPS_S,
        lambda at: (
            f"decode gives a request up {seconds(at.waiting_s)} after it has told prefill its addresses: prefill has no"
            " more time to queue and compute it"
        ),
        f"Set {WAITING} on decode to more than the longest prefill takes under load, or unset it.",
    ),
    Rule(
        lambda at: at.heartbeat_s >= at.waiting_s > LOOKUPS_S,
        lambda at: (
            f"decode notices after {seconds(at.heartbeat_s)} that prefill is gone, and has given its requests up after"
            f" {seconds(at.waiting_s)}"
        ),
        f"Lower {INTERVAL} or {FAILURES} on decode.",
    ),
    Rule(
        lambda at: at.heartbeat_s < BEAT_S,
        lambda at: (
            f"decode takes prefill for dead after {seconds(at.heartbeat_s)} without an answer, which a busy server may"
            " need for one"
        ),
        f"Raise {INTERVAL} or {FAILURES} on decode.",
    ),
    Rule(
        lambda at: (
            at.registers and ENTRY_CLEANUP in at.given and at.cleanup_s < min(DEFAULTS[ENTRY_CLEANUP], at.bootstrap_s)
        ),
        lambda at: (
            f"the bootstrap server forgets the dp rank of a room after {seconds(at.cleanup_s)}, and prefill waits for"
            f" decode for {seconds(at.bootstrap_s)}: a decode that is full asks too late"
        ),
        f"Unset {ENTRY_CLEANUP} on prefill, or raise it to prefill's bootstrap time-out.",
    ),
    Rule(
        lambda at: 0 < at.router_s < max(at.bootstrap_s, at.waiting_s),
        lambda at: (
            f"the router gives a request up after {seconds(at.router_s)}, the engine after"
            f" {seconds(max(at.bootstrap_s, at.waiting_s))}: until then it holds memory for clients that are gone"
        ),
        f"Raise the router's time-out, or lower {BOOTSTRAP} on prefill and {WAITING} on decode below it.",
    ),
)


def time_outs(pair: Pair, way: str, router_s: float) -> Iterator[Line]:
    """Yield a line for each time-out of a pair that does not fit, one where all do."""
    if pair.prefill.env is None or pair.decode.env is None:
        said = "HTTP does not tell the variables; ranks with an agent do" if way == URLS else "not told"
        yield line("time-outs", UNKNOWN, said, about=pair.name)
        return
    sides = {"prefill": pair.prefill.env, "decode": pair.decode.env}
    bad = [(name, sides[role][name]) for name, role in _ON.items() if not _readable(sides[role], name)]
    for name, text in bad:
        found = f"{name} is {text!r} on {_ON[name]}, which is no time"
        yield line(
            "time-outs", WARNING, found, about=pair.name, code="PD171", cure=f"Set {name} to seconds, or unset it."
        )
    if bad:
        return
    at = _limits(pair, router_s)
    wrong = [rule for rule in RULES if rule.wrong(at)]
    for rule in wrong:
        yield line("time-outs", WARNING, rule.found(at), about=pair.name, code="PD171", cure=rule.cure)
    if not wrong:
        said = (
            f"prefill's handshake {seconds(at.bootstrap_s)}, decode's wait {seconds(at.waiting_s)}, heartbeat"
            f" {seconds(at.heartbeat_s)}{f', router {seconds(router_s)}' if router_s else ''}"
        )
        yield line("time-outs", OK, said, about=pair.name)


def _limits(pair: Pair, router_s: float) -> Limits:
    prefill, decode = pair.prefill.env or {}, pair.decode.env or {}
    return Limits(
        _value(prefill, BOOTSTRAP),
        _value(decode, WAITING),
        max(2.0, _value(decode, INTERVAL)) * max(1.0, _value(decode, FAILURES)),  # as the engine does
        _value(prefill, ENTRY_CLEANUP),
        router_s,
        frozenset(name for name, role in _ON.items() if name in (prefill if role == "prefill" else decode)),
        pair.prefill.number("dp_size", 1) > 1
        and pair.prefill.values.get("load_balance_method", "") != "follow_bootstrap_room",
    )


def _value(env: Mapping[str, str], name: str) -> float:
    return float(env[name]) if name in env else DEFAULTS[name]


def _readable(env: Mapping[str, str], name: str) -> bool:
    """Return whether a variable is not set, or set to a time."""
    if name not in env:
        return True
    try:
        value = float(env[name])
        return math.isfinite(value) and (value > 0 or name in (INTERVAL, FAILURES))
    except ValueError:
        return False
