"""What each side uses of the other, against who is there: servers replaced, bootstrap servers shared or silent, and twins."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pdctl.probes.routing import collect
from pdctl.probes.routing.addresses import near
from pdctl.probes.routing.bootstrap import Question, ask
from pdctl.probes.routing.judge import judge, pause_s
from pdctl.probes.routing.model import Fault, Look, RankView, RoutingDocument, ServerView
from pdctl.probes.routing.peers import MOST_OF_ROOM
from pdctl.protocol.model import EventKind, KVPoll
from pdctl.protocol.requests import MAX_LOOKUPS, Lookup, Peer, RoomEntry, Rooms, RoomTable, Settings, Space
from pdctl.recording.reader import Event
from tests.support.identities import identity
from tests.support.patience import patience

HOST = "10.0.0.1"
ADDRESS = f"{HOST}:8998"
NET = "net:[1]"
NOW_NS = 10**12


def event(kind: EventKind, ago_s: float, a: int = 0, text: str = "", room: int = 7) -> Event:
    return Event(1, NOW_NS - int(ago_s * 1e9), kind, "", -1, room, a, 0, text)


def entry(queue: str, room: int = 7, state: int = KVPoll.BOOTSTRAPPING, age_s: float = 20.0) -> RoomEntry:
    return RoomEntry(queue, room, f"r{room}", state=state, age_s=age_s, dp=0, bootstrap=ADDRESS)


def view(
    role: str, values: dict[str, str], entries: tuple[RoomEntry, ...], up_s: float | None, **more: Any
) -> RankView:
    who = {"service": f"{role} here", "host": HOST, **{k: more.pop(k) for k in ("tp", "pid", "service") if k in more}}
    rooms = Rooms(NOW_NS, 0, RoomTable.of(entries), (), Space(), {}, {}, {})
    rooms = msgspec.structs.replace(rooms, **{k: more.pop(k) for k in ("peers", "lookups") if k in more})
    return RankView(
        identity(role=role, tp_size=2 if role == "decode" else 1, **who), "live", rooms=rooms,
        settings=Settings(values, {}), network=NET, up_s=up_s, **more,
    )  # fmt: skip


def prefill(*entries: RoomEntry, port: int = 5001, up_s: float = 30.0, **more: Any) -> RankView:
    values = {
        "host": HOST,
        "disaggregation_bootstrap_port": "8998",
        "rank_ip": HOST,
        "rank_port": str(port),
        "dp_size": "1",
    }
    return view("prefill", values, entries, up_s, **more)


def decode(tp: int, *entries: RoomEntry, to: int = 5001, rooms: tuple[int, ...] = (), **more: Any) -> RankView:
    given = {"peers": (Peer(HOST, to, "", ADDRESS, 0, 0, 0, 0, rooms, len(rooms)),), **more}
    values = {"rank_ip": HOST, "rank_port": str(6000 + tp), "transfer_session": f"{HOST}:{7000 + tp}"}
    return view("decode", values, entries, given.pop("up_s", 900.0), tp=tp, **given)


def server(port: int = 5001, **more: Any) -> ServerView:
    return ServerView(
        ADDRESS, NET, **{"info": {"dp_size": "1"}, "routes": {(0, 0, 0, 0): port}, "asked": frozenset((7,)), **more}
    )


def silent(fault: Fault = Fault.REFUSES) -> ServerView:
    return ServerView(ADDRESS, NET, silence="connection refused", fault=fault)


def look(*views: RankView, at: ServerView | None = None, taken_s: float = 0.0) -> Look:
    return Look(views, {} if at is None else {(NET, ADDRESS): at}, taken_s=taken_s)


def twice(*views: RankView, at: ServerView | None = None) -> RoutingDocument:
    """Return what two looks that show the same, far enough apart, come to."""
    return judge(look(*views, at=at, taken_s=10.0), look(*views, at=at))


def codes(document: RoutingDocument) -> list[str]:
    return [found.code for found in document.findings]


SENT = entry("decode.transfer", state=KVPoll.WAITING_FOR_INPUT)
WAITS = entry("prefill.bootstrap")

# ---- prefill was replaced ----------------------------------------------------------------------------------------------


def test_prefill_was_replaced_and_decode_sends_to_the_process_before() -> None:
    views = prefill(WAITS, port=5002, pid=44), decode(0, SENT, rooms=(7,)), decode(1, SENT, rooms=(7,))
    document = twice(*views, at=server(5002))
    [found] = document.findings
    assert found.code == "PD144"
    assert found.summary == (
        "prefill here was started 30.0 s ago; tp0 and tp1 of decode here still send to port 5001 of the process before. "
        "prefill dp0 pp0 tp0 (pid 44 now) listens on port 5002. 1 request waits for an answer that will not come, and so will "
        "each new one."
    )
    assert found.rooms == (7,)
    assert found.ranks == ("decode dp0 pp0 tp0", "decode dp0 pp0 tp1", "prefill dp0 pp0 tp0")
    assert "Restart decode here" in found.next_step
    assert [row.verdict for row in document.rooms] == ["REPLACED"]


def test_it_is_found_while_nothing_waits_and_without_the_bootstrap_server() -> None:
    for at in (server(5002), None):
        [found] = twice(prefill(port=5002), decode(0), at=at).findings
        assert found.code == "PD144"
        assert "The next request" in found.summary


def test_it_is_found_where_only_the_bootstrap_server_tells() -> None:
    [found] = twice(decode(0), at=server(5002)).findings
    assert found.summary.startswith(
        f"The prefill server behind {ADDRESS} has registered anew; tp0 of decode here still sends to port 5001 of the process "
        "before. prefill dp0 pp0 tp0 is registered at port 5002."
    )


def test_it_has_to_last() -> None:
    views = prefill(port=5002), decode(0)
    assert pause_s(look(*views, at=server(5002)), 2.0) == 2.0
    assert codes(judge(look(*views, at=server(5002)))) == []
    noticed = look(prefill(port=5002), decode(0, to=5002), at=server(5002), taken_s=10.0)
    assert codes(judge(noticed, look(*views, at=server(5002)))) == []


@pytest.mark.parametrize(
    "one",
    [
        decode(0, to=5002),
        decode(0, peers=()),  # the heartbeat has noticed
        decode(0, peers=None),  # an older agent
        decode(0, peers=(Peer(HOST, 5001, "", ADDRESS, 0),)),  # whose rank's port that is, is not known
    ],
)
def test_decode_that_has_noticed_or_does_not_tell_is_clean(one: RankView) -> None:
    document = twice(prefill(port=5002), one, at=server(5002))
    assert codes(document) == []
    assert document.young == 0


def test_a_port_of_a_rank_that_answers_is_no_old_one() -> None:
    """It is two servers with one registration."""
    document = twice(
        prefill(port=5001, pid=1), prefill(WAITS, port=5002, pid=2), decode(0, SENT, rooms=(7,)), at=server(5002)
    )
    assert codes(document) == ["PD137"]


# ---- decode was replaced -----------------------------------------------------------------------------------------------


def test_decode_was_replaced_and_prefill_holds_what_it_had() -> None:
    gone = (Peer(HOST, 6000, f"{HOST}:9000", rooms=(8,), used=1),)
    held = prefill(
        entry("prefill.bootstrap", age_s=90.0), entry("prefill.inflight", 8, KVPoll.TRANSFERRING, 80.0), peers=gone
    )
    [found] = judge(look(held, decode(0, up_s=40.0), decode(1, up_s=41.0), at=server())).findings
    assert found.code == "PD144"
    assert found.rooms == (7, 8)
    assert "holds 2 requests from before decode here started 41.0 s ago" in found.summary


@pytest.mark.parametrize(
    ("held", "others"),
    [
        (entry("prefill.bootstrap", age_s=30.0), (decode(0, up_s=40.0),)),  # came after decode
        (entry("prefill.bootstrap", age_s=90.0), (decode(0, SENT, up_s=40.0),)),  # decode has it
        (entry("prefill.bootstrap", age_s=90.0), (decode(0, up_s=40.0), decode(1, up_s=900.0))),  # tp1 was there
        (entry("prefill.bootstrap", age_s=90.0), (decode(0, up_s=40.0), decode(1, up_s=None))),  # not known of tp1
        (
            entry("prefill.bootstrap", age_s=90.0),
            (decode(0, up_s=40.0), replace(decode(1), rooms=None, silence="silent")),
        ),
    ],
)
def test_what_a_decode_rank_may_still_have_is_not_called_lost(held: RoomEntry, others: tuple[RankView, ...]) -> None:
    gone = (Peer(HOST, 6000, f"{HOST}:9000"),)
    assert codes(twice(prefill(held, peers=gone), *others, at=server())) == []


@pytest.mark.parametrize(
    ("address", "rid", "expected"),
    [("10.0.0.2:8998", "other", ["PD144"]), ("", "other", []), ("10.0.0.2:8998", "r7", []), (ADDRESS, "other", [])],
)
def test_a_room_of_another_pair_hides_no_request_that_decode_has_lost(
    address: str, rid: str, expected: list[str]
) -> None:
    held = prefill(entry("prefill.bootstrap", age_s=90.0), peers=(Peer(HOST, 6000, f"{HOST}:9000"),))
    taken = msgspec.structs.replace(SENT, rid=rid, bootstrap=address)
    other = decode(1, taken, up_s=40.0, service="decode other", peers=())
    found = judge(look(held, decode(0, up_s=40.0), other, at=server())).findings
    assert [one.code for one in found if 7 in one.rooms and one.code == "PD144"] == expected


@pytest.mark.parametrize(("more", "expected"), [(0, ["PD144"]), (1, [])])
def test_a_room_that_very_many_requests_have_is_taken_to_be_there(more: int, expected: list[str]) -> None:
    """What a hostile rank sends is not compared with all that another one sends."""
    held = prefill(entry("prefill.bootstrap", age_s=90.0), peers=(Peer(HOST, 6000, f"{HOST}:9000"),))
    many = [
        msgspec.structs.replace(SENT, rid=f"other {n}", bootstrap="10.0.0.2:8998") for n in range(MOST_OF_ROOM + more)
    ]
    other = decode(1, *many, up_s=40.0, service="decode other", peers=())
    found = judge(look(held, decode(0, up_s=40.0), other, at=server())).findings
    assert [one.code for one in found if 7 in one.rooms and one.code == "PD144"] == expected


def test_one_of_two_decode_servers_was_replaced() -> None:
    """The host of the session tells which; what no session has may be the other server's, which is not in need of it yet."""
    gone = (Peer(HOST, 6000, f"{HOST}:9000", rooms=(8,), used=1),)
    held = prefill(
        entry("prefill.bootstrap", age_s=90.0), entry("prefill.inflight", 8, KVPoll.TRANSFERRING, 80.0), peers=gone
    )
    other = decode(1, up_s=900.0, service="decode there")
    assert other.settings is not None
    far = replace(other, settings=Settings({**other.settings.values, "transfer_session": "10.0.0.2:7001"}, {}))
    for second in (other, far):
        [found] = judge(look(held, decode(0, up_s=40.0), second, at=server())).findings
        assert (found.code, found.rooms) == ("PD144", (8,))
        assert "holds 1 request from before decode here started 40.0 s ago" in found.summary
        assert "decode there" not in found.summary


