"""Every kind of fault at its site in a lab, placed on the rank by wire: what breaks, and that it heals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from pdctl.faults import kinds
from pdctl.faults.fault import AimedRank
from pdctl.faults.messages import FaultsBody, HealArgs, HealBody, InjectArgs, InjectBody, RenewArgs, RenewBody
from pdctl.lab.client import Client, Load
from pdctl.protocol.model import Action, EventKind, FaultStatus, KVPoll
from pdctl.targets.client import Client as AgentClient
from pdctl.targets.find import FoundRank, discover
from pdctl.targets.places import parse_places
from tests.support.labs import Lab, Labs
from tests.support.patience import patience, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]  # the machine may be busy

PREFILL, TP0, TP1 = "prefill dp0 pp0 tp0", "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"
DECODE_QUEUES = ("decode.prealloc", "decode.transfer")
SHORT_S = 1.5
"""How long a load waits for what must not come; too short only makes the test weaker."""

rooms = itertools.count(7_000_002, 2)


class Placed:
    """A fault placed on one rank until it is healed."""

    def __init__(self, lab: Lab, label: str, kind: str, *, aimed_at: int | None = None, **more: Any) -> None:
        self._lab, self._label, self.id = lab, label, f"test-{next(rooms)}"
        targets = (AimedRank() if aimed_at is None else AimedRank(dp=0, tp=aimed_at),)
        args = InjectArgs(id=self.id, kind=kind, target="test", targets=targets, ttl_s=600, **more)
        self._ask("inject", InjectBody, args)
        self._ask("renew", RenewBody, RenewArgs(self.id, 0))

    def __enter__(self) -> Placed:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()

    def _rank(self) -> FoundRank:
        found = discover(parse_places(self._lab.labs.env)).ranks
        return next(r for r in found if r.identity.cluster == self._lab.name and r.identity.label == self._label)

    def _ask(self, op: str, kind: type[Any], args: msgspec.Struct | None = None) -> Any:
        with AgentClient(timeout_s=60, rank_timeout_s=60) as client:
            answer = client.ask([self._rank()], op, kind, None if args is None else msgspec.to_builtins(args))[0]
        assert answer.body is not None, f"{op}: {answer}"
        return answer.body

    def heal(self) -> None:
        self._ask("heal", HealBody, HealArgs(self.id))

    def now(self) -> FaultStatus:
        body = self._ask("faults", FaultsBody)
        return next(fault for fault in (*body.left, *reversed(body.past)) if fault.id == self.id)


def waits(lab: Lab, room: int, queue: str, *labels: str) -> Any:
    def there() -> bool:
        queues = lab.queues()
        return all(room in queues[label][queue] for label in labels)

    return until("the room in that queue of all of them", there)


def committed(lab: Lab, room: int, *labels: str) -> None:
    for label in labels:
        until("the commit of the room", lambda label=label: (room, Action.COMMITTED) in ends(lab, label))


def ends(lab: Lab, label: str, queue: str = "decode.transfer") -> list[tuple[int, int]]:
    return [(item.room, item.action) for item in lab.items(label, queue) if item.action != Action.KEPT]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A lab with every fix, one prefill rank and two decode ranks."""
    with Labs() as labs:
        yield labs.up("--prefill", "tp=1", "--decode", "tp=2")


@pytest.fixture(scope="module")
def single() -> Iterator[Lab]:
    """A lab whose decode server has one rank, so that what only one rank aborts does no harm to another."""
    with Labs() as labs:
        yield labs.up("--prefill", "tp=1", "--decode", "tp=1")


@pytest.fixture(scope="module")
def query() -> Iterator[Lab]:
    """A lab whose decode ranks ask the bootstrap server for every room."""
    with Labs() as labs:
        yield labs.up("--prefill", "dp=2", "--decode", "tp=2", "--force-query", "prefill,decode")


@pytest.fixture(scope="module")
def beating() -> Iterator[Lab]:
    """A lab whose decode ranks ask often whether prefill is there, and are patient."""
    with Labs() as labs:
        yield labs.up("--decode", "tp=2", "--heartbeat", "0.2s", "--heartbeat-failures", 3)


