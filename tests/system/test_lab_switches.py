"""Every ``--without`` switch: what the engine does with the fix and without it. (The gate itself: test_lab.py.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pdctl.lab.config import FIXES
from pdctl.protocol.model import Action, EventKind
from tests.support.labs import Lab, Labs
from tests.support.patience import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]  # the machine may be busy

TP0, TP1 = "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"
FOLLOW = ("--prefill", "dp=2,pp=2", "--decode", "tp=2", "--slots", "1")
QUERY = ("--prefill", "dp=2", "--decode", "tp=2", "--force-query", "prefill,decode")


@pytest.fixture(scope="module")
def follow() -> Iterator[Lab]:
    """A lab with every fix whose rooms follow ``room % dp_size``."""
    with Labs() as labs:
        yield labs.up(*FOLLOW)


@pytest.fixture(scope="module")
def query() -> Iterator[Lab]:
    """A lab with every fix whose decode ranks ask the bootstrap server."""
    with Labs() as labs:
        yield labs.up(*QUERY)


@pytest.fixture
def without() -> Iterator[Callable[..., Lab]]:
    """Starts a lab without one fix."""
    with Labs() as labs:
        yield lambda fix, *options: labs.up("--without", fix, *options)


def late_metadata_lands(lab: Lab) -> bool:
    assert lab.load(requests=8).good  # the gate holds, so that all complete
    return bool(lab.events(TP1, EventKind.LANDED))


def test_metadata_sync(follow: Lab, without: Callable[..., Lab]) -> None:
    assert not late_metadata_lands(follow)
    assert late_metadata_lands(without("metadata-sync"))


def room_nobody_registers(lab: Lab) -> dict[str, list[int]]:
    """Send a room to decode alone and return tp0's queues when it is there."""
    lab.load(requests=1, seconds=0.5, to="decode", room=4_000_001)
    until("pending requests on both ranks", lambda: all(lab.queues()[rank]["decode.pending"] for rank in (TP0, TP1)))
    return lab.queues()[TP0]


def test_receiver(query: Lab, without: Callable[..., Lab]) -> None:
    with_fix = room_nobody_registers(query)
    assert (with_fix["decode.pending"], with_fix["decode.prealloc"]) == ([4_000_001], [4_000_001])
    # The old life cycle: on no queue that is polled before this very rank has been told.
    bug = room_nobody_registers(without("receiver", *QUERY))
    assert (bug["decode.pending"], bug["decode.prealloc"]) == ([4_000_001], [])


def test_dp_registration(follow: Lab, without: Callable[..., Lab]) -> None:
    conflict = {"requests": 1, "room": 7, "prefill_dp": 0}
    outcome = follow.load(**conflict)
    assert outcome.failed == 1
    [error] = outcome.errors
    assert "dispatched to dp_rank 0" in error
    assert "implies dp_rank 1" in error
    lab = without("dp-registration", *FOLLOW)
    assert lab.load(**conflict, seconds=2).unfinished == 1
    until(
        "the room where it was dispatched, and nobody asks for it",
        lambda: lab.queues()["prefill dp0 pp0 tp0"]["prefill.bootstrap"] == [7],
    )
    until("decode, which has asked dp 1", lambda: lab.queues()[TP0]["decode.transfer"] == [7])


def orphans(lab: Lab) -> tuple[list[int], list[int]]:
    """Abort a room in prefill.bootstrap; returns that queue on the first stage and on the second, when settled."""
    lab.load(requests=1, seconds=3, to="prefill", room=6, abort_after_s=0.5)
    until("an empty bootstrap queue", lambda: not lab.queues()["prefill dp0 pp0 tp0"]["prefill.bootstrap"])
    until("the abort on prefill pp1", lambda: lab.events("prefill dp0 pp1 tp0", EventKind.ABORT))
    seen = lab.recording("prefill dp0 pp1 tp0").ticks
    until("five more ticks of prefill pp1", lambda: lab.recording("prefill dp0 pp1 tp0").ticks > seen + 5)
    queues = lab.queues()
    return queues["prefill dp0 pp0 tp0"]["prefill.bootstrap"], queues["prefill dp0 pp1 tp0"]["prefill.bootstrap"]


def test_orphan_drain(follow: Lab, without: Callable[..., Lab]) -> None:
    assert orphans(follow) == ([], [])
    assert orphans(without("orphan-drain", *FOLLOW)) == ([], [6])


def late_row_in_a_used_slot(lab: Lab) -> list[tuple[int, int | None]]:
    """Use the only slot twice, the second time with late metadata on tp1; returns (action, room found) of tp1's last."""
    assert lab.load(requests=1, room=100).good
    lab.inject_late_metadata("--room", 102)
    lab.load(requests=1, room=102, seconds=6)
    until(
        "the end of room 102",
        lambda: any(i.room == 102 and i.action in (Action.COMMITTED, Action.ABORTED) for i in transfers(lab)),
    )
    return [(i.action, i.found) for i in transfers(lab) if i.room == 102 and i.action != Action.KEPT]


def transfers(lab: Lab) -> list:
    return lab.items(TP1, "decode.transfer")


def test_zero_on_free(follow: Lab, without: Callable[..., Lab]) -> None:
    assert late_row_in_a_used_slot(follow) == [(Action.COMMITTED, 102)]
    # The gate only knows 0: the room of the slot's previous owner passes, and tp1 alone aborts.
    assert late_row_in_a_used_slot(without("zero-on-free", *FOLLOW)) == [(Action.ABORTED, 100)]


def test_register_every_room(query: Lab, without: Callable[..., Lab]) -> None:
    agreeing = {"requests": 1, "room": 6, "prefill_dp": 0}
    assert query.load(**agreeing).good
    lab = without("register-every-room", *QUERY)
    assert lab.load(requests=1, room=7, prefill_dp=0).good, "a room that conflicts is registered"
    assert lab.load(**agreeing, seconds=2).unfinished == 1
    until("a room that nobody registers", lambda: lab.queues()[TP0]["decode.pending"] == [6])


def test_every_fix_has_a_test() -> None:
    tested = {name.removeprefix("test_").replace("_", "-") for name in globals() if name.startswith("test_")}
    elsewhere = {"gate", "aborts", "transfer-drain"}
    assert set(FIXES) - elsewhere <= tested, "those have modules of their own"