def test_a_decode_server_that_is_not_in_sight_did_not_end() -> None:
    away = (Peer("10.0.0.9", 6000, "10.0.0.9:9000", rooms=(8,), used=1),)
    held = prefill(entry("prefill.inflight", 8, KVPoll.TRANSFERRING, 80.0), peers=away)
    assert codes(twice(held, decode(0, up_s=40.0), at=server())) == []


def test_a_first_start_of_decode_replaced_nobody() -> None:
    assert (
        codes(twice(prefill(entry("prefill.bootstrap", age_s=90.0), peers=()), decode(0, up_s=40.0), at=server())) == []
    )


# ---- by the times of recordings ----------------------------------------------------------------------------------------


def test_recordings_tell_that_addresses_were_sent_before_prefill_began() -> None:
    told = event(EventKind.STATE, 50.0, KVPoll.WAITING_FOR_INPUT)
    ranks = prefill(WAITS, up_s=30.0), decode(0, SENT, peers=None, events=(told,))
    [found] = judge(look(*ranks)).findings
    assert found.code == "PD144"
    assert (
        "decode dp0 pp0 tp0 sent its addresses for 1 request before prefill here started, 30.0 s ago" in found.summary
    )
    for since in (None, 49.5, 60.0):
        assert codes(twice(replace(ranks[0], up_s=since), ranks[1])) == []


