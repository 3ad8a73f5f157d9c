"""The judge of waiting requests: each kind of finding, and its twin that must stay clean."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pdctl.probes.stuck.judge import judge
from pdctl.probes.stuck.model import Earlier, Last, RankLooks, StuckDocument
from pdctl.probes.stuck.probe import PROBE
from pdctl.probes.turns import Turn
from pdctl.protocol.model import UNKNOWN, Call, KVPoll
from pdctl.protocol.requests import NO_LIMIT, NOT_KNOWN, Cover, Deferred, Lookup, RoomEntry, Rooms, RoomTable, Space
from pdctl.report.drawing import Sheet
from tests.support.drawing import drawing
from tests.support.identities import identity

WAITING = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
COVERS = {
    "decode": (
        Cover("decode.pending", UNKNOWN, NO_LIMIT),
        Cover("decode.prealloc", KVPoll.WAITING_FOR_INPUT, 300.0, WAITING, "when told"),
        Cover("decode.transfer", KVPoll.WAITING_FOR_INPUT, 300.0, WAITING, "when told"),
        Cover("decode.transfer", UNKNOWN, NO_LIMIT),
    ),
    "prefill": (
        Cover("prefill.bootstrap", KVPoll.BOOTSTRAPPING, 300.0, "BOOT", "when it came"),
        Cover("prefill.inflight", UNKNOWN, NO_LIMIT),
    ),
}
ROOMY = Space(slots=8, slots_free=4, kv=100, kv_free=50)


def entry(queue: str, room: int = 7, **more: Any) -> RoomEntry:
    given = {"state": KVPoll.WAITING_FOR_INPUT, "age_s": 60.0, "slot": 3, "clock_s": 60.0, "kv": 30, **more}
    return RoomEntry(queue, room, f"r{room}", **given)


def look(
    role: str,
    *entries: RoomEntry,
    before: tuple[RoomEntry, ...] | None = None,
    tp: int = 0,
    space: Space = ROOMY,
    turns: int = 0,
) -> RankLooks:
    """turns: that its loop began between the looks; 0: of an engine that does not count them."""

    def rooms(those: tuple[RoomEntry, ...], ticks: int) -> Rooms:
        return Rooms(0, ticks, RoomTable.of(those), COVERS[role], space, {}, {}, {})

    who = identity(role=role, service=role, tp=tp, tp_size=2 if role == "decode" else 1, world_rank=tp)
    return RankLooks(
        who,
        "live",
        first=rooms(entries if before is None else before, 5 if turns else 0),
        second=rooms(entries, 5 + turns if turns else 0),
        recorded=True,
        whole_s=1000.0,
        whole_why="it begins there",
        took_in_s=0.1,
    )


def codes(*looks: RankLooks, **options: Any) -> list[str]:
    return [found.code for found in result(*looks, **options).findings]


def result(*looks: RankLooks, **options: Any) -> StuckDocument:
    return judge(looks, pause_s=2.0, **options)


DONE = {7: Last("Failed", 41.0, True, "Aborted by AbortReq.")}


@pytest.mark.parametrize("what", ["Failed", "Success"])
def test_the_other_side_has_ended_it_and_this_one_has_not_heard(what: str) -> None:
    prefill = replace(look("prefill"), last={7: Last(what, 41.0, True, "Aborted by AbortReq.")})
    document = result(prefill, look("decode", entry("decode.transfer")), look("decode", entry("decode.transfer"), tp=1))
    [found] = document.findings
    assert (found.code, found.rooms, found.ranks) == ("PD142", (7,), ("tp0", "tp1"))
    assert "prefill dp0 pp0 tp0" in found.summary
    assert f"{what} 41.0 s ago" in found.summary
    assert ("Aborted by AbortReq." in found.summary) == (what == "Failed")
    assert f"{WAITING} ends it in 240.0 s" in found.summary
    [request] = document.requests
    assert (request.cover, request.limit_s, request.left_s) == (WAITING, 300.0, 240.0)


def test_which_rank_has_not_heard_is_said_where_another_has() -> None:
    prefill = replace(look("prefill"), last={7: Last("Success", 41.0, True)})
    here = look("decode", entry("decode.transfer", state=KVPoll.SUCCESS))
    [found] = result(prefill, here, look("decode", entry("decode.transfer"), tp=1)).findings
    assert found.code == "PD142"
    assert "room 7: Success on tp0; WaitingForInput on tp1" in found.evidence
    [alike] = result(
        prefill, look("decode", entry("decode.transfer")), look("decode", entry("decode.transfer"), tp=1)
    ).findings
    assert not any(" on tp" in line for line in alike.evidence)


def test_a_message_on_its_way_is_no_finding() -> None:
    prefill = replace(look("prefill"), last=DONE)
    moved = look("decode", entry("decode.transfer"), before=(entry("decode.prealloc", slot=-1),))
    assert codes(prefill, moved) == []
    assert codes(prefill, look("decode", entry("decode.transfer", age_s=1.0))) == []
    just_ended = replace(look("prefill"), last={7: Last("Success", 4.9, True)})
    assert codes(just_ended, look("decode", entry("decode.transfer", age_s=20.0))) == []


def with_kept(one: RankLooks, *kept: Deferred) -> RankLooks:
    assert one.second is not None
    return replace(one, second=msgspec.structs.replace(one.second, deferred=kept))


def test_memory_that_is_kept_for_prefill_is_shown_and_is_no_finding() -> None:
    """All ranks give it back in the turn in which the last of them may: that rank tells how long it still takes."""
    prefill = replace(look("prefill"), last=DONE)
    tp0 = with_kept(look("decode"), Deferred(7, "r7", 3, 40, 400.0, 12.0, 2, 2))
    tp1 = with_kept(look("decode", tp=1), Deferred(7, "r7", 4, 40, 400.0, 13.0, 1, 2))
    document = result(prefill, tp0, tp1)
    assert not document.findings
    [kept] = document.requests
    assert (kept.queue, kept.state, kept.room, kept.left_s) == ("decode.deferred", "1 of 2 acks", 7, 13.0)
    assert kept.cover == "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT"
    assert kept.holds == "slot 3, 40 KV tokens"
    assert [(place.ranks, place.state, place.slot) for place in kept.ranks] == [
        (("tp0",), "2 of 2 acks", 3),
        (("tp1",), "1 of 2 acks", 4),
    ]
    text = io.StringIO()
    drawing(PROBE)(document, Sheet(file=text, width=160))
    assert "tp0 deferred 2 of 2 acks, tp1 deferred 1 of 2 acks; holds slot 3, 40 KV tokens" in text.getvalue()
    assert "DEFERRED_DECODE_KV_RELEASE_TIMEOUT in 13.0 s" in text.getvalue()
    drains = with_kept(look("decode"), Deferred(8, "r8", 3, 40, 400.0))
    [kept] = result(prefill, drains, by="queue").requests
    assert (kept.state, kept.cover, kept.left_s) == ("its receiver drains", "nothing", None)


def test_who_has_heard_waits_for_its_metadata() -> None:
    prefill = replace(look("prefill"), last={7: Last("Success", 50.0, True)})
    [found] = result(prefill, look("decode", entry("decode.transfer", state=KVPoll.SUCCESS, clock_s=-1.0))).findings
    assert found.code == "PD141"
    assert "Its transfer is complete here, and it was not taken on." in found.summary
    assert "1 of 8 metadata slots are held this way" in " ".join(found.evidence)
    assert found.summary.endswith("1 of 8 metadata slots are held this way.")  # in the table, too


def test_who_computes_takes_a_complete_transfer_on_in_its_next_turn() -> None:
    sent = look("prefill", entry("prefill.inflight", state=KVPoll.SUCCESS, clock_s=-1.0))
    decode = replace(look("decode"), last={7: Last("Success", 6.0, True)})
    assert codes(sent, decode) == ["PD141"]
    assert codes(replace(sent, turn=COMPUTES), decode) == []


def test_a_transfer_that_never_ends_is_covered_by_nothing() -> None:
    prefill = look("prefill", entry("prefill.inflight", state=KVPoll.TRANSFERRING))
    decode = look("decode", entry("decode.transfer", state=KVPoll.TRANSFERRING, clock_s=-1.0))
    document = result(prefill, decode)
    assert [found.code for found in document.findings] == ["PD141", "PD141"]
    assert all("No time-out covers this state" in found.summary for found in document.findings)
    assert {request.cover for request in document.requests} == {"nothing"}
    assert {request.holds for request in document.requests} == {"slot 3, 30 KV tokens"}
    assert codes(prefill, decode, stuck_s=61.0) == []


def test_a_slow_transfer_in_a_queue_that_moves_is_no_finding() -> None:
    mine = entry("decode.transfer", state=KVPoll.TRANSFERRING, clock_s=-1.0)
    decode = look("decode", mine, before=(entry("decode.transfer", 5), mine))
    prefill = look(
        "prefill", entry("prefill.inflight", state=KVPoll.TRANSFERRING), before=(entry("prefill.inflight", 5),)
    )
    document = result(prefill, decode)
    assert document.findings == ()
    assert {request.progress for request in document.requests} == {"in line", "new"}


@pytest.mark.parametrize("queue", ["waiting", "running"])
def test_what_prefill_still_computes_is_waited_for(queue: str) -> None:
    waiting = entry("decode.transfer", state=KVPoll.TRANSFERRING, clock_s=-1.0)
    assert codes(look("prefill", entry(queue)), look("decode", waiting)) == []


def test_what_is_not_stuck_is_not_said_to_end_by_nothing() -> None:
    """The line of check and the table of stuck say the same of it."""

    def drawn(prefill: RoomEntry, age_s: float = 60.0) -> tuple[str, StuckDocument]:
        waits = entry("decode.transfer", state=KVPoll.TRANSFERRING, clock_s=-1.0, age_s=age_s)
        document, text = result(look("prefill", prefill), look("decode", waits)), io.StringIO()
        drawing(PROBE)(document, Sheet(file=text, width=160))
        return text.getvalue(), document

    text, document = drawn(entry("running"))
    assert "no time-out ends it" in text
    assert PROBE.summary(document) == (
        "1 request waits; no time-out ends it: room 7 for 60.0 s, prefill dp0 pp0 has it in running"
    )
    text, document = drawn(entry("running"), age_s=3.0)
    assert PROBE.summary(document) == "1 request waits, none is stuck"
    text, document = drawn(entry("prefill.inflight", state=KVPoll.TRANSFERRING))
    assert "nothing ends it" in text
    assert {found.code for found in document.findings} == {"PD141"}


def test_a_full_decode_is_full_and_not_stuck() -> None:
    full = Space(slots=8, slots_free=4, kv=100, kv_free=50, reserved=10, head=7, needs=90)
    decode = look(
        "decode", *[entry("decode.prealloc", room, slot=-1, clock_s=-1.0, kv=0) for room in (7, 8)], space=full
    )
    prefill = look("prefill", *[entry("prefill.bootstrap", room, state=KVPoll.BOOTSTRAPPING) for room in (7, 8)])
    document = result(prefill, decode)
    [found] = document.findings
    assert (found.code, found.level.value) == ("PD140", "info")
    assert "room 7 is first in line and needs 90 KV tokens, 40 free (10 more kept back" in found.summary
    notes = {request.room: request.note for request in document.requests if request.role == "decode"}
    assert notes == {7: "first in line for space", 8: "waits for space"}
    slots = look("decode", entry("decode.prealloc", slot=-1, clock_s=-1.0), space=msgspec.structs.replace(
        full, needs=10, slots_free=0
    ))  # fmt: skip
    assert "all 8 metadata slots are taken" in result(prefill, slots).findings[0].summary
    roomy = look(
        "decode", entry("decode.prealloc", slot=-1, clock_s=-1.0), space=msgspec.structs.replace(full, needs=10)
    )
    alone = look("prefill", entry("prefill.bootstrap", state=KVPoll.BOOTSTRAPPING))
    assert codes(alone, roomy) == ["PD141"]


def test_a_room_the_other_side_does_not_know() -> None:
    decode = look("decode", entry("decode.pending", slot=-1, state=KVPoll.BOOTSTRAPPING, clock_s=-1.0))
    assert codes(look("prefill"), decode) == ["PD143"]
    known = look("prefill", entry("prefill.bootstrap", state=KVPoll.BOOTSTRAPPING))
    assert codes(known, decode) == ["PD141"]
    silent = RankLooks(identity(role="prefill", service="prefill"), "live", silence="no answer within 2 s")
    document = result(silent, decode)
    assert [found.code for found in document.findings] == ["PD141"]
    assert "not known: prefill dp0 pp0 tp0: no answer within 2 s" in document.requests[0].peer
    assert document.partial


WAITS = entry("decode.transfer")
COMPUTES = Turn(turned=False, age_s=45.0, doing="model forward", computing=True, state="running")


def peer(prefill: RankLooks, *more: RankLooks, mine: RoomEntry = WAITS) -> tuple[str, str, list[str]]:
    """What is said of prefill, in words and in a word, and the findings."""
    document = result(prefill, *more, look("decode", mine))
    [request] = [request for request in document.requests if request.role == "decode"]
    return request.peer, request.peer_is, [found.code for found in document.findings]


def test_a_request_that_never_came_is_said_so_by_a_witness() -> None:
    assert peer(look("prefill")) == ("it never came to prefill", "never", ["PD143"])
    only_told = replace(look("prefill"), last={7: Last("WaitingForInput", 59.9, False, came=False)})
    words = "it never came to prefill (prefill dp0 pp0 tp0 only got decode's addresses for it 59.9 s ago)"
    assert peer(only_told) == (words, "never", ["PD143"])
    failed = replace(look("prefill"), last={7: Last("Failed", 41.0, True, came=False)})
    assert peer(failed)[1:] == ("never", ["PD143"])  # decode's abort reached it, the request did not


def test_story_shows_where_a_request_was_last_that_came() -> None:
    decode = look("decode", WAITS)
    lost = replace(look("prefill"), last={7: Last("entered prefill.bootstrap", 59.9, False)})
    steps = [result(prefill, decode).findings[0].next_step for prefill in (look("prefill"), lost)]
    assert ["pdctl story" in step for step in steps] == [False, True]
    assert all(step.startswith("Look at the router") for step in steps)


def test_what_prefill_had_and_lost_came() -> None:
    lost = replace(look("prefill"), last={7: Last("entered prefill.bootstrap", 59.9, False)})
    words = "prefill dp0 pp0 tp0 has it no more; last seen 59.9 s ago: entered prefill.bootstrap"
    assert peer(lost) == (words, "gone", ["PD143"])
    just = replace(lost, last={7: Last("entered prefill.bootstrap", 4.0, False)})
    assert peer(just) == (words.replace("59.9", "4.0"), "gone", [])
    # It was there at the first look: it is on its way between two queues, or in a batch.
    assert peer(replace(look("prefill", before=(entry("prefill.bootstrap"),)), last=lost.last))[1:] == ("unread", [])


@pytest.mark.parametrize("last", [{}, {7: Last("WaitingForInput", 59.9, False, came=False)}])
def test_a_loop_that_has_not_turned_since_is_no_witness(last: dict[int, Last]) -> None:
    """A long forward: requests behind it are unread in the socket."""
    busy = replace(look("prefill"), took_in_s=61.0, turn=COMPUTES, last=last)
    words = "not known: prefill dp0 pp0 tp0 has been in model forward for 45.0 s"
    assert peer(busy) == (words, "unread", [])
    assert peer(busy, mine=entry("decode.pending", slot=-1, clock_s=-1.0))[1:] == ("unread", [])
    # It may have come a moment after this side's, and a witness of less than the age that counts is none of a finding.
    assert peer(replace(busy, took_in_s=59.0))[1:] == ("unread", [])
    assert peer(replace(busy, took_in_s=31.0))[1:] == ("never", [])
    assert peer(replace(busy, took_in_s=29.0))[1:] == ("never", ["PD143"])


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (Turn(doing="model forward", computing=True, outside=True), []),
        (Turn(doing="idle", idle=True, outside=True), ["PD141"]),
        (Turn(doing="recv_requests: broadcast", call=Call(op="broadcast"), outside=True), ["PD141"]),
    ],
)
def test_what_is_read_from_outside_waits_behind_a_forward(turn: Turn, expected: list[str]) -> None:
    """Nobody counts its turns: what waits there may go on when the forward ends."""
    prefill = look("prefill", entry("prefill.bootstrap"))
    assert codes(replace(prefill, state="outside", turn=turn), look("decode", entry("decode.transfer"))) == expected


def test_a_stage_that_waits_for_one_that_computes_has_no_stuck_request() -> None:
    """The room is in the first stage's batch and still in the queue of the second, whose loop can't turn meanwhile."""
    waits = Turn(turned=False, age_s=45.0, doing="receive from the previous stage", state="running")
    second = look("prefill", entry("prefill.bootstrap"))
    second = replace(second, identity=msgspec.structs.replace(second.identity, pp=1, pp_size=2, world_rank=1))
    first = look("prefill", entry("running"))
    first = replace(first, identity=msgspec.structs.replace(first.identity, pp_size=2))
    decode = look("decode", entry("decode.transfer"))
    assert codes(replace(first, turn=COMPUTES), replace(second, turn=waits), decode) == []
    # Both wait: nobody computes, and the request is stuck, whatever holds the loops.
    assert codes(replace(first, turn=waits), replace(second, turn=waits), decode) == ["PD141"]
    # The second stage turns, and polls the request: it is stuck there.
    turns = Turn(turned=True, age_s=0.1, state="running")
    assert codes(replace(first, turn=COMPUTES), replace(second, turn=turns), decode) == ["PD141"]
    # Another server computes, which holds up nobody here.
    other = replace(first, identity=msgspec.structs.replace(first.identity, service="other"), turn=COMPUTES)
    assert codes(other, replace(second, turn=waits), decode) == ["PD141"]


def test_what_a_forward_has_taken_is_not_lost() -> None:
    took = Last("entered prefill.bootstrap", 59.9, False)
    busy = replace(look("prefill"), took_in_s=40.0, turn=COMPUTES, last={7: took})
    words = "prefill dp0 pp0 tp0 had it 59.9 s ago: entered prefill.bootstrap; it has been in model forward for 45.0 s"
    assert peer(busy) == (words, "unread", [])


def test_a_whole_turn_between_the_looks_is_a_witness_without_a_recording() -> None:
    bare = replace(look("prefill"), recorded=False, took_in_s=None, whole_s=None, whole_why="it has no recording")
    assert peer(bare)[1:] == ("unread", [])
    assert bare.second is not None
    turned = replace(bare, second=msgspec.structs.replace(bare.second, ticks=2, mono_ns=2 * 10**9))
    words = "no prefill rank has it now; whether one ever had it is not known: prefill dp0 pp0 tp0: it has no recording"
    assert peer(turned) == (words, "absent", ["PD143"])
    assert peer(replace(bare, turn=Turn(idle=True)))[1:] == ("unread", [])  # now; it may have been in a forward then
    once = replace(bare, second=msgspec.structs.replace(bare.second, ticks=1, mono_ns=2 * 10**9))
    assert peer(once)[1:] == ("unread", [])


@pytest.mark.parametrize(
    ("whole_s", "why", "said"),
    [
        (40.0, "it begins there", "prefill dp0 pp0 tp0's recording goes back 40.0 s: it begins there"),
        (None, "its recording is cut off", "prefill dp0 pp0 tp0: its recording is cut off"),
    ],
)
def test_a_recording_without_the_beginning_does_not_tell_whether_it_came(
    whole_s: float | None, why: str, said: str
) -> None:
    partly = replace(look("prefill"), whole_s=whole_s, whole_why=why)
    words = f"no prefill rank has it now; whether one ever had it is not known: {said}"
    assert peer(partly) == (words, "absent", ["PD143"])


def test_every_rank_that_takes_in_requests_has_to_be_a_witness() -> None:
    def at(**where: Any) -> RankLooks:
        one = look("prefill")
        return replace(one, identity=msgspec.structs.replace(one.identity, **where))

    busy = {"took_in_s": 61.0, "turn": COMPUTES}
    assert peer(at(), replace(at(dp=1), **busy))[1:] == ("unread", [])
    assert peer(at(), replace(at(service="other"), **busy))[1:] == ("unread", [])
    assert peer(at(), replace(at(pp=1), **busy))[1:] == ("never", ["PD143"])  # the first stage takes them in
    assert peer(replace(at(), **busy), at(pp=1))[1:] == ("unread", [])
    assert peer(at(), replace(at(tp=1), **busy))[1:] == ("never", ["PD143"])  # it takes in what its peers do


def test_a_side_that_does_not_answer_is_no_witness() -> None:
    silent = replace(look("prefill"), first=None, second=None, silence="no answer within 2 s")
    assert peer(silent)[1:] == ("silent", [])
    had = replace(silent, last={7: Last("entered prefill.bootstrap", 59.9, False)})
    assert peer(had)[0] == (
        "not known: prefill dp0 pp0 tp0 had it 59.9 s ago: entered prefill.bootstrap; prefill dp0 pp0 tp0: no answer"
        " within 2 s"
    )


def test_one_request_id_with_two_rooms() -> None:
    def two(queue: str, *rids: str) -> tuple[RoomEntry, ...]:
        return tuple(replace_rid(entry(queue, 7 + n, age_s=1.0), rid) for n, rid in enumerate(rids))

    document = result(look("prefill", *two("running", "same", "same")), look("decode", *two("running", "same", "same")))
    [found] = document.findings
    assert (found.code, found.level.value, found.rooms) == ("PD147", "warning", (7, 8))
    assert found.summary == "rid same has 2 rooms at the same time: 7, 8."
    assert "room 8: decode dp0 pp0 has it in running" in found.evidence
    # Each side may have one of them: the first try is still on prefill.
    assert codes(look("prefill", *two("running", "same")), look("decode", *two("running", "x", "same"))) == ["PD147"]
    assert codes(look("decode", *two("running", "same", "retry"))) == []
    first = two("running", "same")
    assert codes(look("decode", *two("running", "same", "same"), before=first)) == []  # the first may be ending


def replace_rid(one: RoomEntry, rid: str) -> RoomEntry:
    return msgspec.structs.replace(one, rid=rid)


def test_a_room_that_another_request_had_before() -> None:
    prefill = look("prefill", entry("prefill.bootstrap", state=KVPoll.BOOTSTRAPPING, age_s=9.0, clock_s=9.0))
    had = {7: Earlier("first", 40.0, "Failed")}
    decode = replace(look("decode", entry("decode.transfer", age_s=9.0)), earlier=had)
    [found] = result(prefill, decode).findings
    assert (found.code, found.rooms) == ("PD147", (7,))
    assert found.summary == (
        "Room 7 of request r7, which waits in decode.transfer of decode dp0 pp0 for 9.0 s, was that of request first"
        " 40.0 s ago, which ended there as Failed."
    )
    moved = look("decode", entry("decode.transfer", age_s=9.0), before=(entry("decode.prealloc", slot=-1),))
    assert codes(prefill, replace(moved, earlier=had)) == []


def test_another_cluster_is_no_peer() -> None:
    decode = look("decode", entry("decode.transfer"))
    elsewhere = look("prefill")
    elsewhere = replace(elsewhere, identity=msgspec.structs.replace(elsewhere.identity, cluster="b"), last=DONE)
    document = result(elsewhere, decode)
    assert document.findings == ()
    assert document.requests[0].peer == "no prefill rank in sight"


def test_a_backend_that_is_not_known() -> None:
    decode = look("decode", entry("decode.transfer", state=KVPoll.TRANSFERRING))
    assert decode.second is not None
    unknown = msgspec.structs.replace(decode.second, covers=(Cover("decode.transfer", UNKNOWN, NOT_KNOWN),))
    document = result(
        look("prefill", entry("prefill.inflight", age_s=1.0)), replace(decode, first=unknown, second=unknown)
    )
    assert document.findings == ()
    assert {request.cover for request in document.requests if request.role == "decode"} == {"unknown"}


def test_a_request_in_two_queues_is_told_once_and_younger_ones_are_counted() -> None:
    decode = look(
        "decode",
        entry("decode.prealloc", slot=-1, state=KVPoll.BOOTSTRAPPING, clock_s=-1.0),
        entry("decode.pending", slot=-1, state=KVPoll.BOOTSTRAPPING, clock_s=-1.0),
        entry("decode.transfer", 8, age_s=3.0),
    )
    document = result(decode, older_s=10.0)
    assert [(request.room, request.queue) for request in document.requests] == [(7, "decode.pending")]
    assert document.hidden == 1


@pytest.mark.parametrize(("by", "rooms"), [("age", [9, 7, 8]), ("queue", [7, 9, 8]), ("rank", [7, 9, 8])])
def test_order(by: str, rooms: list[int]) -> None:
    decode = look(
        "decode",
        entry("decode.transfer", 8, age_s=3.0),
        entry("decode.transfer", 9, age_s=50.0),
        entry("decode.prealloc", 7, age_s=20.0),
    )
    assert [request.room for request in result(decode, by=by).requests] == rooms


def test_what_one_rank_runs_and_another_waits_for() -> None:
    runs = look("decode", entry("running", slot=-1, age_s=90.0))
    document = result(look("prefill"), runs, look("decode", entry("decode.transfer"), tp=1))
    [request] = document.requests
    assert request.queue == "decode.transfer"
    assert [(place.ranks, place.queue) for place in request.ranks] == [
        (("tp0",), "running"),
        (("tp1",), "decode.transfer"),
    ]


def test_what_one_rank_runs_and_another_has_heard_of() -> None:
    prefill = replace(look("prefill"), last={7: Last("Success", 50.0, True)})
    runs = look("decode", entry("running", slot=-1, age_s=90.0, state=UNKNOWN))
    waits = look("decode", entry("decode.transfer", state=KVPoll.SUCCESS, clock_s=-1.0), tp=1)
    [found] = result(prefill, runs, waits).findings
    assert found.code == "PD141"
    assert "Its transfer is complete here: tp0 took it on and tp1 did not." in found.summary
    assert "abort" not in found.next_step.lower()


def test_ranks_of_one_group_in_different_states() -> None:
    one = look("decode", entry("decode.transfer", state=KVPoll.SUCCESS))
    two = look("decode", entry("decode.transfer", age_s=59.0), tp=1)
    document = result(replace(look("prefill"), last={7: Last("Success", 40.0, True)}), one, two)
    [request] = document.requests
    assert [(place.ranks, place.state) for place in request.ranks] == [
        (("tp0",), "Success"),
        (("tp1",), "WaitingForInput"),
    ]
    assert [found.code for found in document.findings] == ["PD142"]


def test_a_group_is_where_its_least_advanced_rank_is() -> None:
    heard = look("decode", entry("decode.transfer", state=KVPoll.SUCCESS, clock_s=-1.0))
    waits = look("decode", entry("decode.transfer", age_s=59.0, clock_s=59.0), tp=1)
    document = result(replace(look("prefill"), last={7: Last("Success", 4.0, True)}), heard, waits, stuck_s=2.0)
    [request] = document.requests
    assert (request.state, request.age_s) == ("WaitingForInput", 60.0)
    assert (request.cover, request.left_s) == (WAITING, 241.0)
    assert document.findings == ()  # the other rank's message may still be on its way


@pytest.mark.parametrize("queue", ["waiting", "decode.retracted"])
def test_who_waits_for_space_has_heard_long_ago(queue: str) -> None:
    prefill = replace(look("prefill"), last={7: Last("Success", 50.0, True)})
    mine = entry(queue, slot=-1, state=UNKNOWN, clock_s=-1.0)
    assert codes(prefill, look("decode", mine)) == []
    waits = look("decode", entry("decode.transfer", state=KVPoll.SUCCESS, clock_s=-1.0), tp=1)
    assert codes(prefill, look("decode", mine), waits) == ["PD141"]  # its metadata; the message came


def test_an_earlier_request_with_the_same_room() -> None:
    prefill = replace(look("prefill"), last={7: Last("Success", 90.0, True)})
    mine = entry("decode.transfer", clock_s=-1.0)
    document = result(prefill, look("decode", mine))
    assert [found.code for found in document.findings] == ["PD143"]
    [request] = document.requests
    assert request.peer_ended_s is None
    assert request.peer == (
        "it never came to prefill (an earlier request with this room: Success on prefill dp0 pp0 tp0 90.0 s ago)"
    )
    assert codes(prefill, look("decode", entry("decode.transfer", age_s=20.0))) == []  # it may still come
    just = replace(look("prefill"), last={7: Last("Failed", 61.5, True)})
    assert codes(just, look("decode", mine)) == ["PD142"]  # the other side may have had it a moment before


def test_a_request_that_went_on_after_the_other_side_ended_it() -> None:
    prefill = replace(look("prefill"), last={7: Last("Failed", 90.0, True)})
    decode = replace(look("decode", entry("decode.transfer")), since={(7, "r7"): 100.0})
    assert codes(prefill, decode) == ["PD142"]


def test_attempts_at_a_bootstrap_server_end_a_wait_that_no_time_out_covers() -> None:
    pending = entry("decode.pending", state=KVPoll.BOOTSTRAPPING, clock_s=-1.0, slot=-1, bootstrap="10.0.0.1:8998")
    plain = look("decode", pending)
    assert [request.cover for request in result(plain).requests] == ["nothing"]
    trying = {"10.0.0.1:8998": Lookup(attempts=4, most=15, every_s=1.0)}
    both = [msgspec.structs.replace(one, lookups=trying) for one in (plain.first, plain.second) if one is not None]
    document = result(look("prefill", entry("prefill.bootstrap")), replace(plain, first=both[0], second=both[1]))
    [request] = [request for request in document.requests if request.role == "decode"]
    assert (request.cover, request.left_s) == ("attempt 15 at the bootstrap server 10.0.0.1:8998 (now 4)", 11.0)
    assert not [found for found in document.findings if found.group.startswith("decode")]


def test_who_began_after_the_request_came_can_not_have_had_it() -> None:
    begun = replace(look("prefill"), whole_s=40.0, up_s=40.5)
    document = result(begun, look("decode", WAITS))
    [found] = document.findings
    assert (found.code, document.requests[0].peer_is) == ("PD143", "later")
    assert "no prefill rank has it: prefill began 40.5 s ago, after this request came. If a process" in found.summary
    assert found.next_step == (
        "Send the request again. Abort the request on decode (POST /abort_request with its rid), or wait for"
        f" {WAITING}."
    )
    # The other way round: decode was restarted, and prefill still holds what was meant for the process before.
    held = look("prefill", entry("prefill.bootstrap", state=KVPoll.BOOTSTRAPPING))
    [found] = result(held, replace(look("decode"), whole_s=40.0, up_s=40.5)).findings
    assert found.code == "PD143"
    assert found.next_step.startswith("Send the request again. Abort the request on prefill")
    # One of two servers is new, and the other never had it.
    other = look("prefill")
    other = replace(other, identity=msgspec.structs.replace(other.identity, service="other"))
    assert peer(begun, other)[1:] == ("later", ["PD143"])
    # Of the other one nothing is known.
    assert peer(begun, replace(other, whole_s=None, whole_why="it has no recording"))[1:] == ("absent", ["PD143"])
    for up_s in (None, 59.0, 61.0):
        assert peer(replace(begun, up_s=up_s))[1] == "absent"
    assert peer(begun, mine=entry("decode.transfer", age_s=43.0))[1:] == ("later", ["PD143"])
    assert peer(replace(begun, up_s=20.0), mine=entry("decode.transfer", age_s=29.0))[2] == []


def test_a_request_of_several_stages_is_one_finding() -> None:
    stages = []
    for pp in (0, 1):
        one = look("prefill", entry("prefill.bootstrap", state=KVPoll.BOOTSTRAPPING, age_s=60.0 - pp))
        stages.append(replace(one, identity=msgspec.structs.replace(one.identity, pp=pp, pp_size=2, world_rank=pp)))
    [found] = result(*stages, look("decode")).findings
    assert found.code == "PD143"
    assert found.rooms == (7,)
    assert (
        "Room 7 waits in prefill.bootstrap of prefill dp0 pp0 and prefill dp0 pp1, Bootstrapping for" in found.summary
    )


def test_many_rooms_that_other_requests_had_before_are_one_finding() -> None:
    many = range(1, 100)
    decode = look("decode", *(entry("decode.transfer", room) for room in many))
    decode = replace(decode, earlier={room: Earlier(f"old{room}", 90.0) for room in many})
    prefill = look("prefill", *(entry("prefill.inflight", room) for room in many))
    [found] = [one for one in result(prefill, decode).findings if one.code == "PD147"]
    assert found.rooms == tuple(many)
    assert found.summary.endswith("was that of request old1 90.0 s ago. So it is with 98 more rooms.")
    assert len(found.evidence) < 20


def test_a_room_that_two_prefill_servers_have_is_told_of_both() -> None:
    first, second = (look("prefill", entry("prefill.bootstrap", state=KVPoll.BOOTSTRAPPING)) for _ in range(2))
    second = replace(second, identity=msgspec.structs.replace(second.identity, service="other", instance="other/2"))
    document = result(first, second, look("decode", entry("decode.transfer")))
    sides = {one.side: one.peer for one in document.requests}
    assert set(sides) == {"prefill dp0 pp0 of prefill", "prefill dp0 pp0 of other", "decode dp0 pp0"}
    assert sides["decode dp0 pp0"] == (
        "prefill dp0 pp0 of prefill has it in bootstrap Bootstrapping; prefill dp0 pp0 of other has it in bootstrap"
        " Bootstrapping"
    )
    # One of them has ended it: which one is said.
    ended = replace(look("prefill"), last={7: Last("Failed", 41.0, True)})
    assert peer(ended, replace(second, second=look("prefill").second, first=look("prefill").first))[0].startswith(
        "prefill dp0 pp0 tp0 of prefill had Failed 41.0 s ago"
    )
