"""``verify-routing`` from recordings that the real recorder wrote: each rank is judged as of when it was last seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.probes.routing.collect import collect
from pdctl.probes.routing.judge import judge
from pdctl.probes.routing.model import RoutingDocument
from pdctl.probes.view import View
from pdctl.protocol.rank import FoundRank
from pdctl.targets.client import Client
from pdctl.targets.find import Found
from tests.support.story_world import Request, World

ROOM = 7


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def told(world: World) -> RoutingDocument:
    ranks = []
    for rank in world.ranks:
        rank.path.write_bytes(world.data(rank))
        ranks.append(FoundRank(rank.identity, "recorded", recording=rank.path))
    with Client() as client:
        return judge(collect(View(Found(tuple(ranks)), client, recorded=True)))


@pytest.mark.parametrize("gone_s", [0, 20])
def test_ages_count_to_when_a_rank_was_last_seen(world: World, gone_s: int) -> None:
    prefill, decode = world.rank("prefill"), world.rank("decode")
    decode.enter("decode.prealloc", Request(ROOM, "mine", slot=1, poll=1))
    for second in range(3 + gone_s):
        if second < 3:
            world.round("decode.prealloc", [decode], reduced=1)
        prefill.writer.pulse(1, prefill.now())
        world.wait(1000)
    document = told(world)
    [row] = document.rooms
    [asker] = row.decode
    assert asker.age_s is not None
    assert 2 <= asker.age_s < 4
    assert document.partial is bool(gone_s)
    if gone_s:
        [problem] = document.problems
        assert problem.startswith("decode dp0 pp0 tp0: wrote nothing for 2")