# ---- two prefill servers -----------------------------------------------------------------------------------------------


def test_two_prefill_servers_with_one_bootstrap_server() -> None:
    first, second = prefill(service="prefill a"), prefill(WAITS, port=5002, service="prefill b")
    [found] = twice(first, second, decode(0, SENT, rooms=(7,)), at=server(5002)).findings
    assert found.code == "PD137"
    assert found.summary == (
        f"prefill a and prefill b share the bootstrap server {ADDRESS}: the second registered last. decode dp0 pp0 tp0 asked "
        "before and sends to the first. What the router gives to the second gets no addresses: 1 request waits there."
    )
    assert found.rooms == (7,)


def test_servers_of_one_name_are_told_apart_by_their_process() -> None:
    [found] = twice(prefill(WAITS, port=5001, pid=11), prefill(port=5002, pid=12), at=server(5002)).findings
    assert found.summary.startswith("prefill here (pid 11) and prefill here (pid 12) share")
    assert "gives to the first gets no addresses: 1 request waits there" in found.summary


def test_two_prefill_servers_with_a_bootstrap_server_each_are_clean() -> None:
    other = prefill(port=5002, service="prefill b")
    assert other.settings is not None
    other = replace(other, settings=Settings({**other.settings.values, "disaggregation_bootstrap_port": "8999"}, {}))
    both = {(NET, ADDRESS): server(5001), (NET, f"{HOST}:8999"): replace(server(5002), address=f"{HOST}:8999")}
    assert codes(judge(Look((prefill(), other, decode(0)), both))) == []


