"""The same seed takes the same visits: two clusters, two orders of requests, compared hit by hit."""

from __future__ import annotations

import random

import pytest

from pdctl.protocol.model import EventKind
from tests.support.labs import Labs

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ROOMS = range(4_000_000, 4_000_024)
PREFILL = "prefill dp0 pp0 tp0"


def hits(seed: int, rooms: list[int]) -> set[int]:
    """Rooms whose transfers a new lab's fault fails."""
    with Labs() as labs:
        lab = labs.up("--prefill", "tp=1", "--decode", "tp=2")
        placed = labs.cli(
            "inject", "--fail-transfer", "--rank", "decode:tp1", "--share", "50%", "--seed", seed, "--detach", "--for", "5m",
            "--hits", 100,
        )  # fmt: skip
        assert placed.stdout
        failed = {room for room in rooms if lab.load(requests=1, room=room).failed}
        fired = {event.room for event in lab.events(PREFILL, EventKind.FAULT_FIRED)}
        assert fired == failed
        return fired


def test_two_runs_of_one_seed_hit_the_same_rooms():
    shuffled = list(ROOMS)
    random.Random(3).shuffle(shuffled)
    first, second, other = hits(11, list(ROOMS)), hits(11, shuffled), hits(12, list(ROOMS))
    assert first == second
    assert 0 < len(first) < len(ROOMS)
    assert other != first
