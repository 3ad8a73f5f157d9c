"""Two servers without agents, as their own HTTP routes and their bootstrap server tell of them.

Every answer is bounded, nothing is followed to another address, and all of it is over by the deadline whatever they do.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pdctl.engines.sglang.server import API_KEY, Server, headers, why
from pdctl.probes.preflight.defects import SGLANG
from pdctl.probes.preflight.model import URLS, Clock, Evidence, Pair, Side
from pdctl.probes.routing.bootstrap import Question, ask
from pdctl.probes.routing.collect import DECODE_WAITS_S, MAX_PLACES
from pdctl.probes.routing.model import Place, ServerView

MOST_BYTES = 8 << 20
_TOLD = (
    "architectures", "attn_cp_size", "custom_mem_pool_type", "disaggregation_bootstrap_port", "disaggregation_mode",
    "disaggregation_transfer_backend", "dp_size", "enable_dp_attention", "enable_hisparse", "host", "kv_cache_dtype",
    "load_balance_method", "model_path", "model_type", "page_size", "pp_size", "served_model_name", "speculative_algorithm",
    "tp_size", "weight_version",
)  # fmt: skip
"""What is read of a server's answers. They have secrets, too (``api_key``)."""
_STARTING = 503


@dataclass
class _Asked:
    """What one server said so far. sock: shut to end its thread early."""

    server: Server
    told: dict[str, Any] = field(default_factory=dict)
    silence: str = ""
    unready: str = ""
    unheard: str = ""
    given_up: bool = False
    clock: Clock | None = None
    over: threading.Event = field(default_factory=threading.Event)
    connection: http.client.HTTPConnection | None = None


def collect(
    prefill: Server, decode: Server, bootstrap: tuple[str, int] | None, limit_s: float, router_s: float
) -> Evidence:
    """Return what both servers tell within so many seconds. bootstrap: None for the port that the prefill server names."""
    end = time.monotonic() + limit_s
    asked = [_Asked(prefill), _Asked(decode)]
    for one in asked:
        threading.Thread(target=_ask, args=(one, end), name="preflight-server", daemon=True).start()
    for one in asked:
        if not one.over.wait(max(0.0, end - time.monotonic() - min(DECODE_WAITS_S, limit_s / 3))):
            one.given_up = True
            one.silence = one.silence or (f"no answer within {limit_s:.3g} s" if not one.told else "")
            one.unheard = "its health check had no answer in time: it may compute something long, or hang"
            _drop(one)
    sides = [_side(one) for one in asked]
    address = bootstrap or _named(prefill, sides[0])
    server = places = None
    if address is not None and not sides[0].silence:
        places = dict(_places(sides[0]))
        written = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
        [server] = ask([Question(written, places=tuple(places))], max(0.1, end - time.monotonic()), DECODE_WAITS_S)
    pair = Pair(sides[0], sides[1], server, _unknown(server, places or {}))
    return Evidence(
        way=URLS,
        sides=tuple(sides),
        pairs=() if any(side.silence for side in sides) else (pair,),
        clocks=(*(one.clock for one in asked if one.clock is not None),),
        router_s=router_s,
    )


def _ask(one: _Asked, end: float) -> None:
    try:
        status, told = _get(one, "/server_info", end)
        if status == 404:
            status, told = _get(one, "/get_server_info", end)
        if status in (401, 403):
            one.silence = f"it wants a key: set {API_KEY} to its --api-key"
        elif status == _STARTING:
            one.silence = "it is still starting, or is ending (HTTP 503)"
        elif status != 200 or not isinstance(told, dict) or "disaggregation_mode" not in told:
            one.silence = f"it is no SGLang server: /server_info said HTTP {status}"
        else:
            one.told = told
            status, model = _get(one, "/model_info", end)
            if status == 404:
                status, model = _get(one, "/get_model_info", end)
            if status == 200 and isinstance(model, dict):
                one.told = {**model, **told}
            status, _ = _get(one, "/health", end)
            if status != 200:
                one.unready = f"its health check says HTTP {status}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        if one.given_up:
            pass  # who gave it up has said why
        elif not one.told:
            one.silence = why(error) if isinstance(error, OSError) else "it does not speak HTTP"
        else:
            one.unheard = f"its health check failed: {why(error)}"
    finally:
        one.over.set()


def _get(one: _Asked, path: str, end: float) -> tuple[int, Any]:
    """Return (status, JSON value or None). Raises OSError, HTTPException."""
    began = time.time()
    connection = one.server.connect(max(0.1, end - time.monotonic()))
    one.connection = connection
    try:
        connection.request("GET", one.server.path + path, headers=headers())
        answer = connection.getresponse()
        text = answer.read(MOST_BYTES + 1)
    finally:
        connection.close()
    if len(text) > MOST_BYTES:
        raise OSError(0, f"its answer is longer than {MOST_BYTES >> 20} MiB")
    if one.clock is None:
        one.clock = _clock(one.server, answer.getheader("date", ""), began)
    try:
        return answer.status, json.loads(text) if text else None
    except (ValueError, RecursionError):
        return answer.status, None


def _clock(server: Server, date: str, began: float) -> Clock | None:
    """Return how far a server's clock is ahead, by the date of its answer, which counts whole seconds."""
    try:
        there = email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    ended = time.time()
    return Clock(server.role, there + 0.5 - (began + ended) / 2, 0.5 + (ended - began) / 2)


def _drop(one: _Asked) -> None:
    sock = one.connection.sock if one.connection is not None else None
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _side(one: _Asked) -> Side:
    told: Mapping[str, Any] = one.told
    values = {name: _text(told[name]) for name in _TOLD if name in told}
    return Side(
        name=f"{one.server.role} {one.server.url}",
        role=one.server.role,
        engine=SGLANG,
        version=_text(told.get("version")),
        values=values,
        silence=one.silence,
        unready="" if one.silence else one.unready,
        unheard=one.unheard,
    )


def _text(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(str(one) for one in value[:8] if not isinstance(one, (dict, list)))
    return "" if value is None or isinstance(value, dict) else str(value)[:200]


def _named(prefill: Server, side: Side) -> tuple[str, int] | None:
    port = side.number("disaggregation_bootstrap_port")
    return (prefill.host, port) if 0 < port < 1 << 16 else None


def _places(side: Side) -> Iterator[tuple[Place, str]]:
    """Yield the ranks of prefill that its bootstrap server should know, and their names, as many as may be asked for."""
    dp, pp, cp = side.number("dp_size", 1), side.number("pp_size", 1), side.number("attn_cp_size", 1)
    tp = side.attention_tp
    if cp > 1 or not 0 < dp * pp * tp <= MAX_PLACES:  # with attention-CP, places are registered under others
        return
    for d in range(dp):
        for p in range(pp):
            for t in range(tp):
                yield (d, 0, t, p), f"prefill dp{d} pp{p} tp{t}"


def _unknown(server: ServerView | None, places: Mapping[Place, str]) -> tuple[str, ...]:
    if server is None or not server.usable:
        return ()
    return tuple(name for place, name in places.items() if server.routes.get(place, 0) < 0)