def test_a_registered_port_of_nobody_is_a_finding_of_its_own() -> None:
    assert codes(twice(prefill(), decode(0, peers=()), at=server(5555))) == ["PD129"]


# ---- bootstrap servers that do not answer ------------------------------------------------------------------------------

PENDING = (entry("decode.pending"), entry("decode.prealloc"))
TRYING = {ADDRESS: Lookup(attempts=4, most=15, every_s=1.0, last_s=0.5)}


def test_a_bootstrap_server_refuses_while_decode_retries() -> None:
    asks = decode(0, *PENDING, peers=(), lookups=TRYING)
    document = judge(look(prefill(WAITS), asks, at=silent()))
    [found] = document.findings
    assert found.code == "PD145"
    assert found.summary == (
        f"The bootstrap server {ADDRESS} refuses connections; decode has had no answer for 3.5 s at least. 1 request of "
        "decode here waits for it; tp0 is at attempt 4 of 15, then fails it."
    )
    assert found.rooms == (7,)
    assert found.next_step == "prefill here runs without its bootstrap server: restart it as a whole."


def test_an_address_where_nobody_listens_is_the_routers() -> None:
    elsewhere = f"{HOST}:1"
    rows = tuple(RoomEntry(*(elsewhere if value == ADDRESS else value for value in row_of(e))) for e in PENDING)
    asks = decode(0, *rows, peers=(), lookups={elsewhere: TRYING[ADDRESS]})
    away = ServerView(elsewhere, NET, silence="connection refused", fault=Fault.REFUSES)
    given = Look((prefill(), asks), {(NET, elsewhere): away, (NET, ADDRESS): server()})
    [found] = judge(given).findings
    assert found.code == "PD145"
    assert f"no prefill server here has {elsewhere}; there is {ADDRESS}" in found.next_step


