"""``stuck`` from recordings that the real recorder wrote: what ended on one side, and what the other still waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.client import Client
from pdctl.discovery import Found
from pdctl.model import Action, EventKind
from pdctl.observed import FoundRank
from pdctl.probes.stuck.collect import collect_recorded
from pdctl.probes.stuck.judge import judge
from pdctl.probes.stuck.model import StuckDocument
from tests.unit.story_world import Rank, Request, World

ROOM = 7


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def told(world: World) -> StuckDocument:
    """What the recordings of all ranks tell now."""
    ranks = []
    for rank in world.ranks:
        rank.path.write_bytes(world.data(rank))
        ranks.append(FoundRank(rank.identity, "recorded", recording=rank.path))
    with Client() as client:
        return judge(collect_recorded(Found(tuple(ranks)), client, pause_s=2.0), pause_s=2.0)


def ended(world: World, prefill: Rank, *, poll: int = 4, rid: str = "mine") -> None:
    """A request with ROOM comes to prefill and is over there at once."""
    prefill.enter("prefill.inflight", Request(ROOM, rid, poll=poll))
    prefill.event(EventKind.STATE, room=ROOM, a=poll)
    world.round("prefill.inflight", [prefill], reduced=poll, leaves=Action.COMMITTED if poll else Action.FAILED)


def waits(world: World, queue: str, ranks: list[Rank], seconds: float, *, alive: tuple[Rank, ...] = ()) -> None:
    """Rounds that change nothing, in each second; those that are ``alive`` take turns at an empty queue."""
    for _ in range(int(seconds)):
        world.round(queue, ranks, reduced=2)
        for rank in alive:
            world.round("prefill.bootstrap", [rank], reduced=2)
        world.wait(1000)


def test_an_earlier_request_with_the_same_room(world: World) -> None:
    prefill, decode = world.rank("prefill"), world.rank("decode")
    ended(world, prefill)
    world.wait(60_000)
    decode.enter("decode.transfer", Request(ROOM, "later", slot=1, poll=2))
    waits(world, "decode.transfer", [decode], 40, alive=(prefill,))
    document = told(world)
    [request] = document.requests
    assert request.peer_ended_s is None
    assert "an earlier request with this room: Success on prefill dp0 pp0 tp0" in request.peer
    assert [found.code for found in document.findings] == ["PD143"]


def test_a_request_that_went_on_after_the_other_side_ended_it(world: World) -> None:
    prefill, decode = world.rank("prefill"), world.rank("decode")
    mine = Request(ROOM, "mine", slot=1, poll=2)
    decode.enter("decode.prealloc", mine)
    ended(world, prefill, poll=0)
    waits(world, "decode.prealloc", [decode], 10, alive=(prefill,))
    world.round("decode.prealloc", [decode], reduced=2, leaves=Action.MOVED)
    decode.enter("decode.transfer", mine)
    waits(world, "decode.transfer", [decode], 6, alive=(prefill,))
    [found] = told(world).findings
    assert (found.code, found.rooms) == ("PD142", (ROOM,))
