"""The server of /metrics and /livez: what it answers, and what a client can't do to it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.watch import server as module
from pdctl.watch.server import Address, Answer, Server, parse_address
from tests.support.patience import patience, until

BODY = b"pdctl_up 1\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: "


def answers(path: str) -> Answer | None:
    if path == "/big":
        return Answer(HTTPStatus.OK, "text/plain", b"x" * (8 << 20))
    return Answer(HTTPStatus.OK, "text/plain", BODY) if path == "/metrics" else None


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(Address("127.0.0.1", 0), answers) as made:
        yield made
        assert made.alive


def connect(server: Server) -> socket.socket:
    return socket.create_connection((server.address.host, server.address.port), timeout=patience(30))


def read(client: socket.socket) -> bytes:
    """Return what comes until the server closes; a reset counts as that."""
    got = b""
    try:
        while data := client.recv(1 << 20):
            got += data
    except ConnectionResetError:
        pass
    return got


def ask(server: Server, request: bytes) -> bytes:
    with connect(server) as client:
        client.sendall(request)
        return read(client)


def test_get_and_head(server: Server) -> None:
    got = ask(server, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert got.startswith(HEAD + b"11\r\n")
    assert got.endswith(b"Connection: close\r\n\r\n" + BODY)
    assert ask(server, b"HEAD /metrics HTTP/1.0\r\n\r\n") == got.removesuffix(BODY)
    assert len(ask(server, b"GET /big HTTP/1.1\n\n")) > 8 << 20


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nosuch HTTP/1.1\r\n\r\n", 404),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET http://a/metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 5000, 431),
    ],
)
def test_all_else_is_refused(server: Server, request_: bytes, status: int) -> None:
    assert ask(server, request_).startswith(f"HTTP/1.1 {status} ".encode())
    assert ask(server, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(BODY)


def test_a_request_may_come_in_pieces_and_its_sender_may_stop_sending(server: Server) -> None:
    with connect(server) as client:
        for byte in b"GET /metrics HTTP/1.1\r\n\r\n":
            client.sendall(bytes([byte]))
        client.shutdown(socket.SHUT_WR)
        assert read(client).endswith(BODY)


def test_who_sends_no_request_is_let_go_and_keeps_nobody_from_theirs(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 0.2)
    with connect(server) as slow:
        slow.sendall(b"GET /met")
        assert ask(server, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(BODY)
        assert read(slow) == b""


def test_who_takes_no_answer_is_let_go(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    with connect(server) as slow:
        slow.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        until("it is let go", lambda: not server._clients)
        assert ask(server, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(BODY)


def test_idle_clients_give_way_and_their_number_is_bounded(server: Server) -> None:
    idle = [connect(server) for _ in range(module.MOST_CLIENTS + 20)]
    try:
        for _ in range(3):
            assert ask(server, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(BODY)
        assert len(server._clients) <= module.MOST_CLIENTS
    finally:
        for client in idle:
            client.close()


def test_thousands_of_scrapes_leave_nothing(server: Server) -> None:
    def held() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = held()
    for n in range(2000):
        request = b"GET /metrics HTTP/1.1\r\n\r\n" if n % 4 else b"rubbish\r\n\r\n"
        assert ask(server, request)
    until("every connection is closed", lambda: held() <= before and not server._clients)


def test_it_ends_with_clients_connected() -> None:
    with Server(Address("127.0.0.1", 0), answers) as made, connect(made) as client:
        client.sendall(b"GET /met")
        until("it is known", lambda: made._clients)
        made.close()
        assert read(client) == b""
        assert not made.alive


def test_an_address_in_use_is_said() -> None:
    with Server(Address("127.0.0.1", 0), answers) as made, pytest.raises(PdctlError, match="can't listen at") as caught:
        Server(made.address, answers)
    assert caught.value.code is Exit.USAGE


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:9477", "127.0.0.1", 9477, True),
        ("[::1]:0", "::1", 0, True),
        ("localhost:80", "localhost", 80, True),
        ("0.0.0.0:9477", "0.0.0.0", 9477, False),
        ("[::]:9477", "::", 9477, False),
        ("some.host:1", "some.host", 1, False),
    ],
)
def test_addresses(text: str, host: str, port: int, loopback: bool) -> None:
    found = parse_address(text)
    assert (found.host, found.port, found.loopback, str(found)) == (host, port, loopback, text)


@pytest.mark.parametrize(
    "text", ["", "9477", ":9477", "127.0.0.1", "a:b", "a:70000", "a:1:2", "tcp://a:1", "a\n:1", "²:1"]
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="write HOST:PORT"):
        parse_address(text)
