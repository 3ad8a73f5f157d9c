"""A small HTTP server for what is scraped: one thread, requests that cost nothing, and bounds on what a client can do.

The standard library's own server takes a thread for each client, megabytes of headers, and any time to send them. Here one
loop serves all: at most ``MOST_CLIENTS`` connections (one more ends the oldest), 8 KiB of a request, 5 s until it has come,
15 s until the answer is taken. One request a connection.
"""

from __future__ import annotations

import ipaddress
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

from pdctl.protocol.errors import Exit, PdctlError

MOST_CLIENTS = 64
MOST_REQUEST = 8 << 10
REQUEST_S = 5.0
ANSWER_S = 15.0
LINGER_S = 1.0
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})", re.ASCII)
_REQUEST = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,2000}) HTTP/1\.[01]\r?\n", re.ASCII)
_END = re.compile(rb"\r?\n\r?\n")


@dataclass(frozen=True)
class Address:
    """Where to listen. host: a name or an address, without brackets. port: 0 for any."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return HOST:PORT. Raises ValueError, whose text says what was expected."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found["port"]) > 65535:
        raise ValueError(f"{text[:80]!r}: write HOST:PORT, 127.0.0.1:9477 or [::1]:9477")
    return Address(found["host"].strip("[]"), int(found["port"]))


@dataclass(frozen=True)
class Answer:
    """What a path gives."""

    status: HTTPStatus
    kind: str
    body: bytes


Answers = Callable[[str], Answer | None]
"""Path → what it gives, None where there is no such path. Called in the server's thread; it must not wait."""


@dataclass
class _Client:
    socket: socket.socket
    until: float
    got: bytearray = field(default_factory=bytearray)
    rest: list[memoryview] = field(default_factory=list)
    answered: bool = False


class Server:
    """Answers GET and HEAD from its own thread until it is closed. A context manager."""

    def __init__(self, address: Address, answers: Answers) -> None:
        """Listen. Raises PdctlError (USAGE) where that is not possible."""
        self._answers = answers
        self._listening = _listen(address)
        self._clients: dict[socket.socket, _Client] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._closing = False
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="pdctl-http", daemon=True)
        self._thread.start()

    @property
    def address(self) -> Address:
        """Where it listens, with the port that it has."""
        host, port, *_ = self._listening.getsockname()
        return Address(host, port)

    @property
    def alive(self) -> bool:
        """Whether it still serves."""
        return self._thread.is_alive()

    def __enter__(self) -> Server:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every connection, and the thread."""
        self._closing = True
        with suppress(OSError):
            self._wake.send(b"\0")
        self._thread.join()
        for client in list(self._clients.values()):
            self._drop(client)
        self._selector.close()
        for one in (self._listening, self._wake, self._woken):
            one.close()

    def _run(self) -> None:
        while not self._closing:
            ends = [client.until for client in self._clients.values()]
            timeout = max(0.0, min(ends) - time.monotonic()) if ends else None
            for key, events in self._selector.select(timeout):
                if key.fileobj is self._listening:
                    self._accept()
                elif isinstance(key.data, _Client) and key.data.socket in self._clients:
                    self._serve(key.data, events)
            now = time.monotonic()
            for client in [one for one in self._clients.values() if one.until <= now]:
                self._drop(client)

    def _accept(self) -> None:
        if len(self._clients) >= MOST_CLIENTS:
            self._drop(next(iter(self._clients.values())))
        try:
            made, _ = self._listening.accept()
        except OSError:  # it went away, or there is no descriptor: then the oldest gives its own
            if self._clients:
                self._drop(next(iter(self._clients.values())))
            else:
                time.sleep(0.1)
            return
        made.setblocking(False)
        client = _Client(made, time.monotonic() + REQUEST_S)
        self._clients[made] = client
        self._selector.register(made, selectors.EVENT_READ, client)

    def _drop(self, client: _Client) -> None:
        self._clients.pop(client.socket, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(client.socket)
        client.socket.close()

    def _serve(self, client: _Client, events: int) -> None:
        try:
            if events & selectors.EVENT_READ and not self._read(client):
                self._drop(client)
                return
            if events & selectors.EVENT_WRITE:
                self._write(client)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> bool:
        """Take what has come; return whether the connection goes on."""
        data = client.socket.recv(MOST_REQUEST)
        if client.answered:  # what comes after the request is not looked at
            if not data and client.rest:
                self._selector.modify(client.socket, selectors.EVENT_WRITE, client)
            return bool(data or client.rest)
        if not data:
            return False
        client.got += data
        if _END.search(client.got) is None and len(client.got) <= MOST_REQUEST:
            return True
        client.answered = True
        client.until = time.monotonic() + ANSWER_S
        client.rest = [memoryview(part) for part in self._answer(bytes(client.got)) if part]
        client.got.clear()
        self._selector.modify(client.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, client)
        return True

    def _write(self, client: _Client) -> None:
        while client.rest:
            sent = client.socket.send(client.rest[0])
            client.rest[0] = client.rest[0][sent:]
            if not client.rest[0]:
                client.rest.pop(0)
        # Its last bytes must not be lost by a reset: what else it has sent is read until it closes.
        client.socket.shutdown(socket.SHUT_WR)
        client.until = min(client.until, time.monotonic() + LINGER_S)
        self._selector.modify(client.socket, selectors.EVENT_READ, client)

    def _answer(self, got: bytes) -> tuple[bytes, bytes]:
        """Return head and body of the answer to this request."""
        request = _REQUEST.match(got)
        more = ""
        if len(got) > MOST_REQUEST:
            answer = _said(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif request is None:
            answer = _said(HTTPStatus.BAD_REQUEST)
        elif request[1] not in (b"GET", b"HEAD"):
            answer, more = _said(HTTPStatus.METHOD_NOT_ALLOWED), "Allow: GET, HEAD\r\n"
        else:
            path = request[2].partition(b"?")[0].decode("ascii")
            answer = self._answers(path) or _said(HTTPStatus.NOT_FOUND)
        head = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\nContent-Type: {answer.kind}\r\n"
            f"Content-Length: {len(answer.body)}\r\n{more}Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode("ascii"), b"" if request is not None and request[1] == b"HEAD" else answer.body


def _said(status: HTTPStatus) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{status.value} {status.phrase}\n".encode())


def _listen(address: Address) -> socket.socket:
    try:
        [(family, *_, where), *_] = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        made = socket.create_server(where[:2], family=family, backlog=MOST_CLIENTS)
    except OSError as error:
        raise PdctlError(
            f"can't listen at {address}: {error.strerror or error}",
            "Give --listen another address of this host, or another port.",
            Exit.USAGE,
        ) from None
    made.setblocking(False)
    return made
