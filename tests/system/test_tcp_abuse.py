"""What strangers and bad clients try on an agent's TCP socket: downgrade, replay, floods, and very many connections."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

import pytest
import zmq

from pdctl.gateway.relay import MAX_CONNECTIONS
from pdctl.protocol import wire
from pdctl.protocol.model import Status
from pdctl.targets.client import Client
from tests.support.curve import Curve, Keyring, endpoint_of, gateway_of, notes
from tests.support.patience import patience, until
from tests.support.tiny_ranks import TinyRanks

pytestmark = pytest.mark.system
ANYWHERE = "tcp://127.0.0.1"


def port_of(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def test_a_client_without_curve_gets_nothing(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start(PDCTL_LISTEN=ANYWHERE, **ring.env)
    where = endpoint_of(ranks, child.pid)
    for options in ({}, {"PLAIN_USERNAME": b"alice", "PLAIN_PASSWORD": b"alice"}):
        with Curve(where, None, **options) as client:
            client.hello()
            assert client.reply(1500) is None
    with Curve(where, ring.access("alice")) as client:
        assert not client.ask("hello").error, "and the next one is served"


class Tape:
    """A proxy that keeps what a client sends, to be played again."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.sent = bytearray()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._target = target
        self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._server.accept()
        agent = socket.create_connection(self._target)
        threading.Thread(target=self._pump, args=(agent, client, None), daemon=True).start()
        self._pump(client, agent, self.sent)

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if kept is not None:
                    kept += data
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()


def test_a_recorded_handshake_played_again_gets_nothing(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start(PDCTL_LISTEN=ANYWHERE, PDCTL_ARM="1", **ring.env)
    where = port_of(endpoint_of(ranks, child.pid))
    tape = Tape(where)
    with Curve(tape.endpoint, ring.access("bob")) as client:
        assert not client.ask("heal").error  # an operation that a thief of the recording would like to have again
    tape.close()
    taken = bytes(tape.sent)
    assert b"CURVE" in taken
    assert b"heal" not in taken, "what is asked is not readable on the way"
    with socket.create_connection(where, timeout=patience(30)) as thief:
        thief.sendall(taken)
        heard = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while data := thief.recv(65536):  # the agent's side ends it
                heard += data
    # The 64 bytes of a greeting, and at most the WELCOME that any HELLO gets: never READY, never a message.
    assert b"READY" not in heard
    assert len(heard) <= 64 + 2 + 168
    until("the agent's note", lambda: any("did not get through" in note for note in notes(ranks, child.pid)))


def test_a_request_over_the_limit_ends_its_connection_only(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start(PDCTL_LISTEN=ANYWHERE, **ring.env)
    where = endpoint_of(ranks, child.pid)
    with Curve(where, ring.access("alice")) as big, Curve(where, ring.access("bob")) as other:
        assert not other.ask("hello").error
        big.send(b"x" * (wire.MAX_REQUEST + 4096))
        assert big.reply(1500) is None
        assert not other.ask("hello").error


def test_a_flood_is_cut_down_and_takes_nothing_from_others(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start("--then", "sleep", PDCTL_LISTEN=ANYWHERE, **ring.env)
    where = endpoint_of(ranks, child.pid)
    over = threading.Event()
    answered: list[str] = []
    question = wire.encode(wire.Request("queues", id=1))

    def flood() -> None:
        with Curve(where, ring.access("alice"), SNDHWM=1000) as client:
            client.socket.setsockopt(zmq.SNDTIMEO, 1000)
            while not over.is_set():
                with contextlib.suppress(zmq.Again):  # it is cut down by not being read
                    for _ in range(200):
                        client.send(question)
                while (reply := client.reply(0)) is not None:
                    answered.append(reply.error)

    flooder = threading.Thread(target=flood, daemon=True)
    flooder.start()
    try:
        until("a hundred answers", lambda: len(answered) > 100)
        with Client(timeout_s=120, rank_timeout_s=60) as polite:
            rank = ring.rank(where, "bob")
            began = time.monotonic()
            answers = [polite.ask([rank], "status", Status)[0] for _ in range(50)]
            took = time.monotonic() - began
        used = [answer.body.agent_cpu_s for answer in answers if answer.body is not None]
        assert len(used) == 50, "every polite question was answered"
        print(
            f"50 polite questions beside a flood: {took / 50 * 1e3:.1f} ms each, agent {(used[-1] - used[0]) / took:.1%}"
        )
    finally:
        over.set()
        flooder.join()


def test_very_many_connections_end_for_newer_ones(ranks: TinyRanks, ring: Keyring) -> None:
    child = ranks.start("--then", "sleep", PDCTL_LISTEN=ANYWHERE, **ring.env)
    where = endpoint_of(ranks, child.pid)
    gateway = Path(f"/proc/{gateway_of(child.pid)}/fd")
    rank = Path(f"/proc/{child.pid}/fd")
    few = len(list(rank.iterdir()))
    with contextlib.ExitStack() as stack:
        for _ in range(4 * MAX_CONNECTIONS):
            stack.enter_context(socket.create_connection(port_of(where), timeout=60))
        # Strangers that say nothing are put out for others.
        with Curve(where, ring.access("alice")) as client:
            assert not client.ask("hello").error
        assert len(list(gateway.iterdir())) < 3 * MAX_CONNECTIONS + 32
        assert len(list(rank.iterdir())) < few + 8, "the engine's process has none of them"
    until("its note", lambda: any("connections" in note for note in notes(ranks, child.pid)))
