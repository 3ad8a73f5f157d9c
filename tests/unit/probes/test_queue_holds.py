"""What the metadata gate holds: for a moment it is the fix at work, for long it is metadata that does not come."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.probes.queues.compare import Comparison
from pdctl.probes.queues.judge import judge as judge_whole
from pdctl.probes.queues.model import RankView
from pdctl.protocol.model import EventKind
from pdctl.recording.reader import parse
from pdctl.report.findings import Finding, Level
from tests.support.excerpted import judge
from tests.support.story_world import Rank, Request, World

ROOM = 7


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def decode(world: World, *, landed: tuple[bool, bool]) -> list[Rank]:
    """Two decode ranks with a request whose transfer is complete. landed: whether its metadata is there, on each."""
    ranks = [world.rank("decode", tp, tp_size=2) for tp in range(2)]
    for rank, there in zip(ranks, landed, strict=True):
        rank.enter("decode.transfer", Request(ROOM, "mine", slot=3, poll=4, there=there))
    return ranks


def holds(world: World, ranks: list[Rank], seconds: int, *, busy: bool = False) -> None:
    """Rounds over so many seconds in which the gate holds it. busy: another request comes or goes in every one."""
    for n in range(seconds):
        for rank in ranks:
            if busy and n % 2:
                rank.queues["decode.transfer"].pop()
            elif busy:
                rank.enter("decode.transfer", Request(100 + n, str(n), slot=4, poll=2))
        world.round("decode.transfer", ranks, reduced=3, gate=True)
        world.wait(1000)


def findings(world: World) -> tuple[Finding, ...]:
    views = [
        RankView(rank.identity, "recorded", recording=parse(world.data(rank)), now_ns=rank.now())
        for rank in world.ranks
    ]
    return judge(views).findings


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(
    ("landed", "where"), [((False, False), "on every rank (tp0 and tp1)"), ((True, False), "on tp1 only")]
)
def test_a_hold_that_lasts_is_a_finding(world: World, landed: tuple[bool, bool], where: str, busy: bool) -> None:
    holds(world, decode(world, landed=landed), 80, busy=busy)
    [found] = findings(world)
    assert (found.code, found.level, found.rooms) == ("PD148", Level.WARNING, (ROOM,))
    assert found.summary.startswith(f"room {ROOM} has been held by the gate {where} for 79")
    assert "(80 rounds)" in found.summary
    assert "Abort the request" in found.next_step


def test_a_short_hold_is_the_fix_at_work(world: World) -> None:
    holds(world, decode(world, landed=(False, False)), 25, busy=True)
    [found] = findings(world)
    assert (found.code, found.level, found.rooms) == ("PD102", Level.INFO, (ROOM,))


def test_a_hold_that_is_over_is_nothing(world: World) -> None:
    ranks = decode(world, landed=(False, False))
    holds(world, ranks, 40)
    for rank in ranks:
        rank.queues["decode.transfer"][0].there = True
    world.round("decode.transfer", ranks, reduced=4)
    assert findings(world) == ()


def test_prefill_says_whether_it_wrote_the_metadata(world: World) -> None:
    prefill = world.rank("prefill")
    ranks = decode(world, landed=(False, False))
    holds(world, ranks, 40)
    assert "no recording of a prefill rank has a write of it" in findings(world)[0].evidence
    prefill.event(EventKind.META_SENT, room=ROOM, slot=3, a=1, b=-1)
    assert "prefill dp0 pp0 tp0 wrote room 7 to decode tp1, slot 3: it returned -1" in findings(world)[0].evidence


def test_of_a_room_that_two_decode_servers_have_it_is_not_told_whose_a_write_is(world: World) -> None:
    prefill = world.rank("prefill")
    ranks = decode(world, landed=(False, False))
    other = world.rank("decode", service="other:30000", instance="other")
    other.enter("decode.transfer", Request(8, "theirs", slot=3, poll=4, there=True))
    holds(world, ranks, 40)
    prefill.event(EventKind.META_SENT, room=ROOM, slot=3, a=1, b=0)
    wrote = "prefill dp0 pp0 tp0 wrote room 7 to decode tp1, slot 3: it returned 0"
    assert wrote in findings(world)[0].evidence
    other.enter("decode.transfer", Request(ROOM, "theirs", slot=3, poll=4, there=True))
    for n in range(200):
        other.event(EventKind.STATE, room=1000 + n, a=4)
    assert f"{wrote} (here, or to another decode server that has this room)" in findings(world)[0].evidence


@pytest.mark.parametrize(("silence", "verdict"), [("", "HELD"), ("no answer within 2 s", "UNKNOWN")])
def test_a_group_in_which_a_member_was_not_heard_is_not_well_because_the_gate_holds(
    world: World, silence: str, verdict: str
) -> None:
    ranks = decode(world, landed=(False, True))
    holds(world, ranks, 5)
    views = [
        RankView(rank.identity, "live", recording=parse(world.data(rank)), now_ns=rank.now(), silence=how)
        for rank, how in zip(ranks, ("", silence), strict=True)
    ]
    document = judge(views)
    assert [group.verdict for group in document.groups] == [verdict]
    assert [found.code for found in document.findings] == ["PD102"]  # what it holds is true all the same


@pytest.mark.parametrize(("gap", "verdict"), [("", "AGREE"), ("the recordings have no round in common", "UNKNOWN")])
def test_ranks_whose_rounds_could_not_be_compared_do_not_agree(
    world: World, monkeypatch: pytest.MonkeyPatch, gap: str, verdict: str
) -> None:
    ranks = decode(world, landed=(True, True))
    world.round("decode.transfer", ranks, reduced=2)
    monkeypatch.setattr("pdctl.probes.queues.judge.compare", lambda _: Comparison(0, 0 if not gap else -1, gap=gap))
    views = [RankView(one.identity, "live", recording=parse(world.data(one)), now_ns=one.now()) for one in ranks]
    document = judge_whole(views)
    assert ([group.verdict for group in document.groups], document.partial) == ([verdict], bool(gap))
