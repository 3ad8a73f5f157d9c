"""What is said of requests that wait for their own side, for one of several servers, or for what has ended."""

from __future__ import annotations

import io
from dataclasses import replace

import msgspec
import pytest

from pdctl.probes.stuck.model import Last, RankLooks, StuckDocument
from pdctl.probes.stuck.probe import PROBE
from pdctl.probes.turns import ENDED, Turn
from pdctl.protocol.model import UNKNOWN, KVPoll
from pdctl.protocol.requests import RoomEntry, Space
from pdctl.report.causes import connect
from pdctl.report.drawing import Sheet
from pdctl.report.findings import Finding
from tests.support.drawing import drawing
from tests.support.identities import identity
from tests.unit.probes.test_stuck_judge import COMPUTES, codes, entry, look, result

BOOTSTRAPPING, WAITS, TRANSFERS, SUCCESS, FAILED = (
    KVPoll.BOOTSTRAPPING, KVPoll.WAITING_FOR_INPUT, KVPoll.TRANSFERRING, KVPoll.SUCCESS, KVPoll.FAILED,
)  # fmt: skip


def one(*looks: RankLooks) -> Finding:
    [found] = result(*looks).findings
    return found


def of(server: str, looked: RankLooks) -> RankLooks:
    return replace(looked, identity=msgspec.structs.replace(looked.identity, service=server, instance=f"{server}/1"))


def said(document: StuckDocument, role: str = "decode") -> dict[int, str]:
    return {request.room: request.peer for request in document.requests if request.role == role}


# ---- decode looks at nothing while retracted requests wait ---------------------------------------------------------------

RETRACTED = entry("decode.retracted", 9, slot=-1, state=UNKNOWN, clock_s=-1.0, kv=0)
SENT = replace(look("prefill"), last={8: Last("Success", 50.0, True)})


@pytest.mark.parametrize(
    "behind",
    [
        entry("decode.transfer", 8, state=SUCCESS, clock_s=-1.0),
        entry("decode.transfer", 8, state=FAILED, clock_s=-1.0),
        entry("decode.prealloc", slot=-1, clock_s=-1.0, kv=0),
        entry("decode.pending", slot=-1, state=BOOTSTRAPPING, clock_s=-1.0),
        entry("decode.transfer", clock_s=400.0, age_s=400.0),  # nor at its time-out
    ],
)
def test_what_waits_behind_retracted_requests_waits_for_space(behind: RoomEntry) -> None:
    prefill = SENT if behind.room == 8 else look("prefill", entry("prefill.bootstrap", state=BOOTSTRAPPING))
    document = result(prefill, look("decode", RETRACTED, behind))
    [found] = document.findings
    assert (found.code, found.level.value, found.rooms) == ("PD140", "info", (9, behind.room))
    assert found.summary == (
        "decode dp0 pp0 is full: 1 retracted request waits for space, room 9 for 60.0 s, and nothing else is taken on before"
        " it. 1 more waits behind it."
    )
    text = io.StringIO()
    drawing(PROBE)(document, Sheet(file=text, width=160))
    assert "retracted requests come first" in text.getvalue()
    # They got space between the looks, or no request is retracted: then it is stuck.
    assert "PD141" in codes(prefill, look("decode", RETRACTED, behind, before=(behind,)))
    assert "PD141" in codes(prefill, look("decode", behind))


def test_a_retracted_request_alone_is_no_finding_and_waits_for_nothing_from_prefill() -> None:
    assert codes(look("prefill"), look("decode", RETRACTED)) == []
    assert said(result(look("prefill"), look("decode", RETRACTED))) == {9: "it waits for nothing from prefill"}
    long_ago = replace(look("prefill"), last={9: Last("Success", 500.0, True)})
    assert said(result(long_ago, look("decode", RETRACTED))) == {
        9: "prefill dp0 pp0 tp0 had Success 500.0 s ago, and has let it go"
    }


def test_a_message_that_is_lost_is_found_behind_retracted_requests_too() -> None:
    prefill = replace(look("prefill"), last={7: Last("Failed", 41.0, True, "x")})
    found = connect(result(prefill, look("decode", RETRACTED, entry("decode.transfer"))).findings)
    assert [each.code for each in found] == ["PD142", "PD140"]
    assert "No time-out is looked at while retracted requests wait for space." in found[0].summary
    assert "or wait for" not in found[0].next_step


# ---- full on one rank, and full prefill ----------------------------------------------------------------------------------


