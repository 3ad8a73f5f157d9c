"""Ranks of other hosts shake hands once with a command that finds and asks them, and their answers are looked for together."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from pdctl.protocol import wire
from pdctl.protocol.paths import Registration
from pdctl.protocol.rank import Access, Silence
from pdctl.targets import client, far_lines, waiting
from pdctl.targets.client import Client
from pdctl.targets.far_connections import FarConnections
from pdctl.targets.places import parse_places
from pdctl.targets.sources import endpoints
from tests.support.identities import identity
from tests.support.patience import patience
from tests.support.tiny_ranks import free_port


class Answering:
    """A rank that answers whatever it is asked with who it is. names: of the connections over which it was asked."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.names: list[bytes] = []
        self._socket = self.context.socket(zmq.ROUTER)
        self.where = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        body = msgspec.Raw(wire.encode(Registration(wire.PROTOCOL, identity())))
        try:
            while True:
                name, question = self._socket.recv_multipart()
                self.names.append(name)
                request = wire.decode_request(question)
                reply = wire.encode(wire.Reply(id=request.id, body=body))
                self._socket.send_multipart([name, wire.packed(reply) if request.packs else b"it packs no reply"])
        except zmq.ContextTerminated:
            self._socket.close(linger=0)


@pytest.fixture
def rank() -> Iterator[Answering]:
    made = Answering()
    made.thread.start()
    yield made
    made.context.term()
    made.thread.join()


def test_who_is_found_over_a_connection_is_asked_over_it(rank: Answering, tmp_path: Path) -> None:
    places = parse_places({"PDCTL_ENDPOINT": rank.where, "HOME": str(tmp_path)})
    with FarConnections() as far:
        wait_s = patience(20)
        [found] = endpoints.find(places, 4 * wait_s, wait_s, [], far)
        for _ in range(2):
            with Client(timeout_s=wait_s, rank_timeout_s=wait_s, far=far) as client:
                [answer] = client.ask([found], "status", Registration)
                assert answer.body is not None, answer.reason
    assert len(rank.names) == 3
    assert len(set(rank.names)) == 1
    [other] = endpoints.find(places, 4 * wait_s, wait_s, [])
    assert other.identity == found.identity
    assert rank.names[3] != rank.names[0], "the others were closed"


def test_answers_of_many_other_hosts_gather_before_they_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    waited: list[int] = []

    def poll(ms: int) -> list[tuple[object, int]]:
        waited.append(ms)
        return []

    monkeypatch.setattr(waiting, "time", SimpleNamespace(sleep=slept.append))
    for far, count in ((False, 8), (True, 1), (True, 8)):
        watch = waiting.Watch(far=far)
        watch._poll = SimpleNamespace(poll=poll)
        watch._on = dict.fromkeys(range(count))
        watch.ready(0.001)
        watch.ready(0.0)
    assert slept == [8 * waiting._GATHER_S, 0.0]
    assert waited == [1, 0, 1, 0, 0, 0], "what it slept is no time to wait any more"


def test_time_in_which_nobody_listened_is_no_silence_of_a_rank(
    rank: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = 0.0
    ready = waiting.Watch.ready

    def stopped_at_first(watch: waiting.Watch, wait_s: float) -> list[waiting.Question]:
        nonlocal ahead
        if ahead:
            return ready(watch, wait_s)
        ahead = 3600.0  # Ctrl-Z, lunch, fg
        return []

    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))
    monkeypatch.setattr(waiting.Watch, "ready", stopped_at_first)
    with Client(timeout_s=patience(20), rank_timeout_s=patience(20)) as one:
        [answer] = one.ask([endpoints.unknown_rank(rank.where, Access())], "status", Registration)
        assert answer.body is not None, answer.reason
        assert not one.over, "nor is its --timeout used up"


def test_a_machine_that_is_always_late_keeps_no_command_for_ever(
    rank: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, waits = 0.0, 0

    def late(_watch: waiting.Watch, wait_s: float) -> list[waiting.Question]:
        nonlocal ahead, waits
        ahead, waits = ahead + wait_s + 2 * client.HELD_UP_S, waits + 1
        assert waits < 1000, "it goes on and on"
        return []

    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: ahead))
    monkeypatch.setattr(waiting.Watch, "ready", late)
    with Client() as one:
        [answer] = one.ask([endpoints.unknown_rank(rank.where, Access())], "status", Registration)
    assert answer.body is None
    assert waits > client.MOST_HELD_UP


def test_a_connection_that_can_not_be_made_is_why_a_rank_is_silent(
    rank: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_lines, "MAX_SOCKETS", 4)
    those = [endpoints.unknown_rank(where, Access()) for where in (rank.where, "tcp://127.0.0.1:9")]
    with Client(timeout_s=patience(20), rank_timeout_s=patience(20)) as client:
        answered, silent = client.ask(those, "status", Registration)
    assert answered.body is not None
    assert "no connection can be made" in silent.reason


def test_who_refuses_the_handshake_before_a_question_is_sent_is_why_it_can_not_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> None:
        raise TimeoutError("question can't be sent: Resource temporarily unavailable")

    monkeypatch.setattr(far_lines.FarLine, "begin", refused)
    with Client(timeout_s=patience(20)) as client:
        [silent] = client.ask([endpoints.unknown_rank("tcp://127.0.0.1:9", Access())], "status", Registration)
    assert (silent.silence, silent.reason) == (Silence.NOT_AUTHORISED, "not authorised or not reachable: no connection")


def test_who_refuses_is_known_though_connections_have_taken_the_low_descriptors() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody, there = f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        low = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]  # select has 1024
        try:
            assert endpoints.refused([nobody, there], patience(1)) == {nobody}
        finally:
            for one in low:
                os.close(one)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
