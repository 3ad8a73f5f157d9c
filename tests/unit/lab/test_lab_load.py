"""The options of ``pdctl lab load``: what is refused before a request is sent, and how requests are named."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.lab import messages, rank
from pdctl.lab.client import Client, Load
from pdctl.lab.config import LabConfig, Shape


@pytest.fixture
def config(tmp_path: Path) -> LabConfig:
    made = LabConfig("x", prefill=Shape(dp=2), run_dir=str(tmp_path))
    made.state_dir.mkdir()
    (made.state_dir / "bootstrap.port").write_text("127.0.0.1:8998")
    return made


def sent(config: LabConfig, load: Load) -> list[dict[str, object]]:
    """Return the requests that prefill dp 0 gets of a load."""
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(rank.request_endpoint(config, "prefill", 0))
        client = Client(config, replace(load, to="prefill"))
        try:
            for _ in range(load.requests):
                client.send()
            return [messages.decode(socket.recv()) for _ in range(load.requests)]
        finally:
            client.close()


def test_requests_have_the_rids_and_rooms_that_they_are_given(config: LabConfig) -> None:
    def named(**how: Any) -> list[tuple[object, object]]:
        found = sent(config, Load(prefill_dp=0, **how))
        return [(message["rid"], message["room"]) for message in found]

    assert named(requests=1, rids=("a",), room=4) == [("a", 4)]
    assert named(requests=2, rids=("a",), room=4) == [("a-0", 4), ("a-1", 5)]
    assert named(requests=2, rids=("a", "a"), rooms=(8, 4)) == [("a", 8), ("a", 4)]


def test_an_abort_reaches_a_server_that_is_slow_to_take_it_though_the_client_ends(config: LabConfig) -> None:
    client = Client(config, Load(requests=1, to="prefill", prefill_dp=0))
    client.abort(client.send(), ("prefill",))
    ends = threading.Thread(target=client.close)
    ends.start()
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(rank.request_endpoint(config, "prefill", 0))
        taken = [messages.decode(socket.recv()) for _ in range(2)]
    ends.join()
    assert [message["op"] for message in taken] == ["generate", "abort"]


def test_decode_is_told_the_address_of_the_bootstrap_server_or_another(config: LabConfig) -> None:
    [own] = sent(config, Load(requests=1, prefill_dp=0))
    assert (own["bootstrap_host"], own["bootstrap_port"]) == ("127.0.0.1", 8998)
    [other] = sent(config, Load(requests=1, prefill_dp=0, bootstrap="10.0.0.1:9"))
    assert (other["bootstrap_host"], other["bootstrap_port"]) == ("10.0.0.1", 9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--room 9223372036854775808", "room"),
        ("-n 2 --room 9223372036854775807", "room"),
        ("-n 3 --rid a --rid b", "once for each request"),
        ("--rid a --rid b --room 1 --room 2 --room 3", "once for each request"),
        ("--bootstrap nowhere", "no address"),
        ("--bootstrap 127.0.0.1:65536", "no address"),
        ("--give-up 3x", "not a duration"),
        ("--to gateway", "no side"),
        ("--prefill-dp 2", "no prefill dp 2"),
        ("--prefill-server 1", "no prefill server 1"),
    ],
)
def test_what_is_refused_before_a_request_is_sent(
    config: LabConfig, monkeypatch: pytest.MonkeyPatch, options: str, said: str
) -> None:
    monkeypatch.setattr("pdctl.commands.lab_load.find_lab", lambda *_: (config, []))
    monkeypatch.setattr("pdctl.commands.lab_load.check_alive", lambda *_: None)
    done = CliRunner().invoke(app, ["lab", "load", *options.split()])
    assert done.exit_code == 2, done.output
    assert said in done.output
