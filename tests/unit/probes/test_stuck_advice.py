"""What is said of a wait, and advised: by how the other side ended the request, and by what this side can still do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pdctl.probes.aborts import WARNING, with_warnings
from pdctl.probes.stuck.model import Last, RankLooks
from pdctl.protocol.model import KVPoll
from pdctl.protocol.requests import Rooms, RoomTable, Space
from pdctl.report.causes import connect
from pdctl.report.findings import Finding, finding
from tests.unit.probes.test_stuck_judge import ROOMY, entry, look, result

GIVEN_UP = "Request 7 timed out after 25.0s in KVPoll.Bootstrapping"


def one(*looks: RankLooks) -> Finding:
    [found] = result(*looks).findings
    return found


def prefill_had(what: str, reason: str = "", ago_s: float = 41.0) -> RankLooks:
    return replace(look("prefill"), last={7: Last(what, ago_s, True, reason)})


@pytest.mark.parametrize(
    ("clock_s", "said", "advised"),
    [
        (60.0, "Decode had sent its addresses 19.0 s before that", "loses messages from decode to prefill"),
        (30.0, "Decode had not sent its addresses by then: it sent them 11.0 s later.", "BOOTSTRAP_TIMEOUT on prefill"),
    ],
)
def test_what_prefill_gave_up_waiting_for_addresses(clock_s: float, said: str, advised: str) -> None:
    found = one(prefill_had("Failed", GIVEN_UP), look("decode", entry("decode.transfer", clock_s=clock_s)))
    assert found.code == "PD142"
    assert said in found.summary
    assert advised in found.next_step
    assert "or wait for SGLANG_DISAGGREGATION_WAITING_TIMEOUT" in found.next_step


def test_what_decode_gave_up_by_itself_is_no_lost_message() -> None:
    waits = look("prefill", entry("prefill.bootstrap", state=KVPoll.BOOTSTRAPPING))
    decode = replace(look("decode"), last={7: Last("Failed", 20.0, True, "Request 7 timed out in WaitingForInput")})
    found = one(waits, decode)
    assert found.code == "PD142"
    assert "Decode gave it up by its own time-out." in found.summary
    assert "loses messages" not in found.next_step
    assert found.next_step.startswith("Abort the request on prefill")


def lacking(found: RankLooks, *lacks: str) -> RankLooks:
    return replace(found, identity=msgspec.structs.replace(found.identity, lacks=lacks))


def test_an_engine_that_tells_of_no_failure_has_lost_no_message() -> None:
    waits = look("decode", entry("decode.transfer"))
    found = one(lacking(prefill_had("Failed", "KV transfer failed"), "failures"), waits)
    assert "In this version prefill does not tell decode of a request that it failed." in found.summary
    assert "loses messages" not in found.next_step
    assert "pdctl story 7 shows why it failed. Prefill tells decode of it from SGLang 0.5.22 on." in found.next_step
    aborted = one(lacking(prefill_had("Failed", "Aborted by AbortReq."), "failures"), waits)
    assert "tell both servers: in this version prefill does not tell decode" in aborted.next_step
    for told in (lacking(prefill_had("Success"), "failures"), prefill_had("Failed", "KV transfer failed")):
        assert "look for what loses messages from prefill to decode" in one(told, waits).next_step


@pytest.mark.parametrize(
    "code", ["PD113", "PD114", "PD116", "PD120", "PD140", "PD141", "PD142", "PD143", "PD146", "PD148", "PD149", "PD155"]
)
def test_where_an_abort_on_decode_ends_a_thread_of_prefill_that_is_said(code: str) -> None:
    advised = {"PD116", "PD120", "PD141", "PD142", "PD148", "PD149", "PD155"}
    old = [look(role).identity for role in ("prefill", "decode")]
    mine = [msgspec.structs.replace(each, lacks=("aborts", "failures")) for each in old]
    found = finding(code, "it waits", units=(mine[1].unit,))
    [warned] = with_warnings([found], mine)
    assert (WARNING in warned.next_step) is (code in advised), warned.next_step
    assert with_warnings([found], old) == (found,)
    away = msgspec.structs.replace(mine[0], cluster="other")
    assert with_warnings([found], [old[0], old[1], away]) == (found,), "another cluster's prefill does not matter"


def test_an_abort_on_prefill_ends_no_thread() -> None:
    ranks = [msgspec.structs.replace(look("prefill").identity, lacks=("aborts",))]
    step = "Abort the request on prefill (POST /abort_request with its rid)."
    assert with_warnings([finding("PD142", "x", next_step=step)], ranks)[0].next_step == step
    for step in (
        "Abort the request on decode (POST",
        "Abort on decode what prefill has given up",
        "Send it. Abort the room: it",
        "Abort it on the decode server (POST",
    ):
        assert WARNING in with_warnings([finding("PD142", "x", next_step=step)], ranks)[0].next_step


def test_who_aborts_has_to_tell_both_sides() -> None:
    found = one(prefill_had("Failed", "Aborted by AbortReq."), look("decode", entry("decode.transfer")))
    assert "An abort ended it on prefill." in found.summary
    assert "tell both servers" in found.next_step


@pytest.mark.parametrize("last", [("Success", ""), ("Failed", "the transfer engine failed")])
def test_a_message_that_is_lost(last: tuple[str, str]) -> None:
    found = one(prefill_had(*last), look("decode", entry("decode.transfer")))
    assert "look for what loses messages from prefill to decode" in found.next_step


def test_without_a_clock_nobody_is_told_to_wait_for_a_time_out() -> None:
    found = one(
        prefill_had("Success"), look("decode", entry("decode.transfer", state=KVPoll.TRANSFERRING, clock_s=-1.0))
    )
    assert "No time-out covers this state" in found.summary
    assert "or wait" not in found.next_step


# ---- full ------------------------------------------------------------------------------------------------------------

FULL = Space(slots=8, slots_free=4, kv=100, kv_free=0, head=7, needs=90)


def line(room: int = 7) -> Any:
    return entry("decode.prealloc", room, slot=-1, clock_s=-1.0, kv=0)


def test_a_decode_that_is_full_until_prefill_gives_up() -> None:
    prefill = replace(look("prefill"), last={room: Last("Failed", 9.0, True, GIVEN_UP) for room in (7, 8)})
    found = connect(result(prefill, look("decode", line(7), line(8), space=FULL)).findings)
    assert [(each.code, each.follows) for each in found] == [("PD140", ""), ("PD142", "PD140")]
    assert found[0].summary == (
        "decode dp0 pp0 is full: room 7 is first in line and needs 90 KV tokens, 0 free. Room 7 has waited for 60.0 s."
        " 1 more waits behind it. Prefill has given up 2 requests meanwhile."
    )
    assert "Abort on decode what prefill has given up" in found[0].next_step
    assert "for want of space" in found[1].summary


def test_a_decode_that_is_merely_full_needs_nothing() -> None:
    prefill = look("prefill", entry("prefill.bootstrap", state=KVPoll.BOOTSTRAPPING))
    found = one(prefill, look("decode", line(), space=FULL))
    assert (found.code, found.level.value) == ("PD140", "info")
    assert found.next_step.startswith("Nothing.")


def test_what_requests_hold_that_nobody_waits_for() -> None:
    dead = entry("decode.transfer", 5, client=0, kv=60, age_s=1.0)
    failed = entry("decode.transfer", 6, kv=30, age_s=1.0)
    alive = entry("decode.transfer", 9, kv=10, age_s=1.0)
    prefill = replace(look("prefill"), last={6: Last("Failed", 0.5, True, "x")})
    found = one(prefill, look("decode", line(), dead, failed, alive, space=FULL))
    assert "2 requests that nobody waits for hold 90 of 100 KV tokens." in found.summary
    assert "nobody" not in one(look("prefill"), look("decode", line(), alive, space=FULL)).summary


@pytest.mark.parametrize(
    ("ended", "code", "space", "held"),
    [
        (False, "PD141", Space(slots=2, slots_free=0, kv=100, kv_free=50, head=7, needs=10), "2 of 2 metadata slots"),
        (True, "PD142", FULL, "60 of 100 KV tokens"),
    ],
)
def test_who_is_full_of_what_is_stuck_is_not_told_to_add_capacity(
    ended: bool, code: str, space: Space, held: str
) -> None:
    holders = [entry("decode.transfer", room, state=KVPoll.TRANSFERRING, clock_s=-1.0) for room in (1, 2)]
    last = {room: Last("Success", 41.0, True) for room in (1, 2)} if ended else {}
    there = () if ended else [entry("prefill.bootstrap", room, clock_s=-1.0) for room in (1, 2)]
    found = result(replace(look("prefill", *there), last=last), look("decode", *holders, line(), space=space)).findings
    [full] = [each for each in found if each.code == "PD140"]
    assert full.summary.endswith(f"2 requests that are stuck hold {held} ({code}).")
    assert full.next_step.startswith(f"See to what is stuck first ({code})")


def test_what_the_other_side_got_on_with_is_not_stuck() -> None:
    sent = look("prefill", entry("prefill.inflight", state=KVPoll.TRANSFERRING))
    now, then = (entry("decode.transfer", state=state, clock_s=-1.0) for state in (KVPoll.TRANSFERRING, KVPoll(2)))
    assert {each.code for each in result(sent, look("decode", now)).findings} == {"PD141"}
    assert result(sent, look("decode", now, before=(then,))).findings == ()
    twin, earlier = (msgspec.structs.replace(one, rid="twin") for one in (now, then))
    with_a_twin = look("decode", now, twin, before=(now, earlier))
    assert "PD141" in {each.code for each in result(sent, with_a_twin).findings}, "what moves is on its own side"


# ---- the running batch -----------------------------------------------------------------------------------------------


def running(room: int, client: int = -1) -> Any:
    return entry("running", room, slot=-1, kv=-1, client=client, age_s=60.0 + room, clock_s=-1.0)


def waiting(room: int, age_s: float = 20.0) -> Any:
    return entry("waiting", room, slot=-1, age_s=age_s, clock_s=-1.0)


BATCH = msgspec.structs.replace(ROOMY, batch=2)


@pytest.mark.parametrize(
    ("client", "level", "said"),
    [
        (-1, "info", "The engine does not tell whether their clients are still there."),
        (1, "info", ""),
        (0, "warning", "Nobody waits for 2 of those that run: rid r2, rid r1."),
    ],
)
def test_a_full_batch_says_who_has_the_places_since_when(client: int, level: str, said: str) -> None:
    found = one(look("decode", running(1, client), running(2, client), waiting(3), waiting(4), space=BATCH))
    assert (found.code, found.level.value, found.rooms) == ("PD146", level, (3, 4, 1, 2))
    assert found.summary.startswith(
        "The running batch of decode dp0 pp0 is full: 2 of 2 places are taken, by room 2 (rid r2, 62.0 s), room 1 (rid r1,"
        " 61.0 s). 2 requests wait for a place, room 3 for 20.0 s."
    )
    assert said in found.summary
    assert found.next_step.startswith("Abort" if level == "warning" else "Nothing")


def test_a_batch_that_moves_or_that_nobody_waits_for_is_no_finding() -> None:
    ones = (running(1), running(2))
    assert result(look("decode", *ones, space=BATCH)).findings == ()
    assert (
        result(look("decode", *ones, waiting(3), before=(running(1), waiting(2), waiting(3)), space=BATCH)).findings
        == ()
    )
    assert result(look("decode", *ones, waiting(3), before=ones, space=BATCH)).findings == ()
    assert result(look("decode", running(1), waiting(3), space=BATCH)).findings == ()
    assert result(look("decode", *ones, waiting(3))).findings == ()  # an agent that does not tell of places


def test_a_place_taken_for_nobody_is_a_warning_only_once_somebody_waits_for_long() -> None:
    found = one(look("decode", running(1, 0), running(2, 0), waiting(3, age_s=4.0), space=BATCH))
    assert (found.code, found.level.value) == ("PD146", "info")


def test_an_age_that_is_not_known_is_not_told() -> None:
    one_place = msgspec.structs.replace(ROOMY, batch=1)
    found = one(look("decode", running(1), waiting(3, age_s=-1.0), space=one_place))
    assert "1 request waits for a place, room 3." in found.summary


def test_all_rows_taken_is_a_full_batch_and_the_cause_of_a_full_decode() -> None:
    space = msgspec.structs.replace(ROOMY, requests=2, requests_free=0, head=7, needs=10, batch=2)
    found = connect(result(look("prefill"), look("decode", running(1, 0), running(2, 0), line(), space=space)).findings)
    assert [(each.code, each.follows) for each in found] == [("PD146", ""), ("PD140", "PD146")]


# ---- what is complete and not taken on -------------------------------------------------------------------------------


def complete(tp: int = 0, *, ticks: tuple[int, int] = (1, 9), landed: bool | None = None) -> RankLooks:
    one = look("decode", entry("decode.transfer", state=KVPoll.SUCCESS, clock_s=-1.0), tp=tp)
    assert one.first is not None
    assert one.second is not None
    first = msgspec.structs.replace(one.first, ticks=ticks[0], mono_ns=0)
    second = msgspec.structs.replace(one.second, ticks=ticks[1], mono_ns=2 * 10**9)
    return replace(one, first=first, second=second, landed={} if landed is None else {7: landed})


@pytest.mark.parametrize(
    ("landed", "said"),
    [
        ((None, None), "Its transfer is complete here, and it was not taken on."),
        ((True, None), "Its transfer is complete here, and it was not taken on."),
        ((False, False), "it waits for its metadata. No time-out covers that."),
        ((True, False), "it waits for its metadata; it has landed on tp0 and not on tp1."),
        ((True, True), "its metadata has landed on tp0 and tp1, and yet it was not taken on."),
    ],
)
def test_metadata_is_waited_for_only_where_it_was_seen_not_to_have_landed(
    landed: tuple[bool | None, bool | None], said: str
) -> None:
    found = one(prefill_had("Success"), complete(0, landed=landed[0]), complete(1, landed=landed[1]))
    assert found.code == "PD141"
    assert said in found.summary
    assert ("Abort" in found.next_step) == ("waits for its metadata" in said)


def test_a_loop_that_does_not_turn_is_not_told_to_abort() -> None:
    found = one(prefill_had("Success"), complete(0, landed=False), complete(1, ticks=(5, 5), landed=False))
    assert found.next_step == (
        "pdctl stacks shows where decode dp0 pp0 tp1 is: its loop has not turned in 2.0 s, and only a loop that turns carries"
        " out an abort."
    )


def test_an_older_agent_says_nothing_of_clients_and_places() -> None:
    rooms = msgspec.structs.replace(RoomTable.of([running(1)]), client=b"")
    assert [each.client for each in rooms] == [-1]
    old = Rooms(0, 0, rooms, (), Space(), {}, {}, {})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=Rooms) == old


# ---- stages ----------------------------------------------------------------------------------------------------------


def stage(pp: int, *entries: Any) -> RankLooks:
    one = look("prefill", *entries)
    return replace(one, identity=msgspec.structs.replace(one.identity, pp=pp, pp_size=2, world_rank=pp))


def test_nobody_is_told_to_abort_what_the_first_stage_has_no_more() -> None:
    kept = entry("prefill.bootstrap", state=KVPoll.BOOTSTRAPPING, clock_s=-1.0)
    ended = replace(look("decode"), last={7: Last("Failed", 20.0, True, "Aborted by AbortReq.")})
    found = one(stage(0), stage(1, kept), ended)
    assert found.code == "PD142"
    assert found.next_step.startswith("Restart this prefill server. An abort does not end it")
    both = result(stage(0, kept), stage(1, kept), ended).findings
    assert all(each.next_step.startswith("Abort the request on prefill") for each in both)
    unheard = replace(stage(0), second=None, silence="no answer")
    assert one(unheard, stage(1, kept), ended).next_step.startswith("Abort"), "what the first stage has is not known"
