"""Whose place a new connection takes where there are as many as may be."""

from __future__ import annotations

import socket

import pytest

from pdctl.gateway.frames import Frames
from pdctl.gateway.relay import FEW, MAX_CONNECTIONS, SILENT_S, YOUNG_S, Connection, Relay


def full(asked: int, silent_since: float) -> Relay:
    """A full relay: so many connections of one key, the first of them the idlest; the others have never asked."""
    relay = Relay.__new__(Relay)
    none = socket.socket.__new__(socket.socket)
    relay.by_name = {}
    for number in range(MAX_CONNECTIONS):
        user = "alice" if number < asked else None
        c = Connection(none, none, b"%d" % number, "h", Frames(0), silent_since, float(number), 0.0, user)
        relay.by_name[c.name] = c
    return relay


@pytest.mark.parametrize(
    ("asked", "age", "name"),
    [
        (0, 0.1, None),
        (FEW, 0.1, None),
        (0, YOUNG_S + 0.1, b"0"),
        (FEW, YOUNG_S + 0.1, b"%d" % FEW),
        (FEW + 1, YOUNG_S + 0.1, b"0"),
        (FEW + 1, SILENT_S + 0.1, b"%d" % (FEW + 1)),
        (MAX_CONNECTIONS, 0.0, b"0"),
    ],
)
def test_nobody_who_shakes_hands_is_put_out_at_once(asked: int, age: float, name: bytes | None) -> None:
    """Else of many clients that come at once, and again and again, none would ever be served on a busy machine."""
    found = full(asked, 100.0 - age)._victim(100.0)
    assert (found.name if found else None) == name
