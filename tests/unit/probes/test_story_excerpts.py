"""A story by excerpts is that by whole recordings: of made-up worlds, of traces of real engines, of agents that know none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdctl.probes.story.collect import Seen, collect
from pdctl.probes.story.find import known_rooms
from pdctl.probes.story.model import RankPast, StoryDocument
from pdctl.probes.story.probe import PROBE, StoryOptions, _document
from pdctl.probes.view import View
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.model import Action, EventKind
from pdctl.protocol.rank import Silence
from pdctl.recording import excerpt
from pdctl.recording import format as f
from pdctl.recording.reader import parse, read
from pdctl.targets.find import Found
from pdctl.trace.reader import open_trace
from tests.support.excerpted import excerpted_pasts
from tests.support.far import Far, far_ranks
from tests.support.story_world import Rank, Request, World, served

DATA = Path(__file__).parents[2] / "data"
SIZES = (f.RINGS_OFFSET + 24_000, f.RINGS_OFFSET + 80_000, f.MIN_SIZE)
"""Recordings with rings for 46, 156 and 472 events: small ones wrap."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(f, "MIN_SIZE", SIZES[0])
    return World(tmp_path, monkeypatch)


def told(asked: str, pasts: Sequence[RankPast]) -> StoryDocument | str:
    try:
        return _document(asked, Seen(list(pasts), now_ns=1 << 61))
    except PdctlError as error:
        return f"{error.message} {error.next_step}"


def asked_of(pasts: Sequence[RankPast]) -> list[str]:
    known = known_rooms([past.recording for past in pasts if past.recording is not None])
    return list(dict.fromkeys(["4711", "nobody", *(name for one in known for name in (str(one.room), *one.rids))]))


def lived(world: World, seed: int) -> list[RankPast]:
    """Make up hosts and clocks, requests that share ids and slots, aborts, faults, and ranks that part."""
    chance = random.Random(seed)
    hosts = chance.choice((1, 2, 3))

    def rank(role: str, tp: int, tp_size: int) -> Rank:
        host = chance.randrange(hosts)
        clock = {"offset": 10**12 * host, "wall_error": -(10**12) * host}
        if chance.random() < 0.05:
            clock["offset"] += 5 * 10**9  # no clock of that host
        return world.rank(
            role, tp, tp_size=tp_size, host=f"h{host}", pid=len(world.ranks) + 1, size=chance.choice(SIZES), **clock
        )

    prefill = rank("prefill", 0, 1)
    decode = [rank("decode", tp, 3) for tp in range(3)]
    steady = {one: Request(80, "", slot=1, poll=2) for one in decode}  # of which most runs say nothing
    moving = {one: Request(81, "rid-0", slot=2) for one in decode}
    for number in range(1, chance.randrange(4, 30)):
        who = decode if chance.random() < 0.9 else decode[: chance.randrange(1, 3)]
        rid = f"rid-{number if chance.random() < 0.8 else chance.randrange(3)}"
        late = chance.choice((0.0, 0.0, 0.0, 20.0)) if who is decode else 0.0
        served(world, prefill, who, number, rid, slot=chance.randrange(3), late_ms=late)
        if chance.random() < 0.2:
            chance.choice(decode).event(EventKind.ABORT, text=rid)
        if chance.random() < 0.1:
            prefill.event(EventKind.FAULT_ENDED, a=1, text="it is over")
        for _ in range(chance.choice((0, 0, 5, 40))):
            room, poll = chance.randrange(90, 99), chance.choice((2, 3))
            for one in decode:
                moving[one].poll = poll
                last = moving[one] if number % 2 else Request(room, "", slot=2, poll=poll)
                one.queues["decode.transfer"] = [steady[one], last]
            world.round("decode.transfer", decode, reduced=2, skew=0.01, leaves=chance.choice((None, Action.KEPT)))
    return world.pasts()


@pytest.mark.parametrize("seed", range(40))
def test_a_made_up_past_is_told_alike(world: World, seed: int) -> None:
    pasts = lived(world, seed)
    for asked in ("80", "rid-0", *random.Random(seed).sample(asked_of(pasts), 3)):
        whole = told(asked, pasts)
        for far in (None, [0], [1, 2], [0, 3]):
            short, _ = excerpted_pasts(pasts, asked, far)
            assert told(asked, short) == whole


@pytest.mark.parametrize("seed", range(8))
def test_damaged_lists_are_told_alike(world: World, seed: int) -> None:
    pasts, chance = lived(world, seed), random.Random(seed)
    names = chance.sample(asked_of(pasts), 3)
    for n, rank in enumerate(world.ranks):
        data = bytearray(world.data(rank))
        offset, capacity = f.layout(len(data))[2:4]
        for _ in range(20):
            data[offset + chance.randrange(capacity * f.ITEM_SIZE)] ^= 0xFF
        pasts[n] = world.past(rank, bytes(data))
    for asked in ("80", *names):
        for far in (None, [1, 2]):
            assert told(asked, excerpted_pasts(pasts, asked, far)[0]) == told(asked, pasts)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.pdtrace")), ids=lambda path: path.name)
def test_a_trace_is_told_alike(path: Path) -> None:
    with open_trace(path) as trace:
        ranks = [rank for rank in trace.manifest.ranks if rank.member]
        pasts = [RankPast(rank.identity, "live", read(trace.folder / Path(rank.member).name)) for rank in ranks]
        for asked in asked_of(pasts)[:12]:
            short, sent = excerpted_pasts(pasts, asked)
            assert told(asked, short) == told(asked, pasts)
            assert asked in ("4711", "nobody") or all(sent), (asked, sent)  # none is read whole