def test_decode_is_full_where_one_rank_of_a_group_is() -> None:
    line = entry("decode.prealloc", slot=-1, clock_s=-1.0, kv=0)
    spaces = [Space(slots=8, slots_free=free, kv=100, kv_free=kv, head=7, needs=10) for free, kv in ((4, 20), (0, 50))]
    prefill = look("prefill", entry("prefill.bootstrap", state=BOOTSTRAPPING))
    found = one(prefill, *(look("decode", line, tp=tp, space=space) for tp, space in enumerate(spaces)))
    assert (found.code, "all 8 metadata slots are taken" in found.summary) == ("PD140", True)


def test_prefill_without_a_metadata_slot_is_full_and_one_that_has_lost_them_is_not() -> None:
    mine = entry("prefill.bootstrap", slot=-1, state=WAITS, clock_s=-1.0)
    sent = [entry("prefill.inflight", room, state=TRANSFERS, age_s=9.0) for room in (20, 21)]
    decode = look("decode", entry("decode.transfer"), *(entry("decode.transfer", room, age_s=9.0) for room in (20, 21)))
    assert codes(look("prefill", mine, *sent, space=Space(slots=2, slots_free=0)), decode) == []
    assert codes(look("prefill", mine, *sent, space=Space(slots=3, slots_free=0)), decode) == ["PD141"]
    assert codes(look("prefill", mine, *sent, space=Space(slots=2, slots_free=1)), decode) == ["PD141"]


# ---- several servers -----------------------------------------------------------------------------------------------------

A, B = "10.0.0.1:8998", "10.0.0.2:8998"


def serving(server: str, address: str, *entries: RoomEntry) -> RankLooks:
    """A prefill server that has other requests, too: they name its bootstrap server."""
    other = entry("running", 50 if address == A else 51, state=UNKNOWN, age_s=3.0)
    return of(
        server, look("prefill", *(msgspec.structs.replace(each, bootstrap=address) for each in (other, *entries)))
    )


def for_(address: str) -> RankLooks:
    return look("decode", entry("decode.transfer", bootstrap=address))


def test_only_the_server_that_a_request_names_has_to_be_its_witness() -> None:
    busy = replace(serving("a", A), took_in_s=61.0, turn=COMPUTES)
    document = result(busy, serving("b", B), for_(B))
    assert [found.code for found in document.findings] == ["PD143"]
    assert said(document) == {7: f"it never came to the prefill server behind {B}"}
    assert codes(busy, serving("b", B), for_(A)) == []  # unread there
    assert codes(busy, serving("b", B), for_("10.0.0.3:8998")) == []  # of nobody known: every server has to be
    assert codes(of("a", replace(look("prefill"), took_in_s=61.0)), serving("b", B), for_(B)) == []  # a may have B, too


@pytest.mark.parametrize("there", [(), (entry("prefill.bootstrap", state=BOOTSTRAPPING),)])
def test_another_request_with_this_room_on_another_server_is_not_this_one(there: tuple[RoomEntry, ...]) -> None:
    ended = {} if there else {7: Last("Failed", 30.0, True, "of another request")}
    found = one(replace(serving("a", A, *there), last=ended), serving("b", B), for_(B))
    assert (found.code, f"never came to the prefill server behind {B}" in found.summary) == ("PD143", True)
    assert codes(replace(serving("b", B), last={7: Last("Failed", 30.0, True)}), serving("a", A), for_(B)) == ["PD142"]
    both = [serving("b", B, *there), serving("b2", B)]  # two behind one bootstrap server
    assert codes(*both, for_(B)) == ([] if there else ["PD143"])


def ended(role: str, ago_s: float, *, state: str = ENDED) -> RankLooks:
    who = identity(role=role, service=f"{role} old", instance="old/1")
    return RankLooks(
        who, "dead", silence="its process has ended", took_in_s=ago_s, recorded=True, turn=Turn(state=state)
    )


@pytest.mark.parametrize(("role", "mine"), [("prefill", "decode.transfer"), ("decode", "prefill.bootstrap")])
def test_a_server_that_ended_before_a_request_came_does_not_hide_that_it_never_came(role: str, mine: str) -> None:
    waits = look("decode", entry(mine)) if role == "prefill" else look("prefill", entry(mine, state=BOOTSTRAPPING))
    found = one(ended(role, 3600.0), look(role), waits)
    assert found.code == "PD143"
    assert f"it never came to {role}; {role} old had ended before" in found.summary
    # It may have had it; another one is all that there was; its agent alone has ended, or nobody knows.
    assert codes(ended(role, 61.0), look(role), waits) == []
    assert codes(ended(role, 3600.0), waits) == []
    assert codes(ended(role, 3600.0, state="lost"), look(role), waits) == []
    assert codes(ended(role, 3600.0), replace(look(role), took_in_s=61.0), waits) == []


