"""``stuck`` from recordings that the real recorder wrote: what ended on one side, and what the other still waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.probes.stuck.collect import collect_recorded
from pdctl.probes.stuck.judge import judge
from pdctl.probes.stuck.model import StuckDocument
from pdctl.probes.view import View
from pdctl.protocol.model import Action, EventKind
from pdctl.protocol.rank import FoundRank
from pdctl.targets.client import Client
from pdctl.targets.find import Found
from tests.support.story_world import Rank, Request, World

ROOM = 7


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def told(world: World, *, taken: Rank | None = None, cut: int | None = None) -> StuckDocument:
    """What the recordings of all ranks tell now. taken: this one was copied from a live rank. cut: bytes that are left."""
    ranks = []
    for rank in world.ranks:
        rank.path.write_bytes(world.data(rank)[:cut])
        alive = {"seen_ns": rank.now(), "seen_live": True} if rank is taken else {}
        ranks.append(FoundRank(rank.identity, "recorded", recording=rank.path, **alive))
    with Client() as client:
        return judge(collect_recorded(View(Found(tuple(ranks)), client, recorded=True), pause_s=2.0), pause_s=2.0)


def ended(world: World, prefill: Rank, *, poll: int = 4, rid: str = "mine") -> None:
    """A request with ROOM comes to prefill and is over there at once."""
    prefill.enter("prefill.inflight", Request(ROOM, rid, poll=poll))
    prefill.event(EventKind.STATE, room=ROOM, a=poll)
    world.round("prefill.inflight", [prefill], reduced=poll, leaves=Action.COMMITTED if poll else Action.FAILED)


def waits(world: World, queue: str, ranks: list[Rank], seconds: int, *, alive: tuple[Rank, ...] = ()) -> None:
    """Rounds that change nothing, in each second; those that are ``alive`` take their turns, and have nothing to do."""
    for _ in range(seconds):
        if ranks and ranks[0].queues.get(queue):
            world.round(queue, ranks, reduced=2)
        for rank in (*ranks, *alive):
            rank.writer.pulse(1, rank.now())
        world.wait(1000)


@pytest.mark.parametrize("rid", ["earlier", "later"])
def test_an_earlier_request_with_the_same_room(world: World, rid: str) -> None:
    """A retry may have the same rid, too."""
    prefill, decode = world.rank("prefill"), world.rank("decode")
    for queue in ("decode.prealloc", "decode.pending", "decode.transfer"):
        decode.enter(queue, Request(ROOM, rid))
        decode.queues[queue] = []
    ended(world, prefill)
    world.wait(60_000)
    later = Request(ROOM, "later", slot=1, poll=2)
    decode.enter("decode.prealloc", later)
    world.round("decode.prealloc", [decode], reduced=2, leaves=Action.MOVED)
    decode.enter("decode.transfer", later)
    waits(world, "decode.transfer", [decode], 40, alive=(prefill,))
    document = told(world)
    [request] = document.requests
    assert request.peer_ended_s is None
    assert "an earlier request with this room: Success on prefill dp0 pp0 tp0" in request.peer
    assert [found.code for found in document.findings] == [*["PD147"][: rid == "earlier"], "PD143"]


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


@pytest.mark.parametrize("pairs", [1, 2])
def test_what_ended_may_be_of_another_pair_where_recordings_have_several(world: World, pairs: int) -> None:
    prefill, decode = world.rank("prefill"), world.rank("decode")
    others = [
        world.rank(role, service=f"{role} b", instance=f"{role} 2") for role in ("prefill", "decode")[: 2 * pairs - 2]
    ]
    decode.enter("decode.transfer", Request(ROOM, "mine", slot=1, poll=2))
    ended(world, others[0] if others else prefill)
    waits(world, "decode.transfer", [decode], 8, alive=(prefill, *others))
    [found] = told(world).findings
    assert found.code == "PD142"
    assert ("may be another pair's request with this room" in found.summary) is (pairs > 1)


@pytest.mark.parametrize("gone_s", [0, 12])
def test_what_a_rank_heard_after_it_was_last_seen_is_not_known(world: World, gone_s: int) -> None:
    """A decode rank that was killed, or copied earlier: the other side went on, and ended the request."""
    prefill, decode = world.rank("prefill"), world.rank("decode")
    decode.enter("decode.transfer", Request(ROOM, "mine", slot=1, poll=2))
    waits(world, "decode.transfer", [decode], 3, alive=(prefill,))
    if gone_s:
        waits(world, "prefill.bootstrap", [prefill], gone_s)
    ended(world, prefill)
    waits(world, "decode.transfer", [] if gone_s else [decode], 8, alive=(prefill,))
    document = told(world)
    assert [found.code for found in document.findings] == ([] if gone_s else ["PD142"])
    assert document.partial is bool(gone_s)
    [request] = document.requests
    if gone_s:
        [problem] = document.problems
        assert problem.startswith("decode dp0 pp0 tp0: wrote nothing for 20.")
        assert "what it has seen since is not known" in problem
        assert request.peer.endswith("and has let it go, when this side was no longer seen")
        assert request.age_s < 5


def test_what_ended_before_a_rank_was_last_seen_is_known(world: World) -> None:
    prefill, decode = world.rank("prefill"), world.rank("decode")
    decode.enter("decode.transfer", Request(ROOM, "mine", slot=1, poll=2))
    ended(world, prefill)
    waits(world, "decode.transfer", [decode], 8, alive=(prefill,))
    waits(world, "prefill.bootstrap", [prefill], 20)
    document = told(world)
    assert [found.code for found in document.findings] == ["PD142"]
    assert document.partial


def test_a_rank_that_hangs_is_told(world: World) -> None:
    prefill = world.rank("prefill")
    pair = [world.rank("decode", tp, tp_size=2) for tp in range(2)]
    for rank in pair:
        rank.enter("decode.transfer", Request(ROOM, "mine", slot=1, poll=2))
    waits(world, "decode.transfer", pair, 3, alive=(prefill,))
    pair[1].tap("decode.transfer").visit(pair[1].queues["decode.transfer"])
    pair[1].tap("decode.transfer").polled([request.poller for request in pair[1].queues["decode.transfer"]])
    pair[1].tap("decode.transfer").entering(0, bytes([2]), 1)
    waits(world, "prefill.bootstrap", [prefill], 20)
    problems = told(world).problems
    assert len(problems) == 2
    assert problems[1].endswith("it entered round 3 of decode.transfer, which it has not left")


@pytest.mark.parametrize("alive", [False, True])
def test_a_trace_saw_the_rank_alive_and_silent(world: World, alive: bool) -> None:
    """Then it hung or computed, and its request is as old as that; a dead one's recording ends where it ended.

    A loop that does not turn hears nothing: no message is lost, and a long forward is healthy.
    """
    prefill, decode = world.rank("prefill"), world.rank("decode")
    decode.enter("decode.transfer", Request(ROOM, "mine", slot=1, poll=2))
    waits(world, "decode.transfer", [decode], 3, alive=(prefill,))
    ended(world, prefill)
    waits(world, "prefill.bootstrap", [prefill], 20)
    document = told(world, taken=decode if alive else None)
    assert document.findings == ()
    [request] = document.requests
    assert (request.age_s > 20) is alive
    assert ("this side's loop has not turned for" in request.peer) is alive


def test_what_prefill_computes_is_not_in_recordings(world: World) -> None:
    prefill, decode = world.rank("prefill"), world.rank("decode")
    prefill.enter("prefill.bootstrap", Request(ROOM, "mine", poll=2))
    decode.enter("decode.transfer", Request(ROOM, "mine", slot=1, poll=2))
    world.round("prefill.bootstrap", [prefill], reduced=2, leaves=Action.MOVED)
    waits(world, "decode.transfer", [decode], 40, alive=(prefill,))
    document = told(world)
    assert document.findings == ()
    [request] = document.requests
    assert request.peer.endswith("entered prefill.bootstrap; what it computes is not in recordings")


@pytest.mark.parametrize(("before_s", "codes"), [(40, ["PD143"]), (10, [])])
def test_a_room_that_never_came_while_the_other_side_was_seen(world: World, before_s: int, codes: list[str]) -> None:
    prefill, decode = world.rank("prefill"), world.rank("decode")
    decode.enter("decode.transfer", Request(ROOM, "mine", slot=1, poll=2))
    waits(world, "decode.transfer", [decode], before_s, alive=(prefill,))
    waits(world, "decode.transfer", [decode], 40)
    assert [found.code for found in told(world).findings] == codes


def test_a_recording_that_is_cut_off_is_said(world: World) -> None:
    decode = world.rank("decode")
    decode.enter("decode.transfer", Request(ROOM, "mine", slot=1, poll=2))
    waits(world, "decode.transfer", [decode], 3)
    [problem] = told(world, cut=100_000).problems
    assert problem.startswith("decode dp0 pp0 tp0: recording: cut off: 100000 of ")


@pytest.mark.parametrize(("rid", "codes"), [("first", ["PD147"]), ("mine", [])])
def test_a_room_that_another_request_had_before(world: World, rid: str, codes: list[str]) -> None:
    """A request that comes into its queue again, by its own id, is the same one."""
    prefill, decode = world.rank("prefill"), world.rank("decode")
    decode.enter("decode.prealloc", Request(ROOM, rid))
    decode.event(EventKind.STATE, room=ROOM, a=0)
    decode.queues["decode.prealloc"] = []
    world.wait(30_000)
    mine = Request(ROOM, "mine", slot=1, poll=2)
    decode.event(EventKind.STATE, room=ROOM, a=1)
    decode.enter("decode.prealloc", mine)
    prefill.enter("prefill.bootstrap", Request(ROOM, "mine"))
    world.round("decode.prealloc", [decode], reduced=2, leaves=Action.MOVED)
    decode.enter("decode.transfer", mine)
    for _ in range(12):
        world.round("prefill.bootstrap", [prefill], reduced=1)
        waits(world, "decode.transfer", [decode], 1, alive=(prefill,))
    document = told(world)
    assert [found.code for found in document.findings] == codes
    if codes:
        [found] = document.findings
        assert "was that of request first 41." in found.summary
        assert found.summary.endswith("which ended there as Failed.")
