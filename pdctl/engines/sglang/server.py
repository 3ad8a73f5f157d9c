"""SGLang's HTTP servers as a router sees them: what a server is, a request of a prefill/decode pair, how to give one up.

Used in a shell, never in a rank. What holds for which version was read in 0.5.9, 0.5.10.post1, 0.5.12.post1, 0.5.13.post1
and 0.5.23.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.numbers import PORT, whole

CONNECT_S = 5.0
INFO_S = 10.0
API_KEY = "PDCTL_API_KEY"
"""Variable with the servers' ``--api-key``, where they have one."""

_MOST_BYTES = 64 << 20
_MOST_ERROR = 160
_PIN, _OLD_PIN, _PIN_SINCE = "routed_dp_rank", "data_parallel_rank", (0, 5, 10)


@dataclass(frozen=True)
class Server:
    """Where a server answers. path: what its URL has in front of ``/generate``, "" mostly."""

    role: str
    scheme: str
    host: str
    port: int
    path: str = ""

    @classmethod
    def parse(cls, url: str, role: str) -> Server:
        """Return the server at ``url``. Raises PdctlError (USAGE) with what is wrong with it; never repeats a password."""
        option = f"--{role}-url"
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise _bad_url(option, str(error)) from None
        if parts.username is not None or parts.password is not None:
            raise PdctlError(
                f"{option} has a user or password in it", f"a server's --api-key goes into {API_KEY}", Exit.USAGE
            )
        if parts.scheme not in ("http", "https"):
            raise _bad_url(option, f"{parts.scheme}:// is neither http:// nor https://")
        if not host or any(character.isspace() for character in url):
            raise _bad_url(option, f"there is no host in {url!r}")
        if parts.query or parts.fragment:
            raise _bad_url(option, "a server's address has no ? and no #")
        default = 443 if parts.scheme == "https" else 80
        return cls(role, parts.scheme, host, port or default, parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        """Its address, as people write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a connection that is not open yet."""
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=timeout_s)


@dataclass(frozen=True)
class Info:
    """What a server says of itself. mode: ``prefill``, ``decode`` or ``null``; bootstrap_port 0: not said."""

    version: str
    mode: str
    bootstrap_port: int
    dp_size: int
    load_balance: str

    def implied_dp(self, room: int) -> int:
        """Return the prefill dp rank that decode takes a room to be on, -1 where it asks for it.

        ``DecodePreallocQueue._resolve_prefill_dp_rank``, SGLang 0.5.10.post1 to 0.5.23.
        """
        return room % self.dp_size if self.dp_size > 1 and self.load_balance == "follow_bootstrap_room" else -1

    def pin(self, dp: int) -> dict[str, int]:
        """Return the field of a request's body that sends it to a dp rank."""
        parts = map(whole, self.version.split(".")[:3])
        numbers = tuple(part for part in parts if part is not None)
        return {_OLD_PIN if len(numbers) == 3 and numbers < _PIN_SINCE else _PIN: dp}


def ask(server: Server, timeout_s: float = INFO_S) -> Info:
    """Return what a server says of itself: ``GET /server_info``, which its scheduler has to answer.

    Raises PdctlError: UNREACHABLE where it does not answer or wants a key, USAGE where something else answers.
    """
    option = f"--{server.role}-url"
    connection = server.connect(timeout_s)
    try:
        connection.request("GET", f"{server.path}/server_info", headers=headers())
        answer = connection.getresponse()
        status, text = answer.status, answer.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise PdctlError(
            f"the {server.role} server at {server.url} does not answer: {why(error)}", f"check {option}"
        ) from None
    finally:
        connection.close()
    if status in (401, 403):
        raise PdctlError(f"the {server.role} server at {server.url} wants a key", f"set {API_KEY} to its --api-key")
    try:
        told = json.loads(text) if status == 200 else None
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or "disaggregation_mode" not in told:
        raise PdctlError(
            f"{server.url} is no SGLang server: /server_info said HTTP {status}", f"check {option}", Exit.USAGE
        )
    return Info(
        version=str(told.get("version") or ""),
        mode=str(told["disaggregation_mode"]),
        bootstrap_port=whole(str(told.get("disaggregation_bootstrap_port")), PORT) or 0,
        dp_size=whole(str(told.get("dp_size"))) or 1,
        load_balance=str(told.get("load_balance_method") or ""),
    )