@pytest.mark.parametrize(
    ("kind", "delay_s", "tp1_state"),
    [
        (kinds.DELAY_METADATA, 500.0, KVPoll.SUCCESS),
        (kinds.DROP_METADATA, 0.0, KVPoll.SUCCESS),
        (kinds.STALL_TRANSFER, 500.0, KVPoll.WAITING_FOR_INPUT),
        (kinds.DROP_STATUS, 0.0, KVPoll.WAITING_FOR_INPUT),
    ],
)
def test_what_is_held_keeps_the_room_and_comes_when_it_is_healed(
    lab: Lab, kind: str, delay_s: float, tp1_state: KVPoll
) -> None:
    room = next(rooms)
    with Placed(lab, PREFILL, kind, aimed_at=1, room=room, delay_s=delay_s) as fault:
        assert lab.load(requests=1, room=room, seconds=patience(SHORT_S)).unfinished == 1
        waits(lab, room, "decode.transfer", TP0, TP1)
        until(
            "the success of the room on decode tp0 alone",
            lambda: (
                [[i.local for i in lab.items(label, "decode.transfer") if i.room == room][-1] for label in (TP0, TP1)]
                == [KVPoll.SUCCESS, tp1_state]
            ),
        )
        assert (fault.now().fired, fault.now().pending) == (1, 1)
        assert lab.load(requests=4).good, "other rooms pass"
    committed(lab, room, TP0, TP1)
    assert until("the release of what was held", lambda: fault.now().released) == 1


@pytest.mark.parametrize(
    ("kind", "value"), [(kinds.STALE_METADATA, 4242), (kinds.STALE_METADATA, 0), (kinds.CORRUPT_ROOM, 0)]
)
def test_the_row_holds_another_room(single: Lab, kind: str, value: int) -> None:
    before, room = next(rooms), next(rooms)
    assert single.load(requests=1, room=before).good
    with Placed(single, PREFILL, kind, aimed_at=0, room=room, value=value) as fault:
        outcome = single.load(requests=1, room=room)
        assert outcome.failed == 1
        assert "bootstrap_room mismatch" in next(iter(outcome.errors))
        assert fault.now().fired == 1
        [found] = until(  # the client is answered before the round is over
            "the room's end",
            lambda: [
                i.found for i in single.items(TP0, "decode.transfer") if i.room == room and i.action != Action.KEPT
            ],
        )
        assert found not in (0, room)
        if kind == kinds.STALE_METADATA:
            assert found == (value or before)
    assert single.load(requests=4).good


def test_a_failed_transfer_fails_its_room_alone(lab: Lab) -> None:
    room = next(rooms)
    with Placed(lab, PREFILL, kinds.FAIL_TRANSFER, aimed_at=1, room=room) as fault:
        outcome = lab.load(requests=1, room=room)
        assert (outcome.failed, fault.now().fired) == (1, 1)
        assert lab.load(requests=4).good, "the session goes on"
    for label in (TP0, TP1):
        assert (room, Action.FAILED) in ends(lab, label)
    assert (room, Action.FAILED) in ends(lab, PREFILL, "prefill.inflight")


def test_a_late_poll(lab: Lab) -> None:
    with Placed(lab, TP1, kinds.SKEW_POLL, delay_s=0.2) as fault:
        outcome = lab.load(requests=1, room=next(rooms))
        assert outcome.good
        assert outcome.latency_max_s is not None
        assert outcome.latency_max_s >= 0.2  # it sleeps that long at least
        assert fault.now().fired > 1
    assert lab.load(requests=4).good


def test_a_poll_that_says_another_state(lab: Lab) -> None:
    room = next(rooms)
    with Placed(lab, TP1, kinds.FLIP_POLL, room=room, value=KVPoll.TRANSFERRING):
        assert lab.load(requests=1, room=room, seconds=patience(SHORT_S)).unfinished == 1
        waits(lab, room, "decode.transfer", TP0, TP1)

        def seen(label: str) -> set[tuple[int, int]]:
            found = [i for i in lab.items(label, "decode.transfer") if i.room == room]
            return {(i.local, i.reduced) for i in found}

        until("a success that decode tp0 alone sees", lambda: (KVPoll.SUCCESS, KVPoll.TRANSFERRING) in seen(TP0))
        assert {local for local, _ in seen(TP1)} == {KVPoll.TRANSFERRING}
    committed(lab, room, TP0, TP1)


