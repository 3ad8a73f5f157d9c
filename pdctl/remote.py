"""Ranks of other hosts: reached over TCP, each known by its agent's key, asked who they are before anything else.

PDCTL_ENDPOINT (``--endpoint``, a context's ``endpoints``) names addresses, PDCTL_SERVER_KEY the key that agents there
have. Which key a command shows is PDCTL_KEY, or the only one there is (:mod:`pdctl.keys`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

from pdctl import keys
from pdctl.errors import Exit, PdctlError
from pdctl.model import Identity
from pdctl.observed import Access, FoundRank, Silence

if TYPE_CHECKING:
    from pdctl.agent.paths import Registration

_ENDPOINT = re.compile(r"(tcp://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})", re.ASCII)
MAX_ENDPOINTS = 8192


@dataclass(frozen=True)
class Target:
    """One place to look for a rank. endpoint: ``tcp://HOST:PORT``. server_key: the key its agent must have, "" for none."""

    endpoint: str
    server_key: str = ""


def targets(env: Mapping[str, str]) -> list[Target]:
    """Return the places that the environment names. Raises PdctlError (USAGE) for one that makes no sense."""
    words = env.get("PDCTL_ENDPOINT", "").replace(",", " ").split()
    if len(words) > MAX_ENDPOINTS:
        raise PdctlError(f"{len(words)} endpoints: at most {MAX_ENDPOINTS}", code=Exit.USAGE)
    server_key = keys.parse_public(env["PDCTL_SERVER_KEY"]) if env.get("PDCTL_SERVER_KEY") else ""
    return [Target(endpoint(word), server_key) for word in dict.fromkeys(words)]


def endpoint(text: str) -> str:
    """Return ``tcp://HOST:PORT`` from that, or from ``HOST:PORT``. Raises PdctlError (USAGE)."""
    match = _ENDPOINT.fullmatch(text.strip())
    if match is None or not 0 < int(match["port"]) < 65536:
        raise PdctlError(f"{text[:80]!r} is no endpoint of a rank", "write tcp://HOST:PORT", Exit.USAGE)
    return f"tcp://{match['host']}:{match['port']}"


def access(target: Target, env: Mapping[str, str]) -> Access:
    """Return how to come in at ``target``. Raises PdctlError where it takes a key and there is none to use."""
    if not target.server_key:
        return Access()
    own = keys.own(env)
    return Access(target.server_key, own.public, own.secret)


def ask(wanted: Iterable[Target], env: Mapping[str, str], timeout_s: float) -> list[FoundRank]:
    """Return a rank for each target, in order: who it says it is, or a row of an unknown one with the reason.

    Takes ``timeout_s`` at most, for all together. Raises PdctlError where there is no key to use.
    """
    from pdctl.agent.paths import Registration
    from pdctl.client import Client

    unknown = [stranger(target.endpoint, access(target, env)) for target in wanted]
    with Client(timeout_s=timeout_s + 1.0, rank_timeout_s=timeout_s) as client:
        answers = client.ask(unknown, "hello", Registration)
    return [
        told(answer.rank, answer.body)
        if answer.body is not None
        else replace(answer.rank, silent=answer.silence, silent_why=answer.reason)
        for answer in answers
    ]


def stranger(where: str, how: Access) -> FoundRank:
    """Return a rank of which only the address is known."""
    identity = Identity(
        engine="", engine_version="", pdctl_version="", role="unknown", host="", pid=0, proc_start=0,
        started_wall_ns=0, started_mono_ns=0, instance="", service=where, cluster="", world="", world_rank=-1,
    )  # fmt: skip
    return FoundRank(identity, "live", endpoint=where, access=how)


def told(rank: FoundRank, said: Registration) -> FoundRank:
    """Return ``rank`` with what its agent said of itself. Its recording is on its host: it comes through the socket."""
    return replace(
        rank,
        identity=said.identity,
        protocol=said.protocol,
        recording_size=said.recording_size if said.recording else 0,
        recording_off=said.recording_off,
        tcp=said.tcp,
        silent=Silence.NONE,
        silent_why="",
    )


class Watch:
    """Prepares a connection for CURVE, and knows what happened to it: to say why nothing comes back over it."""

    def __init__(self, socket: zmq.Socket[bytes], how: Access) -> None:
        if how.server_key:
            socket.setsockopt(zmq.CURVE_SERVERKEY, bytes.fromhex(how.server_key))
            socket.setsockopt(zmq.CURVE_PUBLICKEY, bytes.fromhex(how.public))
            socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(how.secret))
        socket.setsockopt(zmq.IPV6, 1)  # where the endpoint's host has an address of that kind; IPv4 goes on working
        self._socket = socket
        self._monitor = socket.get_monitor_socket(
            zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED
        )  # fmt: skip

    def close(self) -> str:
        """End the watch; returns why the connection does not get through, "" where it did."""
        seen: list[int] = []
        while self._monitor.poll(0):
            seen.append(recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"])
        self._socket.disable_monitor()
        if zmq.EVENT_HANDSHAKE_FAILED_AUTH in seen:
            return "not authorised: its agent does not know this key"
        if zmq.EVENT_HANDSHAKE_SUCCEEDED in seen:
            lost = max(n for n, event in enumerate(seen) if event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
            return "not reachable: the connection broke" if zmq.EVENT_DISCONNECTED in seen[lost:] else ""
        if zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL in seen or zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL in seen:
            return "not authorised or not reachable: no handshake; another server key, or no agent of pdctl"
        if zmq.EVENT_CONNECTED in seen:
            return "not authorised or not reachable: connected, but no handshake"
        return "not authorised or not reachable: no connection"


__all__ = ["Target", "Watch", "access", "ask", "endpoint", "stranger", "targets", "told"]