class CallError(Exception):
    """A request that failed, in words that may be shown: no prompt and no token is in them."""


class Call:
    """One ``POST`` on a connection of its own. ``drop`` may come from another thread, and then it ends."""

    def __init__(self, server: Server) -> None:
        self._connection = server.connect(CONNECT_S)
        self._server = server
        self._lock = threading.Lock()
        self._dropped = False

    def post(self, path: str, body: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Return the answer's JSON value, None where it has none. Raises CallError."""
        connection = self._connection
        try:
            connection.connect()
            with self._lock:
                if self._dropped:
                    raise CallError("given up")
                connection.sock.settimeout(timeout_s)
            sent = {**headers(), "content-type": "application/json"}
            connection.request("POST", self._server.path + path, json.dumps(body), sent)
            answer = connection.getresponse()
            status, text = answer.status, answer.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise CallError("given up" if self._dropped else f"{self._server.role}: {why(error)}") from None
        finally:
            connection.close()
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            told = None
        if status != 200:
            raise CallError(f"{self._server.role}: HTTP {status}{_said(told)}")
        return told

    def generate(self, body: dict[str, Any]) -> tuple[int, ...]:
        """Return the tokens that a request is answered with. Raises CallError, also where the engine aborted it."""
        told = self.post("/generate", body)
        meta = told.get("meta_info") if isinstance(told, dict) else None
        if not isinstance(meta, dict):
            raise CallError(f"{self._server.role}: an answer without meta_info")
        reason = meta.get("finish_reason")
        if isinstance(reason, dict) and reason.get("type") == "abort":
            raise CallError(f"{self._server.role}: aborted{_said(reason)}")
        return tuple(told.get("output_ids") or ())

    def drop(self) -> None:
        """Close the connection, whatever it waits for: the server ends the request when it notices."""
        with self._lock:
            self._dropped = True
            sock = self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def generate_body(
    *, rid: str, room: int, prompt: list[int], new_tokens: int, bootstrap: tuple[str, int]
) -> dict[str, Any]:
    """Return the body that a router posts to both servers."""
    return {
        "rid": rid,
        "input_ids": prompt,
        "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True},
        "bootstrap_host": bootstrap[0],
        "bootstrap_port": bootstrap[1],
        "bootstrap_room": room,
    }


def abort(server: Server, rid: str) -> None:
    """Have a server end a request, at once.

    A server also ends one whose connection is closed, but looks for that every 4 s only
    (``SGLANG_REQUEST_STATE_WAIT_TIMEOUT``). Nothing is raised: what it did not hear, it will notice then. Every request
    whose id *begins* with ``rid`` is ended (``Scheduler.abort_request``).
    """
    with contextlib.suppress(CallError):
        Call(server).post("/abort_request", {"rid": rid}, CONNECT_S)


def why(error: Exception) -> str:
    """Return what went wrong with a connection, in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def headers() -> dict[str, str]:
    """Return what a request has to carry where the servers have an ``--api-key``."""
    key = os.environ.get(API_KEY, "")
    return {"authorization": f"Bearer {key}"} if key else {}


def _said(told: Any) -> str:
    """Return an error's own words. A refused body may be quoted in them: lists are cut off."""
    for name in ("error", "message", "detail"):
        if isinstance(told, dict):
            told = told.get(name, told)
    said = told.split("[")[0].strip()[:_MOST_ERROR] if isinstance(told, str) else ""
    return f": {said}" if said else ""


def _bad_url(option: str, problem: str) -> PdctlError:
    return PdctlError(f"{option}: {problem}", "write it as http://HOST:PORT", Exit.USAGE)