def test_a_state_that_the_engine_does_not_expect_is_not_said(lab: Lab) -> None:
    """Success during the handshake would end the rank with "Unexpected poll case"."""
    room = next(rooms)
    with Placed(lab, TP1, kinds.FLIP_POLL, room=room, value=KVPoll.SUCCESS) as fault:
        assert lab.load(requests=1, room=room).good
        assert fault.now().fired > 0
    for queue, said in (("decode.prealloc", False), ("decode.transfer", True)):
        local = {item.local for item in lab.items(TP1, queue) if item.room == room}
        assert (KVPoll.SUCCESS in local) == said, queue


@pytest.mark.parametrize("label", [TP1, PREFILL])
def test_the_engine_aborts_a_room_on_one_rank(lab: Lab, label: str) -> None:
    room = next(rooms)
    with Placed(lab, label, kinds.ABORT, room=room) as fault:
        outcome = lab.load(requests=1, room=room, seconds=patience(60 if label == TP1 else SHORT_S))
        assert outcome.completed == 0
        until("the hit", lambda: fault.now().fired == 1)
        if label == TP1:
            assert outcome.failed == 1
            reduced = {i.reduced for i in lab.items(TP0, "decode.prealloc") if i.room == room}
            reduced |= {i.reduced for i in lab.items(TP0, "decode.transfer") if i.room == room}
            assert KVPoll.FAILED in reduced, "tp1's abort is every rank's"
        else:
            until(
                "its end in a queue of prefill",
                lambda: (
                    (room, Action.FAILED)
                    in ends(lab, PREFILL, "prefill.bootstrap") + ends(lab, PREFILL, "prefill.inflight")
                ),
            )


def test_a_late_registration(query: Lab) -> None:
    room = next(rooms)
    with Placed(query, PREFILL, kinds.DELAY_REGISTRATION, room=room, delay_s=500.0) as fault:
        assert query.load(requests=1, room=room, prefill_dp=0, seconds=patience(SHORT_S)).unfinished == 1
        waits(query, room, "decode.pending", TP0, TP1)
        assert (fault.now().fired, fault.now().pending) == (1, 1)
        assert room not in [event.room for event in query.events(PREFILL, EventKind.DP_REGISTER)]
    committed(query, room, TP0, TP1)
    assert room in [event.room for event in query.events(PREFILL, EventKind.DP_REGISTER)]


def test_a_registration_that_one_rank_is_not_told(query: Lab) -> None:
    room = next(rooms)
    with Placed(query, TP1, kinds.HIDE_REGISTRATION, room=room) as fault:
        assert query.load(requests=1, room=room, prefill_dp=0, seconds=patience(SHORT_S)).unfinished == 1
        waits(query, room, "decode.pending", TP1)
        until("an answer to decode tp0", lambda: room not in query.queues()[TP0]["decode.pending"])
        assert fault.now().fired > 0
        answers = {
            label: [e.a for e in query.events(label, EventKind.DP_ANSWER) if e.room == room] for label in (TP0, TP1)
        }
        assert answers[TP0][-1] == 0
        assert answers[TP1] == [-1]
    committed(query, room, TP0, TP1)


def test_a_room_registered_under_another_dp_rank(query: Lab) -> None:
    room = next(rooms)
    with Placed(query, PREFILL, kinds.MISROUTE, room=room, value=1) as fault:
        outcome = query.load(
            requests=1, room=room, prefill_dp=0, seconds=patience(2 * SHORT_S), abort_after_s=patience(SHORT_S)
        )
        assert outcome.completed == 0
        assert fault.now().fired == 1
    assert [e.a for e in query.events(PREFILL, EventKind.DP_REGISTER) if e.room == room] == [1]
    assert [e.a for e in query.events(TP1, EventKind.DP_ANSWER) if e.room == room][-1] == 1


