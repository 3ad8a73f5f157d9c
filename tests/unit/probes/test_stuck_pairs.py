"""Two pairs of servers have one room: who waits is told of by its own pair."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import msgspec
import pytest

from pdctl.probes.routing import addresses
from pdctl.probes.routing.addresses import is_named
from pdctl.probes.stuck.collect import _missing
from pdctl.probes.stuck.model import RankLooks, StuckDocument
from pdctl.protocol.model import KVPoll
from pdctl.protocol.rank import FoundRank
from pdctl.protocol.requests import RoomEntry
from tests.unit.probes.test_stuck_judge import entry, look, result

HERE, THERE = "10.0.0.1:30300", "10.0.0.2:30300"
PREFILL = entry("prefill.bootstrap", state=KVPoll.BOOTSTRAPPING, bootstrap=HERE)
DECODE = entry("decode.transfer", bootstrap=HERE)


def of_other(one: RoomEntry, rid: str = "other") -> RoomEntry:
    return msgspec.structs.replace(one, bootstrap=THERE, rid=rid)


def other(one: RankLooks) -> RankLooks:
    """A rank of another server."""
    who = msgspec.structs.replace(one.identity, service=f"{one.identity.role} other", instance="other/2")
    return replace(one, identity=who)


BESIDE = other(look("prefill", of_other(entry("prefill.bootstrap", 8, state=KVPoll.BOOTSTRAPPING), rid="r8")))
"""Another prefill server, whose bootstrap server its requests name."""


def peers_of_7(document: StuckDocument) -> set[str]:
    return {one.peer_is for one in document.requests if one.room == 7}


def test_what_another_pair_has_is_no_witness() -> None:
    document = result(look("prefill", PREFILL), other(look("decode", of_other(DECODE))), BESIDE)
    found = {(found.code, found.group) for found in document.findings if 7 in found.rooms}
    assert found == {("PD143", "prefill dp0 pp0 of prefill"), ("PD143", "decode dp0 pp0")}
    assert peers_of_7(document) == {"never"}


@pytest.mark.parametrize(("address", "rid"), [(HERE, "x"), ("", "x"), (THERE, "r7"), ("10.0.0.3:30300", "x")])
def test_twin_the_other_side_may_have_it(address: str, rid: str) -> None:
    """Also where decode is told of a bootstrap server that nobody knows: a router may do that."""
    there = msgspec.structs.replace(DECODE, rid=rid, bootstrap=address)
    document = result(look("prefill", PREFILL), look("decode", there), BESIDE)
    assert next(one.peer_is for one in document.requests if (one.room, one.role) == (7, "prefill")) == "here"


def test_each_pair_has_its_own() -> None:
    looks = (
        look("prefill", PREFILL),
        look("decode", DECODE),
        other(look("prefill", of_other(PREFILL))),
        other(look("decode", of_other(DECODE))),
    )
    document = result(*looks)
    assert document.findings == ()
    for request in document.requests:
        assert (" of " in request.peer, "other" in request.peer, ";" in request.peer) == (
            True,
            request.rid == "other",
            False,
        )


def test_another_pair_that_gets_on_hides_nothing() -> None:
    sent = entry("prefill.inflight", bootstrap=HERE)
    taken = entry("decode.transfer", state=KVPoll.TRANSFERRING, bootstrap=HERE)
    moved = other(look("decode", of_other(taken), before=(of_other(DECODE),)))
    findings = result(look("prefill", sent), look("decode", taken), moved, BESIDE).findings
    [found] = [one for one in findings if "prefill" in one.group and 7 in one.rooms]
    assert (found.code, found.rooms) == ("PD141", (7,))


def test_recordings_are_asked_of_what_another_pair_alone_has() -> None:
    def missing(*looks: RankLooks) -> dict[str, frozenset[int]]:
        return _missing([FoundRank(one.identity, "live") for one in looks], [one.second for one in looks])

    here, there = look("prefill", PREFILL), other(look("decode", of_other(DECODE)))
    assert missing(here, there) == {"prefill": {7}, "decode": {7}}
    assert missing(here, look("decode", DECODE), there) == {"prefill": {7}, "decode": frozenset()}
    assert missing(here, look("decode", DECODE)) == {"prefill": frozenset(), "decode": frozenset()}
    far = look("decode", DECODE)
    elsewhere = replace(far, identity=msgspec.structs.replace(far.identity, cluster="other"))
    assert missing(here, elsewhere) == {"prefill": {7}, "decode": {7}}


def test_many_requests_of_one_room_are_looked_up_and_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def counted(address: str) -> bool:
        nonlocal asked
        asked += 1
        return is_named(address)

    monkeypatch.setattr(addresses, "is_named", counted)
    sides = [{(f"r{n}", f"{host}:{n}") for n in range(300)} for host in ("10.0.0.1", "10.0.0.2")]
    assert not addresses.is_none_of(*sides)
    assert addresses.is_none_of(sides[0], sides[1] | {("x", "10.0.0.3:1")})
    assert 0 < asked < 3000


def steps(looks: list[RankLooks]) -> int:
    """Return how many bytecodes the judge executes: a number that no busy machine changes."""
    count = 0

    def counted(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += 1
        return counted

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        result(*looks)
    finally:
        sys.settrace(before)
    return count


def test_the_work_grows_with_the_requests_of_one_room_and_not_with_their_square() -> None:
    def pairs(requests: int) -> list[RankLooks]:
        looks = []
        for tp in (0, 1):
            waits = [entry("prefill.bootstrap", state=KVPoll(1 + tp), bootstrap=HERE) for _ in range(requests)]
            sent = [
                entry("decode.transfer", state=KVPoll(2 + tp), age_s=400.0, bootstrap=HERE) for _ in range(requests)
            ]
            for role, those in (("prefill", waits), ("decode", sent)):
                own = [msgspec.structs.replace(one, rid=f"r{n}") for n, one in enumerate(those)]
                looks.append(look(role, *own, tp=tp))
                looks.append(other(look(role, *(of_other(one, f"s{n}") for n, one in enumerate(own)), tp=tp)))
        return looks

    steps(pairs(2))  # what is loaded and compiled at the first time
    assert steps(pairs(120)) < 6 * steps(pairs(30))
