"""Whatever is sent to an agent's socket, the agent lives and answers the next one who asks in good order."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading

import msgspec
import pytest

from pdctl.protocol import wire
from pdctl.protocol.model import Status
from pdctl.protocol.stream import HEAD
from tests.support.tiny_ranks import ROOT, TinyRanks, Wire

pytestmark = pytest.mark.system


def test_garbage_is_answered_with_an_error(ranks: TinyRanks) -> None:
    chance = random.Random(7)
    with Wire(ranks.socket_of(ranks.start())) as connection:
        for _ in range(300):
            connection.send(chance.randbytes(chance.randrange(1, 200)))
            reply = connection.reply()
            assert reply is not None
            assert reply.error
        assert not connection.ask("status").error


@pytest.mark.parametrize("size", [0, wire.MAX_REQUEST + 1, 2**32 - 1])
def test_a_length_that_is_not_allowed_ends_its_connection_only(ranks: TinyRanks, size: int) -> None:
    path = ranks.socket_of(ranks.start())
    with Wire(path) as bad, Wire(path) as good:
        bad.connection.send_raw(HEAD.pack(size) + b"x" * 100, 60)
        with pytest.raises(ConnectionError):
            bad.reply()
        assert not good.ask("status").error


def test_bytes_of_other_protocols_end_their_connection_only(ranks: TinyRanks) -> None:
    path = ranks.socket_of(ranks.start())
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\xff" * 70_000):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(path))
            try:
                raw.sendall(data)
            except OSError:
                pass  # it hung up first
    with Wire(path) as connection:
        assert not connection.ask("status").error


def test_another_protocol_is_told_which_one_is_spoken_here(ranks: TinyRanks) -> None:
    with Wire(ranks.socket_of(ranks.start())) as connection:
        connection.send(wire.encode({"v": 99, "op": "status"}))
        reply = connection.reply()
        assert reply is not None
        assert "protocol 99" in reply.error


def test_an_unknown_question_and_arguments_of_a_wrong_kind_are_errors(ranks: TinyRanks) -> None:
    with Wire(ranks.socket_of(ranks.start())) as connection:
        assert "nonsense" in connection.ask("nonsense").error
        for op in ("inject", "renew", "heal", "recording"):
            assert connection.ask(op, {"id": ["not", "text"], "offset": {}}).error
        assert not connection.ask("hello").error


def test_two_clients_at_once_get_their_own_answers(ranks: TinyRanks) -> None:
    path = ranks.socket_of(ranks.start())
    wrong: list[object] = []

    def client(first: int) -> None:
        with Wire(path) as connection:
            for number in range(first, first + 200):
                connection.send(wire.encode(wire.Request("hello" if number % 2 else "status", id=number)))
                reply = connection.reply()
                if reply is None or reply.id != number or reply.error:
                    wrong.append(reply)

    threads = [threading.Thread(target=client, args=(first,)) for first in (1000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_client_killed_while_it_asks_disturbs_nobody(ranks: TinyRanks) -> None:
    path = ranks.socket_of(ranks.start())
    program = f"""
from pathlib import Path
from pdctl.protocol import wire
from tests.support.tiny_ranks import Wire
connection = Wire(Path({str(path)!r}))
print("asking", flush=True)
while True:
    connection.send(wire.encode(wire.Request("recording", args={{"offset": 0, "length": 1 << 20}})))
"""
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            client.stdout.readline()
            with Wire(path) as connection:
                connection.ask("hello")
            client.send_signal(signal.SIGKILL)
    with Wire(path) as connection:
        assert msgspec.msgpack.decode(connection.ask("status").body, type=Status).identity.engine == "tiny"