def row_of(one: RoomEntry) -> tuple[Any, ...]:
    return tuple(getattr(one, name) for name in one.__struct_fields__)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault.UNREACHABLE, "can't be reached"),
        (Fault.UNRESOLVED, "has a name that can't be resolved from here"),
        (Fault.SILENT, "does not answer"),
        (Fault.OTHER, "gives decode no answer that it can use (connection refused)"),
    ],
)
def test_other_silences_are_named_as_what_they_are(fault: Fault, says: str) -> None:
    [found] = judge(look(prefill(WAITS), decode(0, *PENDING, peers=(), lookups=TRYING), at=silent(fault))).findings
    assert found.code == "PD145"
    assert f"{ADDRESS} {says}" in found.summary


@pytest.mark.parametrize("fault", [Fault.SILENT, Fault.OTHER, Fault.UNRESOLVED])
def test_a_slow_bootstrap_server_is_clean(fault: Fault) -> None:
    first = {ADDRESS: Lookup(attempts=1, most=15, every_s=1.0, last_s=0.2)}
    for lookups in ({}, first):
        assert codes(twice(prefill(WAITS), decode(0, *PENDING, peers=(), lookups=lookups), at=silent(fault))) == []
    assert codes(twice(prefill(WAITS), decode(0, *PENDING, peers=(), lookups=TRYING), at=server())) == []


def test_after_decode_gave_up_its_recording_tells() -> None:
    asked = tuple(
        event(EventKind.LOOKUP, ago, times, ADDRESS, room=0) for ago, times in ((40, 1), (36, 5), (31, 10), (26, 15))
    )
    failed = (
        event(EventKind.ENQUEUE, 41.0, text="r7"),
        event(EventKind.ENQUEUE, 41.0, text="r8", room=8),
        event(EventKind.ABORT, 27.0, text="r8", room=0),
        event(EventKind.FAILURE, 25.9, text="Aborted by AbortReq.", room=8),
        event(EventKind.FAILURE, 25.9, text="Aborted by AbortReq."),
        event(EventKind.FAILURE, 10.0, text="Aborted by AbortReq.", room=9),
    )
    gave_up = decode(0, peers=(), events=asked, failures=failed)
    for at in (silent(), None):  # now, and from recordings alone
        [found] = judge(look(prefill(WAITS), gave_up, at=at)).findings
        assert found.code == "PD145"
        assert (
            "Decode gave up 26.0 s ago and failed 1 request (Aborted by AbortReq): no client aborted it."
            in found.summary
        )
        assert "decode has had no answer for 40.0 s" in found.summary
        assert found.rooms == (7,)
    answered = replace(gave_up, events=(*asked, event(EventKind.LOOKUP, 20.0, 0, ADDRESS, room=0)))
    assert codes(twice(prefill(WAITS), answered)) == []
    assert codes(twice(prefill(WAITS), gave_up, at=server())) == []  # it answers again
    assert (
        codes(twice(prefill(WAITS), replace(gave_up, events=(event(EventKind.LOOKUP, 700.0, 15, ADDRESS, room=0),))))
        == []
    )


