"""The judge of routing: each case is found and called by its name, and its twin stays clean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pdctl.probes.routing.judge import judge, pause_s
from pdctl.probes.routing.model import Look, RankView, RoutingDocument, ServerView
from pdctl.protocol.model import EventKind, KVPoll
from pdctl.protocol.requests import (
    ENTRY_CLEANUP,
    FORCE_QUERY,
    NOTES_CONFLICTS,
    QUERY_FORCED,
    REGISTERS_EVERY_ROOM,
    RoomEntry,
    Rooms,
    RoomTable,
    Settings,
    Space,
)
from pdctl.recording.reader import Event
from tests.support.identities import identity

ADDRESS = "10.0.0.1:30300"
FOLLOW, BALANCED = "follow_bootstrap_room", "total_requests"
NOW_NS = 10**12
OLD_ENGINE = {NOTES_CONFLICTS: False, REGISTERS_EVERY_ROOM: False}
WITH_HOLE = {NOTES_CONFLICTS: True, REGISTERS_EVERY_ROOM: False}
NEW_ENGINE = {NOTES_CONFLICTS: True, REGISTERS_EVERY_ROOM: True}


def entry(queue: str, room: int = 7, *, rid: str = "", **more: Any) -> RoomEntry:
    given = {"state": KVPoll.BOOTSTRAPPING, "age_s": 60.0, "bootstrap": ADDRESS, **more}
    return RoomEntry(queue, room, rid or f"r{room}", **given)


def event(kind: EventKind, ago_s: float, a: int = -1, text: str = "", room: int = 7) -> Event:
    return Event(1, NOW_NS - int(ago_s * 1e9), kind, "", -1, room, a, 0, text)


def view(role: str, entries: list[RoomEntry], values: dict[str, str], env: dict[str, str], **who: Any) -> RankView:
    rooms = Rooms(NOW_NS, 0, RoomTable.of(entries), (), Space(), {}, {}, {})
    return RankView(
        identity(role=role, service=f"{role} here", **who), "live", rooms=rooms, settings=Settings(values, env)
    )


def prefill(
    dp: int,
    *entries: RoomEntry,
    dp_size: int = 2,
    balance: str = FOLLOW,
    force: bool = False,
    seams: dict[str, bool] = NEW_ENGINE,
    events: tuple[Event, ...] = (),
    port: int = 5000,
    cleanup: str = "",
) -> RankView:
    values = {"dp_size": str(dp_size), "load_balance_method": balance, "rank_port": str(port)}
    values["disaggregation_bootstrap_port"] = ADDRESS.partition(":")[2]
    env = {**({FORCE_QUERY: "true"} if force else {}), **({ENTRY_CLEANUP: cleanup} if cleanup else {})}
    made = view("prefill", list(entries), values, env, dp=dp, dp_size=dp_size)
    return replace(made, seams=seams, events=events)


def decode(
    tp: int,
    *entries: RoomEntry,
    dp_size: int = 2,
    follow: bool = True,
    force: bool = False,
    heeds: bool = True,
    events: tuple[Event, ...] = (),
    told: dict[str, str] | None = None,
) -> RankView:
    made = view("decode", list(entries), {}, {FORCE_QUERY: "1"} if force else {}, tp=tp, tp_size=2)
    facts = {"dp_size": str(dp_size), FOLLOW: str(follow)} if told is None else told
    assert made.rooms is not None
    rooms = Rooms(NOW_NS, 0, made.rooms.rooms, (), Space(), {}, {}, {}, {ADDRESS: facts} if facts else {})
    return replace(made, rooms=rooms, seams={QUERY_FORCED: heeds}, events=events)


def server(registered: dict[int, int] | None = None, asked: tuple[int, ...] = (6, 7), **more: Any) -> ServerView:
    given: dict[str, Any] = {"info": {"dp_size": "2"}, "dp_ranks": registered or {}, "asked": frozenset(asked), **more}
    return ServerView(ADDRESS, **given)


def look(*views: RankView, at: ServerView | None = None, named: tuple[int, ...] = (), taken_s: float = 0.0) -> Look:
    at = at or server()
    return Look(views, {("", ADDRESS): at}, named, (), taken_s)


def waits(dp: int = 1, room: int = 7, **more: Any) -> RoomEntry:
    return entry("decode.transfer", room, dp=dp, state=KVPoll.WAITING_FOR_INPUT, **more)


def asking(room: int = 7, **more: Any) -> list[RoomEntry]:
    """A room that a decode rank of the new life cycle has not been told of: on both queues."""
    return [entry("decode.pending", room, **more), entry("decode.prealloc", room, **more)]


def codes(document: RoutingDocument) -> list[str]:
    return [found.code for found in document.findings]


def verdicts(document: RoutingDocument) -> dict[int, str]:
    return {row.room: row.verdict for row in document.rooms}


def clean(given: Look) -> RoutingDocument:
    document = judge(given)
    assert codes(document) == []
    assert document.young == 0
    assert not document.partial
    return document


# ---- C4: routed against the formula ----------------------------------------------------------------------------------


def test_a_room_routed_against_the_formula() -> None:
    views = prefill(0, entry("prefill.bootstrap"), seams=OLD_ENGINE), prefill(1), decode(0, waits()), decode(1, waits())
    document = judge(look(*views))
    [found] = document.findings
    assert found.code == "PD120"
    assert "dispatched 0, implied 1, registered none, receiver expects 1" in found.summary
    assert found.ranks == ("prefill dp0 pp0 tp0", "decode dp0 pp0 tp0", "decode dp0 pp0 tp1")
    assert any("does not notice" in line for line in found.evidence)
    [row] = document.rooms
    assert (row.formula, row.bootstrap, row.bootstrap_note, row.verdict) == (1, None, "not registered", "CONFLICT")


@pytest.mark.parametrize(
    ("seams", "advised"),
    [
        (OLD_ENGINE, "Prefill of SGLang 0.5.11 or newer fails such a room at once"),
        (WITH_HOLE, f"Leave {FORCE_QUERY} unset"),
        (NEW_ENGINE, f"or set {FORCE_QUERY}=1 on both sides"),
        ({}, "helps where prefill registers every room"),
    ],
)
def test_force_query_is_advised_only_where_it_has_no_hole(seams: dict[str, bool], advised: str) -> None:
    views = prefill(0, entry("prefill.bootstrap"), seams=seams), prefill(1), decode(0, waits()), decode(1, waits())
    [found] = judge(look(*views)).findings
    assert found.code == "PD120"
    assert "Let the router choose dp rank room % dp_size" in found.next_step
    assert advised in found.next_step


def test_the_conflict_is_found_without_a_bootstrap_server() -> None:
    silent = ServerView(ADDRESS, silence="connection refused")
    document = judge(look(prefill(0, entry("prefill.bootstrap")), decode(0, waits()), at=silent))
    [found] = document.findings
    assert (found.code, "registered" in found.summary) == ("PD120", False)
    assert document.partial


OTHER_ADDRESS = "10.0.0.2:30300"


def of_another(one: RankView, host: str = "here") -> RankView:
    """The same rank of another deployment that is seen beside this one."""
    who = msgspec.structs.replace(one.identity, service=f"{one.identity.role} other", instance="other/2", host=host)
    return replace(one, identity=who)


@pytest.mark.parametrize(
    ("held", "taken", "host", "expected"),
    [
        (ADDRESS, OTHER_ADDRESS, "here", []),
        ("127.0.0.1:30300", "127.0.0.1:30300", "there", []),
        ("127.0.0.1:30300", "127.0.0.1:30300", "here", ["PD120"]),
        (ADDRESS, ADDRESS, "there", ["PD120"]),
        ("fd00::1:30300", "[fd00::1]:30300", "here", ["PD120"]),
        ("None:30300", OTHER_ADDRESS, "here", ["PD120"]),  # nothing tells that it is another's
        (ADDRESS, "", "here", ["PD120"]),
    ],
)
def test_a_room_of_another_pair_of_servers_is_another_request(
    held: str, taken: str, host: str, expected: list[str]
) -> None:
    here = prefill(0, entry("prefill.bootstrap", bootstrap=held), seams=OLD_ENGINE)
    assert codes(judge(look(here, of_another(decode(0, waits(rid="other", bootstrap=taken)), host)))) == expected
    same_request = decode(0, waits(bootstrap=taken))
    assert codes(judge(look(here, of_another(same_request, host)))) == ["PD120"]


def test_a_room_of_another_pair_hides_no_conflict() -> None:
    here = prefill(0, entry("prefill.bootstrap"), seams=OLD_ENGINE)
    others = (
        prefill(1, entry("prefill.bootstrap", rid="other", bootstrap=OTHER_ADDRESS)),
        decode(0, waits(rid="other", bootstrap=OTHER_ADDRESS), dp_size=4),
    )
    found = {one.code: one for one in judge(look(here, *map(of_another, others), decode(0, waits()))).findings}
    assert "dispatched 0, implied 1, registered none, receiver expects 1" in found["PD120"].summary
    assert found["PD120"].ranks == ("prefill dp0 pp0 tp0", "decode dp0 pp0 tp0")


@pytest.mark.parametrize("room", [6, 8])
def test_twin_a_room_routed_by_the_formula(room: int) -> None:
    views = prefill(0, entry("prefill.bootstrap", room)), decode(0, waits(0, room)), decode(1, waits(0, room))
    document = clean(look(*views, at=server(asked=(room,))))
    assert verdicts(document) == {room: "AGREE"}


def test_twin_another_load_balancing_and_a_registered_rank() -> None:
    views = (
        prefill(0, entry("prefill.bootstrap"), balance=BALANCED),
        decode(0, waits(0), follow=False),
        decode(1, waits(0), follow=False),
    )
    document = clean(look(*views, at=server({7: 0})))
    [row] = document.rooms
    assert (row.verdict, row.formula, row.bootstrap) == ("AGREE", None, 0)
    assert "total_requests" in row.formula_note


def test_twin_the_request_names_its_dp_rank() -> None:
    document = clean(look(prefill(0, entry("prefill.bootstrap")), decode(0, waits(0, pinned=0))))
    assert verdicts(document) == {7: "AGREE"}


def test_twin_one_dp_rank() -> None:
    views = prefill(0, entry("prefill.bootstrap"), dp_size=1, force=True), decode(0, waits(0), dp_size=1)
    clean(look(*views, at=server(info={"dp_size": "1"})))


def test_a_warm_up_is_no_room() -> None:
    fake = entry("prefill.bootstrap", 3, bootstrap="2.2.2.2:30300")
    assert clean(look(prefill(0, fake), decode(0))).rooms == ()


def test_the_engines_own_failure_is_shown_as_such() -> None:
    refused = event(EventKind.FAILURE, 30.0, text="follow_bootstrap_room conflict: dispatched to dp_rank 0 but bo")
    views = prefill(0, events=(refused,)), prefill(1), decode(0, waits()), decode(1, waits())
    document = judge(look(*views))
    [found] = document.findings
    assert (found.code, found.level.value) == ("PD121", "warning")
    assert "the engine failed it 30.0 s ago" in found.summary
    assert "dispatched to prefill dp 0, implied dp 1" in found.summary
    assert verdicts(document) == {7: "REFUSED"}
    # Long over and nobody waits: no matter, unless somebody asks for that room.
    over = prefill(0, events=(refused,)), prefill(1), decode(0)
    assert judge(look(*over)).rooms == ()
    assert codes(judge(look(*over, named=(7,)))) == ["PD121"]


# ---- registrations ---------------------------------------------------------------------------------------------------


def unregistered(**more: Any) -> list[RankView]:
    return [
        prefill(1, entry("prefill.bootstrap"), balance=BALANCED, **more),
        decode(0, *asking(), follow=False),
        decode(1, *asking(), follow=False),
    ]


def test_decode_asks_for_a_room_that_nobody_registered() -> None:
    document = judge(look(*unregistered()))
    [found] = document.findings
    assert found.code == "PD122"
    assert "pending on tp0 and tp1, which ask the bootstrap server" in found.summary
    assert "Nobody has registered it" in found.summary
    assert verdicts(document) == {7: "UNREGISTERED"}


def test_an_expired_registration_is_called_so() -> None:
    views = unregistered(events=(event(EventKind.DP_REGISTER, 130.0, 1),))
    [found] = judge(look(*views)).findings
    assert found.code == "PD122"
    assert "has expired: it is 130.0 s old, and they are dropped after 120 s" in found.summary
    lost = unregistered(events=(event(EventKind.DP_REGISTER, 9.0, 1),))
    assert "the bootstrap server has it no longer" in judge(look(*lost)).findings[0].summary


def test_twin_what_the_silent_server_may_know_is_not_missing() -> None:
    silent = ServerView(ADDRESS, silence="it accepts a connection and does not answer GET /route")
    document = judge(look(*unregistered(), at=silent))
    assert codes(document) == []
    [row] = document.rooms
    assert (row.verdict, row.bootstrap_note) == ("UNKNOWN", f"missing: {silent.silence}")
    assert document.partial


def test_twin_prefill_does_not_have_it_yet() -> None:
    document = clean(look(prefill(1, balance=BALANCED), decode(0, *asking(), follow=False)))
    assert verdicts(document) == {7: "WAITS"}


@pytest.mark.parametrize(("ago_s", "expected"), [(20.0, []), (89.0, []), (95.0, ["PD126"]), (130.0, ["PD126"])])
def test_a_registration_that_is_about_to_expire(ago_s: float, expected: list[str]) -> None:
    registered = event(EventKind.DP_REGISTER, ago_s, 1)
    held = prefill(1, entry("prefill.bootstrap", age_s=ago_s), balance=BALANCED, events=(registered,))
    document = judge(look(held, decode(0, follow=False), at=server({7: 1})))
    assert codes(document) == expected
    assert codes(judge(look(held, decode(0, waits(1), follow=False), at=server({7: 1})))) == [], "decode was told"


def test_the_interval_is_that_of_prefills_environment() -> None:
    registered = event(EventKind.DP_REGISTER, 8.0, 1)
    held = prefill(1, entry("prefill.bootstrap"), balance=BALANCED, events=(registered,), cleanup="10")
    [found] = judge(look(held, decode(0, follow=False), at=server({7: 1}))).findings
    assert "dropped in 2.0 s (after 10 s)" in found.summary


def test_a_room_registered_under_another_rank() -> None:
    views = prefill(0, entry("prefill.bootstrap"), balance=BALANCED), decode(0, waits(1), follow=False)
    document = judge(look(*views, at=server({7: 1})))
    assert codes(document) == ["PD125"]
    assert verdicts(document) == {7: "CONFLICT"}
    # Where decode goes by the formula, an old registration of the same number does no harm.
    agreeing = prefill(1, entry("prefill.bootstrap")), decode(0, waits(1))
    clean(look(*agreeing, at=server({7: 0})))


# ---- C6 and FORCE_QUERY ----------------------------------------------------------------------------------------------


def forced(
    seams: dict[str, bool], *, on: tuple[bool, bool] = (True, True), dp: int = 0, room: int = 6
) -> list[RankView]:
    held = prefill(dp, entry("prefill.bootstrap", room), force=on[0], seams=seams)
    return [held, *(decode(tp, *asking(room), force=on[1]) for tp in (0, 1))]


def test_the_force_query_hole() -> None:
    document = judge(look(*forced(WITH_HOLE)))
    [found] = document.findings
    assert found.code == "PD124"
    assert "never registered: its route does not conflict" in found.summary
    assert found.rooms == (6,)
    [row] = document.rooms
    assert (row.formula, row.implied, row.verdict) == (None, 0, "UNREGISTERED")
    # Told by settings and code, so that no bootstrap server is needed for it.
    assert codes(judge(look(*forced(WITH_HOLE), at=ServerView(ADDRESS, silence="connection refused")))) == ["PD124"]


def test_twins_of_the_hole() -> None:
    views = [prefill(0, entry("prefill.bootstrap", 6), force=True), decode(0, waits(0, 6), force=True)]
    assert verdicts(clean(look(*views, at=server({6: 0})))) == {6: "AGREE"}
    # A version that registers every room, and this one is not: something else is wrong, and it is not the hole.
    assert codes(judge(look(*forced(NEW_ENGINE)))) == ["PD122"]
    # Nor where the code can't be made out.
    assert codes(judge(look(*forced({NOTES_CONFLICTS: True})))) == ["PD122"]
    # A room that conflicts is registered.
    conflicting = [
        prefill(0, entry("prefill.bootstrap"), force=True, seams=WITH_HOLE),
        decode(0, waits(0), force=True),
    ]
    assert verdicts(clean(look(*conflicting, at=server({7: 0})))) == {7: "AGREE"}


def test_force_query_on_decode_only() -> None:
    [found] = judge(look(*forced(WITH_HOLE, on=(False, True)))).findings
    assert found.code == "PD123"
    assert "set on decode and not set on prefill" in found.summary
    assert "Room 6 is held by prefill dp 0 and pending on tp0 and tp1" in found.summary
    assert found.next_step.startswith(f"Unset {FORCE_QUERY}")
    assert found.rooms == (6,)


def test_force_query_is_flagged_before_any_room_waits() -> None:
    assert codes(judge(look(prefill(0, force=True), decode(0)))) == ["PD123"]
    [found] = judge(look(prefill(0), decode(0, force=True))).findings
    assert (found.code, found.next_step[:4]) == ("PD123", "Set ")
    clean(look(prefill(0, force=True), decode(0, force=True)))
    clean(look(prefill(0, balance=BALANCED), decode(0, force=True, follow=False)))
    clean(look(prefill(0, force=True, dp_size=1), decode(0, dp_size=1), at=server(info={"dp_size": "1"})))


def test_force_query_that_the_code_does_not_heed() -> None:
    # Up to 0.5.10.post1 neither side knows the variable: it has no effect, and none is claimed.
    clean(look(prefill(0, force=True, seams=OLD_ENGINE), decode(0, force=True, heeds=False)))
    [found] = judge(look(prefill(0, force=True, seams=OLD_ENGINE), decode(0, force=True))).findings
    assert (found.code, "its code does not heed it" in found.summary) == ("PD123", True)


# ---- C3: pending on one rank, in the handshake on another ------------------------------------------------------------


def split(*, told_s: float = 30.0, old: bool = True) -> list[RankView]:
    registered = event(EventKind.DP_REGISTER, told_s + 0.1, 1)
    behind = [entry("decode.pending")] if old else asking()
    return [
        prefill(1, entry("prefill.bootstrap"), balance=BALANCED, events=(registered,)),
        decode(0, *behind, follow=False),
        decode(1, entry("decode.prealloc", dp=1), follow=False, events=(event(EventKind.DP_ANSWER, told_s, 1),)),
    ]


def test_pending_on_one_rank_and_in_the_handshake_on_another() -> None:
    document = judge(look(*split(), at=server({7: 1})))
    [found] = document.findings
    assert found.code == "PD106"
    assert (
        "pending on tp0, and in the handshake queue on tp1, which was told dp 1, registered 30.1 s ago" in found.summary
    )
    assert verdicts(document) == {7: "SPLIT"}


def test_twin_the_new_life_cycle_enqueues_on_both() -> None:
    document = clean(look(*split(old=False), at=server({7: 1})))
    [row] = document.rooms
    assert (row.verdict, row.text) == ("WAITS", "registered, and tp0 has not been told yet")


def test_twin_told_a_moment_ago() -> None:
    document = judge(look(*split(told_s=0.01), at=server({7: 1})))
    assert (codes(document), document.young, verdicts(document)) == ([], 1, {7: "WAITS"})


# ---- skew ------------------------------------------------------------------------------------------------------------


def young(age_s: float) -> list[RankView]:
    return [prefill(0, entry("prefill.bootstrap", age_s=age_s)), decode(0, waits(age_s=age_s))]


def test_a_room_that_arrived_a_moment_ago_is_no_finding() -> None:
    first = look(*young(0.05))
    document = judge(first)
    assert (codes(document), document.young, document.partial) == ([], 1, False)
    assert pause_s(first, 2.0) == 2.0, "a second look will tell"
    assert pause_s(look(*young(0.05), named=(7,)), 2.0) == 2.0


def test_of_unknown_age_it_takes_two_looks_far_enough_apart() -> None:
    first = look(*young(-1.0))
    assert codes(judge(first)) == []
    assert pause_s(first, 2.0) == 2.0
    assert codes(judge(look(*young(-1.0), taken_s=2.0), first)) == ["PD120"]
    assert codes(judge(look(*young(-1.0), taken_s=0.4), first)) == []


def test_what_is_gone_in_the_second_look_was_nothing() -> None:
    first = look(*young(60.0))
    assert codes(judge(first)) == ["PD120"]
    assert pause_s(first, 2.0) == 0.5
    assert codes(judge(look(prefill(0), decode(0), taken_s=0.5), first)) == []
    other = [prefill(1, entry("prefill.bootstrap")), decode(0, waits(0))]
    assert codes(judge(look(*other, taken_s=0.5), first)) == [], "another difference has just begun"
    assert codes(judge(look(*young(60.5), taken_s=0.5), first)) == ["PD120"]


def test_nothing_suspected_needs_no_second_look() -> None:
    assert pause_s(look(prefill(0, force=True), decode(0)), 2.0) is None


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_two_requests_with_one_room() -> None:
    one, two = entry("prefill.bootstrap", rid="a"), entry("prefill.bootstrap", rid="b")
    document = judge(look(prefill(0, one), prefill(1, two), decode(0, waits(1, rid="a"))))
    [found] = document.findings
    assert found.code == "PD127"
    assert "a on prefill dp0 pp0 tp0; b on prefill dp1 pp0 tp0" in found.summary
    # The same request on both sides, and on every rank of one, is one.
    clean(look(prefill(1, one), decode(0, waits(1, rid="a")), decode(1, waits(1, rid="a"))))


def test_decode_goes_by_what_an_earlier_server_said() -> None:
    first = look(prefill(0), decode(0), decode(1), at=server(info={"dp_size": "4", FOLLOW: "True"}))
    later = replace(first, taken_s=2.0)
    assert pause_s(first, 2.0) == 2.0
    [found] = judge(later, first).findings
    assert found.code == "PD128"
    assert "tp0 and tp1 of decode here take the prefill server behind 10.0.0.1:30300 to have dp_size 2" in found.summary
    agree = look(prefill(0), decode(0), at=server(info={"dp_size": "2", "page_size": "64"}))
    assert codes(judge(replace(agree, taken_s=2.0), agree)) == []


def test_a_route_to_a_port_where_nobody_listens() -> None:
    routes = {(0, 0, 0, 0): 5000, (1, 0, 0, 0): 5999}
    views = prefill(0), prefill(1), decode(0)
    first = look(*views, at=server(routes=routes))
    [found] = judge(replace(first, taken_s=2.0), first).findings
    assert (found.code, found.ranks) == ("PD129", ("prefill dp1 pp0 tp0",))
    assert "sends decode to port 5999" in found.summary
    both = look(*views, at=server(routes={(0, 0, 0, 0): 5998, (1, 0, 0, 0): -1}))
    [found] = judge(replace(both, taken_s=2.0), both).findings
    assert found.ranks == ("prefill dp0 pp0 tp0", "prefill dp1 pp0 tp0")
    assert found.summary.endswith("So it is with 1 more rank.")
    good = look(*views, at=server(routes={**routes, (1, 0, 0, 0): 5000}))
    assert codes(judge(replace(good, taken_s=2.0), good)) == []


def test_many_rooms_with_one_trouble_are_one_finding() -> None:
    rooms = range(7, 47, 2)
    held = prefill(0, *(entry("prefill.bootstrap", room) for room in rooms), seams=OLD_ENGINE)
    document = judge(look(held, decode(0, *(waits(1, room) for room in rooms)), at=server(asked=tuple(rooms))))
    [found] = document.findings
    assert found.rooms == tuple(rooms)
    assert found.summary.endswith("So it is with 19 more rooms.")


def test_rooms_of_the_same_number_in_two_clusters_are_two() -> None:
    one = prefill(1, entry("prefill.bootstrap")), decode(0, waits(1))
    other = [
        replace(v, identity=identity(role=v.identity.role, dp=0, dp_size=2, service="x", cluster="other"))
        for v in (prefill(0, entry("prefill.bootstrap")), decode(0, waits(1)))
    ]
    document = judge(look(*one, *other))
    assert [(row.cluster, row.verdict) for row in document.rooms] == [("", "AGREE"), ("other", "CONFLICT")]


def test_an_unknown_room_is_told_with_what_is_near() -> None:
    held = prefill(1, entry("prefill.bootstrap", 7203441)), decode(0, waits(1, 7203441))
    document = judge(look(*held, named=(7203444,), at=server(asked=(7203444, 7203441))))
    [unknown] = document.unknown
    assert (unknown.room, unknown.nearest) == (7203444, (7203441,))
    assert document.partial
    close = prefill(1, entry("prefill.bootstrap", 100), entry("prefill.bootstrap", 5)), decode(0, waits(1, 100))
    [unknown] = judge(look(*close, named=(99,))).unknown
    assert unknown.nearest == (100, 5)  # near as a number, though not written alike
    # Its registration alone makes it known.
    left = judge(look(prefill(1), decode(0), named=(9,), at=server({9: 1}, asked=(9,))))
    assert (left.unknown, verdicts(left)) == ((), {9: "GONE"})


def test_a_room_that_is_past_routing_is_done() -> None:
    computed = decode(0, entry("running", bootstrap="", dp=-1)), decode(1, entry("running", bootstrap="", dp=-1))
    document = clean(look(prefill(1), *computed, named=(7,)))
    [row] = document.rooms
    assert (row.verdict, row.text) == ("DONE", "past routing: running on decode")


def test_servers_of_neither_role_are_said_to_be_none() -> None:
    document = judge(look())
    assert document.problems == ("no rank here is of a prefill or a decode server",)


def test_silent_ranks_make_it_partial_and_are_said() -> None:
    gone = RankView(identity(role="decode", tp=1), "live", silence="no answer within 2 s: process is stopped")
    document = judge(look(prefill(1, entry("prefill.bootstrap")), decode(0, waits(1)), gone))
    assert (codes(document), document.partial) == ([], True)
    assert document.problems == ("decode dp0 pp0 tp1: no answer within 2 s: process is stopped",)


def test_one_request_on_two_prefill_servers_is_two() -> None:
    """A router that tries again elsewhere with the same room, and the same id or another one."""
    for rids in (("a", "a"), ("a", "b")):
        first, second = (prefill(0, entry("prefill.bootstrap", rid=rid), dp_size=1) for rid in rids)
        other = msgspec.structs.replace(second.identity, service="other", instance="other/2")
        [found] = judge(look(first, replace(second, identity=other), decode(0, waits(0, rid=rids[0])))).findings
        assert found.code == "PD127"
        assert (
            f"{rids[0]} on prefill dp0 pp0 tp0 of prefill here; {rids[1]} on prefill dp0 pp0 tp0 of other."
            in found.summary
        )
    clean(look(prefill(0, entry("prefill.bootstrap", rid="a"), dp_size=1), decode(0, waits(0, rid="a"))))