def test_heartbeats_without_an_answer_fail_the_rooms_of_their_prefill(beating: Lab) -> None:
    room = next(rooms)
    with Placed(beating, TP1, kinds.SILENCE_HEARTBEAT, delay_s=500.0) as fault:
        # Prefill never hears of this room, so nothing but the heartbeats can end it.
        outcome = beating.load(requests=1, room=room, to="decode")
        assert outcome.failed == 1
        assert "on another rank" in next(iter(outcome.errors))
        assert fault.now().fired >= 3
    assert "Losing connection with prefill instance" in (beating.folder / "decode-dp0-pp0-tp1.log").read_text()
    for label in (TP0, TP1):
        reduced = {i.reduced for queue in DECODE_QUEUES for i in beating.items(label, queue) if i.room == room}
        assert KVPoll.FAILED in reduced, label
        gave_up = [e.room for e in beating.events(label, EventKind.STATE) if e.a == KVPoll.FAILED]
        assert (room in gave_up) == (label == TP1), "only tp1's own heartbeats were lost"
    assert beating.load(requests=8).good, "it finds its prefill again"


def test_a_silence_ends_with_its_duration(beating: Lab) -> None:
    assert beating.load(requests=1).good  # a rank sends no heartbeat before it knows a prefill
    with Placed(beating, TP1, kinds.SILENCE_HEARTBEAT, delay_s=0.01) as fault:
        until("the end of the fault", lambda: fault.now().ended)
        assert (fault.now().ended, fault.now().fired) == ("its duration is over", 1)
        room = next(rooms)
        waiting = beating.load(requests=1, room=room, to="decode", seconds=patience(SHORT_S))
        assert waiting.unfinished == 1, "one missed heartbeat is none too many"
        client = Client(beating.config, Load(requests=1, room=room, to="prefill", prefill_dp=0))
        try:
            client.send()  # nobody tells its sender that prefill is done: the commit shows it
            committed(beating, room, TP0, TP1)
        finally:
            client.close()


@pytest.mark.parametrize("named", [False, True])
def test_a_request_with_the_room_of_an_earlier_one_on_decode(lab: Lab, named: bool) -> None:
    """Both decode ranks give the request the earlier one's room, so its prefill waits for addresses in vain."""
    earlier, room = next(rooms), next(rooms)
    value = earlier if named else 0
    with (
        lab.waiting(earlier, "decode"),
        Placed(lab, TP0, kinds.DUPLICATE_ROOM, room=room, value=value) as first,
        Placed(lab, TP1, kinds.DUPLICATE_ROOM, room=room, value=value) as second,
    ):
        waits(lab, earlier, "decode.transfer", TP0, TP1)
        with lab.waiting(room, "both"):
            waits(lab, room, "prefill.bootstrap", PREFILL)
            for label in (TP0, TP1):
                until(
                    "both requests of the room in transfer",
                    lambda label=label: lab.queues()[label]["decode.transfer"] == [earlier, earlier],
                )
            assert (first.now().fired, second.now().fired) == (1, 1)
    # The abort of one is an abort of the other: what both have is the status of their room.
    for label in (TP0, TP1):
        until("the failure of both requests", lambda label=label: ends(lab, label).count((earlier, Action.FAILED)) == 2)
    assert lab.load(requests=4).good


def test_a_request_with_the_room_of_an_earlier_one_on_prefill(lab: Lab) -> None:
    earlier, room = next(rooms), next(rooms)
    with lab.waiting(earlier, "prefill"):
        waits(lab, earlier, "prefill.bootstrap", PREFILL)  # before the fault, which acts on what comes
        with Placed(lab, PREFILL, kinds.DUPLICATE_ROOM, hits=1) as fault, lab.waiting(room, "both"):
            until(
                "both requests of the room at prefill",
                lambda: lab.queues()[PREFILL]["prefill.bootstrap"] == [earlier, earlier],
            )
            waits(lab, room, "decode.transfer", TP0, TP1)
            assert (fault.now().fired, fault.now().last_room) == (1, room)
            assert until("the end of the fault", lambda: fault.now().ended) == "hit count reached"
    for label in (TP0, TP1):
        until("the failure of the room", lambda label=label: (room, Action.FAILED) in ends(lab, label))
    assert lab.load(requests=4).good


def test_a_room_is_not_duplicated_where_none_is_there(single: Lab) -> None:
    with Placed(single, TP0, kinds.DUPLICATE_ROOM) as fault:
        assert single.load(requests=1).good
        assert (fault.now().eligible, fault.now().fired) == (1, 0)


def test_every_kind_has_a_test() -> None:
    source = open(__file__).read()  # noqa: PTH123, SIM115
    for name, kind in vars(kinds).items():
        if isinstance(kind, str) and kind in kinds.KINDS:
            assert f"kinds.{name}" in source, kind