@pytest.mark.parametrize(("ago", "found"), [(2.0, ["PD145"]), (40.0, [])])
def test_what_a_client_aborted_needs_no_bootstrap_server(ago: float, found: list[str]) -> None:
    """The count of attempts stays as it is when nobody asks any more, in the rank and in its recording."""
    elsewhere = f"{HOST}:1"
    tries = {elsewhere: Lookup(attempts=4, most=15, every_s=1.0, last_s=ago)}
    asked = (event(EventKind.LOOKUP, ago + 4, 1, elsewhere, room=0), event(EventKind.LOOKUP, ago, 5, elsewhere, room=0))
    away = ServerView(elsewhere, NET, silence="connection refused", fault=Fault.REFUSES)
    for more in ({"lookups": tries}, {"events": asked}):
        views = prefill(), decode(0, peers=(), **more)  # type: ignore[arg-type]
        assert codes(judge(Look(views, {(NET, elsewhere): away, (NET, ADDRESS): server()}))) == found
    at_prefill = decode(0, peers=(), lookups={ADDRESS: Lookup(attempts=4, most=15, every_s=1.0, last_s=40.0)})
    assert "No request waits for it now" in twice(prefill(), at_prefill, at=silent()).findings[0].summary


def test_requests_that_lost_their_prefill_server_are_told_with_its_bootstrap_server() -> None:
    lost = event(EventKind.FAILURE, 5.0, text=f"Lost connection with prefill instance (bootstrap_addr: {ADDRESS})"[:72])
    asks = decode(0, entry("decode.pending", 9), peers=(), lookups=TRYING, failures=(lost,))
    [found] = judge(look(prefill(), asks, at=silent())).findings
    assert found.rooms == (9, 7)
    assert "failed 1 request (Lost connection with prefill)" in found.summary


@pytest.mark.parametrize(("ticks", "found"), [(900, ["PD145"]), (0, [])])
def test_a_bootstrap_server_that_started_anew_knows_nobody(ticks: int, found: list[str]) -> None:
    """Ranks register once, when they start. Those that still start, and whose loops have not turned, will."""
    prefilling = prefill(WAITS)
    assert prefilling.rooms is not None
    prefilling = replace(prefilling, rooms=msgspec.structs.replace(prefilling.rooms, ticks=ticks))
    empty = ServerView(ADDRESS, NET, info_off="503: Prefill server not fully registered yet (0 workers registered).")
    document = judge(look(prefilling, decode(0, *PENDING, peers=(), lookups=TRYING), at=empty))
    assert [one.code for one in document.findings] == found
    for one in document.findings:
        assert f"{ADDRESS} does not know prefill ranks that run" in one.summary
        assert one.next_step == "Restart prefill here as a whole, so that its ranks register again."


@pytest.mark.parametrize(("attempts", "found"), [(4, []), (8, ["PD145"])])
def test_a_server_that_knows_nobody_is_told_once_decode_is_about_to_give_up(attempts: int, found: list[str]) -> None:
    """Of what is behind it nothing is in sight: it may be a server that starts, or a proxy before one that has ended."""
    tries = {ADDRESS: Lookup(attempts=attempts, most=15, every_s=1.0, last_s=0.2)}
    empty = ServerView(ADDRESS, NET, info_off="503: no upstream")
    document = twice(decode(0, *PENDING, peers=(), lookups=tries), at=empty)
    assert codes(document) == found
    for one in document.findings:
        assert f"{ADDRESS} gives decode no answer that it can use (503: no upstream)" in one.summary


