"""What a store says of ranks. A heartbeat is as old as it was when its store was read: a long wait makes no rank dead.

Entries are of anybody who can write into the store.
"""

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
    problems: list[str] = []
    [found] = listed(tmp_path, monkeypatch, Read([raw], "", read_ns), problems)
    assert not problems
    return found


@pytest.mark.parametrize(
    ("endpoint", "key", "why"),
    [
        ("tcp://a b:1", "", "its endpoint in the store is none"),
        ("tcp://127.0.0.1:99999", "", "its endpoint in the store is none"),
        ("ipc:///run/other.sock", "", "its endpoint in the store is none"),
        ("tcp://127.0.0.1:1", "zz", "its key is none"),
    ],
)
def test_an_entry_that_leads_nowhere_is_a_row_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str, key: str, why: str
) -> None:
    who = identity()
    entry = Entry(Registration(wire.PROTOCOL, who, server_key=key), endpoint)
    found = listed(tmp_path, monkeypatch, Read([RawEntry(name(who), msgspec.json.encode(entry))]), [])
    assert [why in rank.silent_why for rank in found] == [True]


def test_an_entry_that_is_nested_deep_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[str] = []
    raw = RawEntry("pdctl/x", b'{"x":' + b"[" * 9000 + b"]" * 9000 + b"}")
    assert listed(tmp_path, monkeypatch, Read([raw]), problems) == []
    assert ["not understood" in problem for problem in problems] == [True]


def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: Read, problems: list[str]) -> list[FoundRank]:
    """Return the ranks of a store that holds these entries."""
    monkeypatch.setattr(stores, "read", lambda *_: [there])
    places = Places(run_dirs=(), record_dir=tmp_path, stores=(Store("127.0.0.1", 1),))
    return endpoints.find(places, 10.0, 0.5, problems)