# ---- why it waits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "reason", "why", "advised"),
    [
        ("Failed", "Lost connection with prefill instance (x)", "since it could not reach prefill", "verify-routing"),
        ("Failed", "Failed to get kvcache from prefill instance, it", "A rank of prefill told decode", "diff-queues"),
        ("Failed", "KV checksum mismatch", "Decode failed it by itself", "pdctl story 7"),
        ("Success", "", "Decode has all of it", "whether a transfer thread of prefill has ended"),
    ],
)
def test_what_decode_has_ended_is_no_message_that_was_lost(what: str, reason: str, why: str, advised: str) -> None:
    waits = look("prefill", entry("prefill.inflight", state=TRANSFERS, clock_s=-1.0))
    found = one(waits, replace(look("decode"), last={7: Last(what, 20.0, True, reason)}))
    assert (found.code, why in found.summary, advised in found.next_step) == ("PD142", True, True)
    assert "loses messages" not in found.next_step


def test_a_decode_rank_that_prefill_takes_for_dead() -> None:
    reason = "Decode instance could be dead, remote mooncake session 10.0.0.9:99 is not alive"
    found = one(
        replace(look("prefill"), last={7: Last("Failed", 20.0, True, reason)}), look("decode", entry("decode.transfer"))
    )
    assert "Prefill took this decode rank for dead" in found.summary
    assert "loses messages" not in found.next_step


def test_a_time_out_that_has_passed_ends_nothing() -> None:
    prefill = look("prefill", entry("prefill.bootstrap", slot=-1, state=BOOTSTRAPPING, clock_s=20.0))
    found = one(prefill, look("decode", entry("decode.transfer", clock_s=340.0)))
    assert found.code == "PD141"
    assert "SGLANG_DISAGGREGATION_WAITING_TIMEOUT should have ended it 40.0 s ago." in found.summary
    assert "Decode has sent its addresses, and prefill still waits for them" in found.summary
    assert "or wait for" not in found.next_step
    assert codes(prefill, look("decode", entry("decode.transfer", clock_s=320.0))) == []  # it will in its next turns


def test_a_request_that_failed_and_that_nobody_takes_off() -> None:
    tp0, tp1 = look("decode", entry("decode.transfer")), look("decode", entry("decode.transfer", state=FAILED), tp=1)
    found = one(look("prefill", entry("prefill.inflight", state=TRANSFERS, age_s=1.0)), tp0, tp1)
    assert found.code == "PD141"
    assert "It has failed on tp1, and was not taken off." in found.summary
    assert "ends it in" not in found.summary
    assert "Abort" not in found.next_step


def test_a_complete_transfer_of_prefill_waits_for_no_metadata() -> None:
    decode = replace(look("decode"), last={7: Last("Success", 50.0, True)})
    found = one(look("prefill", entry("prefill.inflight", state=SUCCESS, clock_s=-1.0)), decode)
    assert (found.code, "it was not let go" in found.summary) == ("PD141", True)
    assert "metadata" not in found.next_step


def test_decode_has_sent_what_prefill_waits_for() -> None:
    here = look("decode", entry("decode.transfer", state=TRANSFERS, clock_s=-1.0))
    found = one(look("prefill", entry("prefill.bootstrap", state=BOOTSTRAPPING)), here)
    assert "prefill still waits for them: they were lost, or went to another process" in found.summary
    assert "pdctl verify-routing 7" in found.next_step
    sends = look("prefill", entry("prefill.inflight", state=TRANSFERS, clock_s=-1.0))
    assert not any("still waits" in each.summary for each in result(sends, here).findings)


def test_a_rank_that_vanishes_between_the_looks_is_not_judged_by_what_it_said_before() -> None:
    here = look("decode", entry("decode.transfer", state=SUCCESS, clock_s=-1.0))
    gone = replace(here, second=None, silence="connection reset by peer")
    document = result(replace(look("prefill"), last={7: Last("Success", 50.0, True)}), gone)
    assert (document.findings, document.requests, document.partial) == ((), (), True)