def test_why_rooms_failed_is_asked_wherever_a_server_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told:
        recorded = False

        @staticmethod
        def events(*_: Any) -> tuple[tuple[Event, ...], str]:
            return (event(EventKind.FAILURE, 1.0, text="Aborted by AbortReq."),), ""

    def failures(at: ServerView, **more: Any) -> int:
        one = decode(0, *PENDING, peers=(), **more)
        return len(collect._with_failures(None, one, {(NET, ADDRESS): at}, Told()).failures)  # type: ignore[arg-type]

    assert failures(server()) == 0
    assert failures(silent()) == failures(ServerView(ADDRESS, NET, info_off="503: not yet")) == 2
    assert failures(server(), events=(event(EventKind.LOOKUP, 3.0, 15, ADDRESS, room=0),)) == 2


def test_what_lasts_by_two_looks_says_so() -> None:
    [found] = twice(prefill(), decode(0, peers=()), at=silent()).findings
    assert "the same at two looks, 10.0 s apart" in found.evidence


def test_a_room_that_was_asked_for_is_told_alone() -> None:
    views = prefill(WAITS, entry("prefill.bootstrap", 8)), decode(0, *PENDING, peers=(), lookups=TRYING)
    given = look(*views, at=server())
    assert [row.room for row in judge(given).rooms] == [7, 8]
    assert [row.room for row in judge(replace(given, named=(8,))).rooms] == [8]
    refused = replace(look(*views, at=silent()), named=(8,))
    assert codes(judge(refused)) == []
    assert codes(judge(replace(refused, named=(7,)))) == ["PD145"]


def test_a_bootstrap_server_that_ended_is_found_before_anybody_needs_it() -> None:
    [found] = twice(prefill(), decode(0, peers=()), at=silent()).findings
    assert found.code == "PD145"
    assert "No request waits for it now" in found.summary


@pytest.mark.parametrize("rank", [1, -1])
def test_a_rank_of_another_node_does_not_tell_of_the_bootstrap_server(rank: int) -> None:
    other = prefill()
    other = replace(other, identity=msgspec.structs.replace(other.identity, world_rank=rank))
    assert codes(twice(other, decode(0, peers=()), at=silent())) == []


def test_an_address_that_is_out_of_reach_from_here_only_is_clean() -> None:
    far = replace(decode(0, *PENDING, peers=()), network="")
    given = Look((replace(prefill(), network=""), far), {("", ADDRESS): replace(silent(), network="")})
    assert codes(judge(replace(given, taken_s=10.0), given)) == []


def test_who_is_asked_is_said_to_refuse_or_to_be_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as quiet, socket.create_server(("127.0.0.1", 0)) as gone:
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in (quiet, gone)]
        gone.close()
        found = ask([Question(addresses[1])], 60.0) + ask([Question(addresses[0])], 0.5)
        [hurried] = ask([Question(addresses[0])], 0.1, enough_s=5.0)
        [over] = ask([Question(addresses[0])], 0.0, enough_s=5.0)
        [refuses] = ask([Question(addresses[1])], 60.0, enough_s=3600.0)
    assert [one.fault for one in found] == [Fault.REFUSES, Fault.SILENT]
    assert [(one.fault, one.hurried) for one in (hurried, over)] == [(Fault.OTHER, True)] * 2, "it had no time"
    assert hurried.silence == "no answer within 0.1 s, all that was left of the time for it"
    assert (refuses.fault, refuses.hurried) == (Fault.REFUSES, False), "what it says is said, however short the time"


def test_a_prefill_rank_that_does_not_answer_may_be_the_one_that_decode_uses() -> None:
    quiet = replace(prefill(port=5001, pid=9), rooms=None, settings=None, silence="no answer within 2 s")
    views = prefill(port=5002, pid=8), decode(0)
    assert codes(twice(*views, quiet, at=server(5002))) == []
    assert codes(twice(*views, replace(quiet, state="dead"), at=server(5002))) == ["PD144"]


def test_places_of_shared_context_groups_are_not_compared() -> None:
    def shared(one: RankView) -> RankView:
        return replace(one, identity=msgspec.structs.replace(one.identity, cp_size=2))

    assert codes(twice(shared(prefill(port=5002)), decode(0))) == []
    assert (
        codes(twice(shared(prefill(port=5001)), shared(prefill(port=5002)), decode(0, peers=()), at=server(5002))) == []
    )


