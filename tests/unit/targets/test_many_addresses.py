"""A name with many addresses, as that of a headless service, is all of them."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from pdctl.protocol.rank import Access, Silence
from pdctl.targets import resolve
from pdctl.targets.client import Client
from pdctl.targets.places import parse_places
from pdctl.targets.resolve import Resolved, at_address, look_up, one_family
from pdctl.targets.sources import endpoints
from pdctl.targets.sources.endpoints import unknown_rank


def test_a_host_with_an_address_of_each_kind_is_one_host() -> None:
    assert one_family(["10.0.0.1", "fd00::1"]) == ("10.0.0.1",)
    assert one_family(["fd00::1", "10.0.0.1"]) == ("fd00::1",)
    assert one_family(["fd00::1", "10.0.0.1", "10.0.0.2", "10.0.0.1"]) == ("10.0.0.1", "10.0.0.2")
    assert one_family([]) == ()
    assert at_address("tcp://decode:7311", "fd00::1") == "tcp://[fd00::1]:7311"
    assert at_address("tcp://decode:7311", "10.0.0.2") == "tcp://10.0.0.2:7311"


def test_a_name_that_is_none_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **more: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(resolve.socket, "getaddrinfo", fail)
    assert look_up(["decode", "10.0.0.1"], 5) == {
        "decode": Resolved(why="the name decode can't be resolved: Name or service not known")
    }


def test_each_address_of_a_name_is_a_row_and_says_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked_up(hosts: Any, timeout_s: float) -> dict[str, Resolved]:
        known = {
            "decode": Resolved(("127.0.0.1", "127.0.0.2")),
            "prefill": Resolved(("127.0.0.1",)),
            "gone": Resolved(why="the name gone can't be resolved"),
        }
        return {host: known[host] for host in hosts if host in known}

    monkeypatch.setattr(endpoints, "look_up", looked_up)
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        named = " ".join(f"tcp://{name}:{port}" for name in ("decode", "gone", "127.0.0.1"))
        ranks = endpoints.find(parse_places({"PDCTL_ENDPOINT": named, "HOME": "/nonexistent"}), 4.0, 1.0, [])
    said = {rank.endpoint: rank for rank in ranks}
    assert list(said) == [f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.2:{port}", f"tcp://gone:{port}"]
    for rank in ranks[:2]:
        assert rank.silent is Silence.REFUSED
        assert f"nobody listens at {rank.endpoint}" in rank.silent_why
    assert said[f"tcp://127.0.0.2:{port}"].silent_why.endswith("(one of the 2 addresses of decode)")
    assert "can't be resolved" in said[f"tcp://gone:{port}"].silent_why


def test_more_endpoints_than_zeromq_has_sockets_by_itself() -> None:
    with Client(timeout_s=1.0, rank_timeout_s=1.0) as client:
        lines = [client._line(unknown_rank(f"tcp://127.0.0.1:{port}", Access()), 1.0) for port in range(1, 401)]
        assert len({id(line) for line in lines}) == 400
