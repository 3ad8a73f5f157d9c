"""When requests failed that a later pipeline stage still has, by its recording: in a file, and of a rank on another host."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pdctl.probes.leaks.collect import _failed
from pdctl.probes.view import View
from pdctl.protocol.model import EventKind, KVPoll
from pdctl.targets.find import Found
from tests.support.far import Far, far_ranks
from tests.support.story_world import World


@pytest.mark.parametrize("old", [(), (1,)])
def test_of_a_stage_on_another_host_only_the_failed_rooms_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: tuple[int, ...]
) -> None:
    world = World(tmp_path, monkeypatch)
    stage = world.rank("prefill", pid=1, pp=1, pp_size=2)
    for room in (7, 8, 9):
        stage.event(EventKind.STATE, room=room, a=int(KVPoll.BOOTSTRAPPING))
        world.wait(1000)
        stage.event(EventKind.STATE, room=room, a=int(KVPoll.FAILED))
    files = {1: world.data(stage)}
    [rank] = ranks = far_ranks(files)
    look: Any = SimpleNamespace(failed={7: None, 9: None}, mono_ns=stage.now())
    client = Far(files, old)
    assert _failed(ranks, View(Found(ranks), client), {id(rank): [look]}) == {id(rank): {7: 2.0, 9: 0.0}}
    assert client.fetched == set(old)