def test_many_addresses_are_not_all_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Question] = []
    monkeypatch.setattr(collect, "ask", lambda questions, *_: asked.extend(questions) or [])
    many = {f"{HOST}:{port}": {} for port in range(1, 200)}
    one = decode(0, peers=())
    assert one.rooms is not None
    one = replace(one, rooms=msgspec.structs.replace(one.rooms, prefills=many))
    found = collect._servers([one], (), (), 1.0)
    assert len(asked) == collect.MAX_SERVERS
    assert sum("not asked" in server.silence for server in found.values()) == 199 - collect.MAX_SERVERS


def test_many_addresses_in_a_recording_are_bounded() -> None:
    events = tuple(event(EventKind.LOOKUP, 9.0, 1, f"{HOST}:{port}", room=0) for port in range(1, 2000))
    assert len(decode(0, peers=(), events=events).missed) == MAX_LOOKUPS


@pytest.mark.parametrize(
    ("address", "host", "why"),
    [
        ("127.0.0.1:8998", "gpu1", "a loopback address of gpu1"),
        ("127.0.0.1:8998", socket.gethostname(), "be seen"),
        ("0.0.0.0:8998", "gpu1", "the wildcard address of gpu1"),
        ("[::ffff:127.0.0.1]:8998", "gpu1", "a loopback address of gpu1"),
    ],
)
def test_an_address_of_a_rank_elsewhere_that_means_each_host_is_not_asked_and_says_what_asks_it(
    address: str, host: str, why: str
) -> None:
    one = msgspec.structs.replace(identity(role="prefill"), host=host)
    there = replace(prefill(), identity=one, network="")
    said = collect._unsafe("", address, there)
    assert why in said
    assert "pdctl verify-routing there, or with --bootstrap HOST:PORT" in said


def idle(number: int, **settings: str) -> RankView:
    """Return a prefill rank of another host that listens on all addresses, and that nobody has needed yet."""
    one = prefill(port=5000 + number)
    assert one.settings is not None
    values = {**one.settings.values, "host": "0.0.0.0", "rank_ip": f"10.0.0.{number}", **settings}
    who = msgspec.structs.replace(one.identity, host=f"gpu{number}", instance=f"of gpu{number}", pid=number)
    return replace(one, network="", settings=Settings(values, {}), identity=who)


def test_idle_servers_of_other_hosts_are_at_the_addresses_of_their_ranks() -> None:
    second = replace(idle(3), identity=msgspec.structs.replace(idle(3).identity, instance="of gpu2", world_rank=1))
    found = collect._addresses([idle(1), idle(2), second, idle(4, rank_ip="")])
    assert set(found) == {("", "10.0.0.1:8998"), ("", "10.0.0.2:8998"), ("", "0.0.0.0:8998")}


@pytest.mark.parametrize("host", ["10.0.0.2", "gpu2.cluster"])
def test_the_bootstrap_server_of_another_host_is_held_against_no_rank_of_this_one(host: str) -> None:
    at = ServerView(f"{host}:8998", info={"dp_size": "1"}, routes={(0, 0, 0, 0): 5002})
    seen = Look((idle(1), idle(2)), {("", at.address): at})
    assert codes(judge(replace(seen, taken_s=10.0), seen)) == []
    assert [near(view, seen) for view in seen.views] == [[], [at]]


@pytest.mark.parametrize("host", ["a b", "a\nb", "a\0b", "\x7f"])
def test_a_bootstrap_server_whose_name_is_none_is_said_and_ends_no_thread(host: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        ended: list[object] = []
        patch.setattr(threading, "excepthook", ended.append)
        [view] = ask([Question(f"{host}:8998")], patience(5))
    assert "is no HOST:PORT" in view.silence
    assert ended == []
