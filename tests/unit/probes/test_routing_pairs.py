"""Two pairs of servers have one room: each is judged by what is its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest

from pdctl.probes.routing import pairs, sides
from pdctl.probes.routing.addresses import is_another
from pdctl.probes.routing.facts import Ranks
from pdctl.probes.routing.judge import judge
from pdctl.probes.routing.model import Fault, Look, RankView
from pdctl.protocol.model import EventKind, KVPoll
from pdctl.protocol.requests import Lookup, RoomEntry, RoomTable
from tests.unit.probes.test_routing_judge import (
    ADDRESS,
    BALANCED,
    OTHER_ADDRESS,
    WITH_HOLE,
    codes,
    decode,
    entry,
    event,
    forced,
    of_another,
    prefill,
    server,
    unregistered,
    waits,
)


def held(dp: int, ago_s: float = 1.0, rid: str = "") -> RankView:
    """A prefill rank that has the room and registered it."""
    registered = event(EventKind.DP_REGISTER, ago_s, dp)
    return prefill(dp, entry("prefill.bootstrap", rid=rid), balance=BALANCED, events=(registered,))


class Case(NamedTuple):
    """Servers of one pair of which something is wrong, and of one that is well, each with what its bootstrap server has.

    half: what one pair's prefill has, and another pair's decode, of which nothing is wrong.
    """

    wrong: list[RankView]
    wrong_at: dict[int, int]
    well: list[RankView]
    well_at: dict[int, int]
    half: tuple[list[RankView], list[RankView]]
    half_at: tuple[dict[int, int], dict[int, int]] = ({}, {})
    group: str = "prefill {0} > decode {0}"


def told(dp: int) -> RankView:
    return decode(0, waits(dp), follow=False)


_FORCED = [prefill(0, entry("prefill.bootstrap", 6), force=True), decode(0, waits(0, 6), force=True)]
_ONE_SIDE = forced(WITH_HOLE, on=(False, True))
_TWICE = [held(0), held(1, rid="b"), told(0)]

CASES = {
    "PD122": Case(unregistered(), {}, [held(1), told(1)], {7: 1}, (unregistered()[:1], unregistered()[1:])),
    "PD123": Case(_ONE_SIDE, {}, _FORCED, {6: 0}, (_ONE_SIDE[:1], _ONE_SIDE[1:])),
    "PD124": Case(forced(WITH_HOLE), {}, _FORCED, {6: 0}, (forced(WITH_HOLE)[:1], forced(WITH_HOLE)[1:])),
    "PD125": Case([held(0), told(1)], {7: 1}, [held(1), told(1)], {7: 1}, ([held(0)], [told(1)]), ({}, {7: 1})),
    "PD126": Case(
        [held(1, 95.0), decode(0, follow=False)],
        {7: 1},
        [held(1), told(1)],
        {7: 1},
        ([held(1, 95.0)], [held(1)]),
        ({}, {7: 1}),
        group="prefill {0}",
    ),
    "PD127": Case(
        _TWICE, {7: 0}, [held(1), told(1)], {7: 1}, ([held(0)], [held(1)]), ({7: 0}, {7: 1}), "prefill prefill {0}"
    ),
}


def of_other(one: RankView) -> RankView:
    """The same rank of another pair of servers: other requests with the same rooms, and another bootstrap server."""
    assert one.rooms is not None
    entries = [
        msgspec.structs.replace(entry, bootstrap=OTHER_ADDRESS, rid=f"other {entry.rid}") for entry in one.rooms.rooms
    ]
    facts = dict.fromkeys([OTHER_ADDRESS], next(iter(one.rooms.prefills.values()), {}))
    rooms = msgspec.structs.replace(one.rooms, rooms=RoomTable.of(entries), prefills=facts)
    return of_another(replace(one, rooms=rooms))


def two(here: list[RankView], there: list[RankView], here_at: dict[int, int], there_at: dict[int, int]) -> Look:
    servers = {("", ADDRESS): server(here_at), ("", OTHER_ADDRESS): replace(server(there_at), address=OTHER_ADDRESS)}
    return Look((*map(of_other, there), *here), servers)


@pytest.mark.parametrize("code", CASES)
def test_of_two_pairs_with_one_room_the_one_that_is_wrong_is_named(code: str) -> None:
    case = CASES[code]
    beside = (
        two(case.well, case.wrong, case.well_at, case.wrong_at),
        two(case.wrong, case.well, case.wrong_at, case.well_at),
    )
    for given, pair in zip(beside, ("other", "here"), strict=True):
        [found] = judge(given).findings
        assert (found.code, found.group, len(found.rooms)) == (code, case.group.format(pair), 1)
        assert "3 requests" not in found.summary


@pytest.mark.parametrize("code", CASES)
def test_twin_two_pairs_with_one_room_are_well(code: str) -> None:
    case = CASES[code]
    assert codes(judge(two(case.well, case.well, case.well_at, case.well_at))) == []


@pytest.mark.parametrize("code", CASES)
def test_twin_prefill_of_one_pair_and_decode_of_another_are_no_pair(code: str) -> None:
    case = CASES[code]
    assert code not in codes(judge(two(*case.half, *case.half_at)))


def at(one: RankView, *addresses: str, host: str = "here", network: str = "") -> RankView:
    """The same rank, whose requests name other bootstrap servers, one each."""
    assert one.rooms is not None
    entries = [
        msgspec.structs.replace(entry, bootstrap=address)
        for entry, address in zip(one.rooms.rooms, addresses, strict=True)
    ]
    told = dict.fromkeys(addresses, next(iter(one.rooms.prefills.values()), {}))
    rooms = msgspec.structs.replace(one.rooms, rooms=RoomTable.of(entries), prefills=told)
    return replace(one, rooms=rooms, network=network, identity=msgspec.structs.replace(one.identity, host=host))


def test_two_prefill_servers_behind_one_router() -> None:
    both = at(decode(0, waits(0, rid="a"), waits(1, rid="b"), follow=False), ADDRESS, OTHER_ADDRESS)
    there = at(of_another(held(0, rid="b")), OTHER_ADDRESS)
    servers = {
        ("", ADDRESS): server({7: 0}),
        ("", OTHER_ADDRESS): replace(server({7: 1}), address=OTHER_ADDRESS),
    }
    document = judge(Look((held(0, rid="a"), there, both), servers))
    twice, wrong = document.findings
    assert (twice.code, twice.group, "a on decode dp0 pp0 tp0; b on decode" in twice.summary) == (
        "PD127",
        "decode decode here",
        True,
    )
    assert (wrong.code, wrong.group) == ("PD125", "prefill other > decode here")


@pytest.mark.parametrize(("networks", "hosts"), [(("n/1", "n/2"), ("here", "here")), (("", ""), ("here", "there"))])
def test_a_loopback_address_is_another_server_in_another_network(
    networks: tuple[str, str], hosts: tuple[str, str]
) -> None:
    loopback = "127.0.0.1:30300"
    unforced = [prefill(0, entry("prefill.bootstrap", 6, rid="b")), decode(0, waits(0, 6, rid="b"))]
    here = [at(one, loopback, host=hosts[0], network=networks[0]) for one in _FORCED]
    there = [at(of_another(one), loopback, host=hosts[1], network=networks[1]) for one in unforced]
    assert codes(judge(Look((*here, *there)))) == []


@pytest.mark.parametrize("address", ["", "None:30300"])
def test_of_requests_that_name_no_server_no_pair_is_claimed(address: str) -> None:
    """The registration of the one says nothing of the other."""
    unknown = at(decode(0, entry("decode.prealloc", rid="c"), follow=False), address)
    there = of_other(held(1, 95.0))
    assert codes(judge(two([held(0), unknown], [], {7: 0}, {}))) == []
    given = two([held(0), unknown], [], {7: 0}, {})
    assert codes(judge(replace(given, views=(*given.views, there)))) == []
    recorded = [at(of_another(held(0, rid="b")), address), at(held(0, rid="a"), address)]
    assert codes(judge(Look(tuple(recorded)))) == []


def test_a_registration_of_a_server_that_has_let_the_room_go_is_no_other_ones() -> None:
    past = of_other(prefill(1, events=(event(EventKind.DP_REGISTER, 130.0, 1),)))
    [found] = judge(two([*unregistered()], [], {}, {})).findings
    given = two([*unregistered()], [], {}, {})
    assert judge(replace(given, views=(past, *given.views))).findings == (found,)
    assert "Nobody has registered it" in found.summary


def test_a_room_that_the_engine_failed_is_no_other_pairs() -> None:
    refused = prefill(0, events=(event(EventKind.FAILURE, 30.0, text="follow_bootstrap_room conflict: dispatched to"),))
    [found] = judge(two([held(1), told(1)], [refused, decode(0, waits())], {7: 1}, {})).findings
    assert (found.code, found.ranks) == ("PD121", ("prefill dp0 pp0 tp0", "decode dp0 pp0 tp0"))
    assert codes(judge(two([held(1), told(1)], [refused], {7: 1}, {}))) == []


def test_servers_that_the_user_names_are_of_the_pair_that_names_them() -> None:
    case = CASES["PD125"]
    given = replace(two(case.well, case.wrong, {7: 1}, {7: 1}), instead=(ADDRESS, OTHER_ADDRESS))
    assert [(found.code, found.group) for found in judge(given).findings] == [("PD125", "prefill other > decode other")]


def test_two_requests_of_one_number_are_no_group_that_parts() -> None:
    behind = decode(0, entry("decode.pending"), follow=False)
    answered = (event(EventKind.DP_ANSWER, 30.0, 1),)
    ahead = at(decode(1, entry("decode.prealloc", dp=1, rid="b"), follow=False, events=answered), OTHER_ADDRESS)
    assert codes(judge(Look((behind, ahead)))) == ["PD127"]


def test_a_request_that_names_no_server_yet_is_of_the_one_that_its_group_names() -> None:
    """Up to SGLang 0.5.9 what is pending has no receiver."""
    behind = decode(0, entry("decode.pending", bootstrap=""), follow=False)
    answered = (event(EventKind.DP_ANSWER, 30.0, 1),)
    ahead = decode(1, entry("decode.prealloc", dp=1), follow=False, events=answered)
    assert codes(judge(Look((behind, ahead)))) == ["PD106"]
    assert codes(judge(Look((of_other(held(1)), behind, ahead)))) == ["PD106"]


LOOKUP = Lookup(attempts=5, most=15, every_s=1.0, last_s=0.5)
ROWS = {"PD122": "UNREGISTERED", "PD125": "CONFLICT", "PD126": "EXPIRES", "PD127": "DUPLICATE"}


@pytest.mark.parametrize("code", ROWS)
def test_each_pair_has_its_own_row(code: str) -> None:
    case = CASES[code]
    document = judge(two(case.well, case.wrong, case.well_at, case.wrong_at))
    rows = {row.address: row for row in document.rooms}
    assert {address: row.verdict for address, row in rows.items()} == {ADDRESS: "AGREE", OTHER_ADDRESS: ROWS[code]}
    assert rows[ADDRESS].bootstrap == case.well_at[7]
    assert rows[OTHER_ADDRESS].bootstrap == case.wrong_at.get(7)
    assert (rows[ADDRESS].registered_s, len(rows[ADDRESS].prefill)) == (1.0, 1)


def test_twin_one_pair_has_one_row_a_room() -> None:
    case = CASES["PD125"]
    assert [row.verdict for row in judge(two(case.wrong, [], case.wrong_at, {})).rooms] == ["CONFLICT"]


def test_prefill_of_one_pair_and_decode_of_another_do_not_agree() -> None:
    rows = judge(two([held(1)], [told(1)], {7: 1}, {})).rooms
    assert {row.address: (row.verdict, row.bootstrap) for row in rows} == {
        ADDRESS: ("WAITS", 1),
        OTHER_ADDRESS: ("WAITS", None),
    }


def test_where_decode_does_not_tell_which_of_two_it_means_nobody_agrees() -> None:
    unknown = at(decode(0, waits(1, rid="c"), follow=False), "")
    [row] = judge(two([held(1), unknown], [held(0)], {7: 1}, {7: 0})).rooms
    assert (row.verdict, row.bootstrap) == ("UNKNOWN", None)
    assert judge(two([held(1), unknown], [], {7: 1}, {})).rooms[0].verdict == "AGREE"


def test_a_bootstrap_server_that_is_not_heard_makes_no_row_of_another_pair_unheard() -> None:
    silent = replace(server(), address=OTHER_ADDRESS, silence="connection refused", fault=Fault.REFUSES)
    lost = of_other(decode(0, entry("decode.pending"), follow=False))
    assert lost.rooms is not None
    rooms = msgspec.structs.replace(lost.rooms, lookups={OTHER_ADDRESS: LOOKUP})
    look = Look(
        (held(1), told(1), replace(lost, network="n", rooms=rooms)),
        {("", ADDRESS): server({7: 1}), ("n", OTHER_ADDRESS): silent},
    )
    assert {row.address: row.verdict for row in judge(look).rooms} == {ADDRESS: "AGREE", OTHER_ADDRESS: "UNHEARD"}


def many(count: int, queue: str, place: int) -> list[RoomEntry]:
    state = KVPoll.WAITING_FOR_INPUT
    return [entry(queue, rid=f"{queue} {n}", state=state, bootstrap=f"10.1.{place}.{n}:1") for n in range(count)]


def test_many_requests_of_one_room_are_compared_with_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile rank may send as many as an answer has room for, each with a bootstrap server of its own."""
    compared = 0

    def counted(*args: Any) -> bool:
        nonlocal compared
        compared += 1
        return is_another(*args)

    for module in (pairs, sides):
        monkeypatch.setattr(module, "is_another", counted)
    views = prefill(0, *many(300, "prefill.bootstrap", 1)), decode(0, *many(300, "decode.transfer", 2))
    found = judge(Look(tuple(views))).findings
    assert [(one.code, " 300 requests " in one.summary) for one in found] == [("PD127", True), ("PD127", True)]
    assert 0 < compared < 300


def test_requests_are_together_by_what_leads_from_one_to_the_next() -> None:
    def request(server: str, rid: str, address: str, host: str = "a") -> pairs.Request:
        view = decode(0)
        view = replace(view, identity=msgspec.structs.replace(view.identity, instance=server, host=host))
        return Ranks((view,), ("",), ("",)), entry("decode.transfer", rid=rid, bootstrap=address)

    first = request("1", "r", "10.0.0.1:1")
    far = request("2", "s", "127.0.0.1:1")
    same_server, same_rid, same_address = request("1", "t", ""), request("3", "r", ""), request("4", "u", "10.0.0.1:1")
    loopback, unknown = request("5", "v", "127.0.0.1:1", "b"), request("6", "w", "127.0.0.1:1", "")
    near = [first, same_server, same_rid, same_address]
    assert pairs.together([first, far, *near[1:], loopback]) == [near, [far], [loopback]]
    assert pairs.together([far, loopback, unknown]) == [[far, loopback, unknown]]