def test_of_ranks_of_one_clock_little_is_read(world: World) -> None:
    who = {"host": "h", "size": 1 << 20}
    prefill, decode = world.rank("prefill", **who), [world.rank("decode", tp, tp_size=2, **who) for tp in (0, 1)]
    for room in range(1, 80):
        served(world, prefill, decode, room, f"rid-{room}", slot=room % 64)
    short, sent = excerpted_pasts(world.pasts(), "40")
    assert told("40", short) == told("40", world.pasts())
    assert all(0 < size < 12_000 for size in sent), sent
    torn = world.pasts()
    data = bytearray(world.data(decode[0]))
    data[f.layout(1 << 20)[4] + 2 * f.EVENT_SIZE + 20] ^= 0xFF
    torn[1] = world.past(decode[0], bytes(data))
    short, sent = excerpted_pasts(torn, "40")
    assert (sent[1], short[1]) == (0, torn[1])  # an event is torn: that is told, and nothing hides it


@pytest.mark.parametrize("old", [set(), {2}, {1, 2, 3}])
def test_an_agent_that_knows_no_excerpts_is_read_whole(world: World, old: set[int]) -> None:
    prefill = world.rank("prefill", pid=1)
    decode = [world.rank("decode", tp, tp_size=2, pid=2 + tp) for tp in (0, 1)]
    for room in (7, 8):
        served(world, prefill, decode, room, "one id")
    files = {rank.identity.pid: world.data(rank) for rank in world.ranks}
    ranks = far_ranks(files)
    client = Far(files, old)
    seen = collect(View(Found(ranks), client), "one id")
    whole = [RankPast(rank.identity, "live", parse(files[rank.identity.pid])) for rank in ranks]
    assert told("one id", seen.pasts) == told("one id", whole)
    assert client.fetched == old
    collect(View(Found(ranks), client), "nobody")
    assert client.fetched == set(files)


def still_waits(world: World) -> dict[int, bytes]:
    """Make up a request of which the newest rounds say nothing, and a later one of its id that is in no list."""
    decode = [world.rank("decode", tp, tp_size=2, pid=1 + tp, host="h") for tp in (0, 1)]
    for rank in decode:
        rank.enter("decode.transfer", Request(7, "one id", slot=1, poll=2))
        rank.enter("decode.transfer", Request(9, "another", slot=2))
    for number in range(9):
        for rank in decode:
            rank.queues["decode.transfer"][1].poll = 1 + number % 2
            if number == 4:
                rank.event(EventKind.ENQUEUE, "decode.transfer", room=8, text="one id")
        world.round("decode.transfer", decode, reduced=2, leaves=Action.KEPT)
    return {rank.identity.pid: world.data(rank) for rank in decode}


class Listless(Far):
    """A client of ranks that are asked for lists in vain: other runs are the newest ones meanwhile."""

    def _said(self, pid: int, op: str, args: dict[str, Any]) -> tuple[Any, Silence, str]:
        return super()._said(pid, op, {name: one for name, one in args.items() if name != "lists"})


@pytest.mark.parametrize("kind", [Far, Listless])
def test_the_newest_list_of_a_queue_in_which_it_may_be_is_read(world: World, kind: type[Far]) -> None:
    files = still_waits(world)
    ranks, client = far_ranks(files), kind(files)
    document = told("one id", [RankPast(rank.identity, "live", parse(files[rank.identity.pid])) for rank in ranks])
    assert isinstance(document, StoryDocument)
    assert [one.room for one in document.stories] == [8, 7]  # the one that was heard of last comes last
    assert sum(entry.kind == "last" for entry in document.stories[1].entries) == 2
    assert told("one id", collect(View(Found(ranks), client), "one id").pasts) == document
    assert client.fetched == (set() if kind is Far else set(files))


def test_what_all_ranks_send_is_bounded_and_the_rest_is_read_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = still_waits(world)
    ranks = far_ranks(files)
    whole = [RankPast(rank.identity, "live", parse(files[rank.identity.pid])) for rank in ranks]
    for most, fetched in ((2 * f.RINGS_OFFSET - 1, {2}), (10 * f.RINGS_OFFSET, set())):
        monkeypatch.setattr(excerpt, "MAX_TOGETHER", most)
        client = Far(files)
        assert told("7", collect(View(Found(ranks), client), "7").pasts) == told("7", whole)
        assert client.fetched == fetched


def test_files_are_read_beside_excerpts_and_all_is_read_where_logs_may_name_it(world: World, tmp_path: Path) -> None:
    files = still_waits(world)
    (tmp_path / "1.pdrec").write_bytes(files[1])
    (tmp_path / "log").write_text("nothing")
    far, other = far_ranks(files)
    near = replace(far, access=None, endpoint="", recording=tmp_path / "1.pdrec")
    client = Far(files)
    whole = [RankPast(rank.identity, "live", parse(files[rank.identity.pid])) for rank in (near, other)]
    assert told("7", collect(View(Found((near, other)), client), "7").pasts) == told("7", whole)
    assert client.fetched == set()
    PROBE.collect(View(Found((near, other)), client), StoryOptions("7", logs=(tmp_path / "log",)))
    assert client.fetched == {2}
