"""Addresses of ranks that are tried from a network namespace: open, closed, and not tried."""

from __future__ import annotations

import socket

import pytest

from pdctl.introspect import packages
from pdctl.probes.preflight.doors import TRY_S, Try, knock
from tests.support.patience import patience


def test_an_open_door_a_closed_one_and_one_that_can_not_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pdctl.probes.preflight.doors.enter", refused)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as closed:
        port, nobody = listening.getsockname()[1], closed.getsockname()[1]
        closed.close()
        tries = [
            Try("d", "p0", "127.0.0.1", port),
            Try("d", "p1", "127.0.0.1", nobody),
            Try("d", "p2", "a", 1, enter=7),
        ]
        opened, shut, unknown = knock(tries, patience(10))
    assert (opened.tried, opened.why, opened.address) == (True, "", f"127.0.0.1:{port}")
    assert (shut.tried, shut.why) == (True, "connection refused")
    assert not unknown.tried
    assert "run pdctl as root" in unknown.why


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_what_can_not_be_an_address_keeps_no_other_door_from_being_tried(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        tries = [Try("d", "p0", host, 1), Try("d", "p1", "127.0.0.1", listening.getsockname()[1])]
        wrong, opened = knock(tries, patience(10))
    assert (wrong.tried, wrong.why) == (True, "that is no address")
    assert (opened.tried, opened.why) == (True, "")


def test_no_time_is_no_closed_door() -> None:
    [late] = knock([Try("d", "p", "127.0.0.1", 1)], TRY_S / 10)
    assert (late.tried, late.why) == (False, "the time was over before it was tried")


def test_a_process_that_has_loaded_no_such_package_or_is_not_there() -> None:
    assert packages.version_of(1 << 30, ("mooncake",)) == ""
    assert packages.version_of(0, ("nothing_of_this_name",)) == ""
