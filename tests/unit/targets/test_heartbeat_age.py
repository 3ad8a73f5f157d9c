"""A heartbeat is as old as it was when its store was read: a long wait for a silent rank does not make it dead."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import msgspec
import pytest

from pdctl.protocol import wire
from pdctl.protocol.paths import Registration
from pdctl.protocol.rank import FoundRank
from pdctl.protocol.store_schema import STALE_S, Beat, Entry, RawEntry, Read, name
from pdctl.targets.places import Places, Store
from pdctl.targets.sources import endpoints, stores
from tests.support.identities import identity

HOUR_NS = 3600 * 10**9


@pytest.mark.parametrize(("age_s", "state"), [(5, "live"), (STALE_S + 5, "dead")])
def test_what_passes_after_a_store_was_read_makes_no_heartbeat_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: float, state: str
) -> None:
    read_ns = time.time_ns() - HOUR_NS
    with socket.create_server(("127.0.0.1", 0)) as mute:  # connections are taken, and nobody reads what they send
        found = silent(tmp_path, monkeypatch, mute.getsockname()[1], read_ns, read_ns - int(age_s * 1e9))
    assert found.state == state
    assert f"its last heartbeat in the store was {age_s:.0f} s ago" in found.silent_why


def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int, read_ns: int, beat_ns: int) -> FoundRank:
    """Return the rank at this port, whose store was read at ``read_ns`` and had its heartbeat of ``beat_ns``."""
    who = identity()
    entry = Entry(Registration(wire.PROTOCOL, who), f"tcp://127.0.0.1:{port}")
    raw = RawEntry(name(who), msgspec.json.encode(entry), msgspec.json.encode(Beat(1, beat_ns)))
    monkeypatch.setattr(stores, "read", lambda *_: [Read([raw], "", read_ns)])
    places = Places(run_dirs=(), record_dir=tmp_path, stores=(Store("127.0.0.1", 1),))
    problems: list[str] = []
    [found] = endpoints.find(places, 10.0, 0.5, problems)
    assert not problems
    return found
