"""Addresses that decode has sent and prefill has not got: what both sides must show for that, and its twins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pdctl.probes.stuck.model import RankLooks
from pdctl.protocol.model import KVPoll
from pdctl.report.causes import connect
from tests.unit.probes.test_stuck_judge import WAITING, codes, entry, look, result

BOOTSTRAPPING, WAITS = KVPoll.BOOTSTRAPPING, KVPoll.WAITING_FOR_INPUT
OTHER = entry("decode.transfer", 5)


def decode(tp: int = 0, queue: str = "decode.transfer", turns: int = 9, before: Any = None, **more: Any) -> RankLooks:
    return look("decode", entry(queue, **more), tp=tp, turns=turns, before=before)


def prefill(tp: int = 0, turns: int = 9, before: Any = None, **more: Any) -> RankLooks:
    mine = entry("prefill.bootstrap", **{"state": BOOTSTRAPPING, "slot": -1, "kv": 0, **more})
    return look("prefill", mine, tp=tp, turns=turns, before=before)


def of_another(one: RankLooks) -> RankLooks:
    return replace(one, identity=msgspec.structs.replace(one.identity, service="other", instance="other/2"))


def test_addresses_that_prefill_has_not_got_are_lost() -> None:
    [found] = result(prefill(), decode(), decode(1)).findings
    assert (found.code, found.level.value, found.rooms, found.ranks) == ("PD155", "error", (7,), ("tp0", "tp1"))
    assert "Decode has sent its addresses, and prefill still waits for them" in found.summary
    assert f"{WAITING} ends it in 240.0 s" in found.summary
    assert "pdctl verify-routing 7" in found.next_step


@pytest.mark.parametrize(
    "looks",
    [
        (prefill(), decode(before=(entry("decode.transfer"), OTHER))),  # others come and go
        (prefill(state=WAITS), prefill(1), decode()),  # one of several got them
        tuple(replace(one, state="recorded", stood_s=0.1) for one in (prefill(), decode())),
    ],
)
def test_what_else_goes_on_does_not_hide_it(looks: tuple[RankLooks, ...]) -> None:
    assert codes(*looks) == ["PD155"]


@pytest.mark.parametrize(
    "looks",
    [
        (prefill(), decode(clock_s=20.0)),  # sent lately
        (prefill(), decode(), decode(1, "decode.prealloc", slot=-1, clock_s=-1.0, age_s=50.0)),  # not yet by all
        (prefill(), decode(), look("decode", tp=1, turns=9)),  # one rank does not have it
        (prefill(state=WAITS, age_s=20.0), of_another(prefill()), decode()),  # another server has one with this room
        (prefill(), decode(), replace(decode(1), first=None, second=None, silence="no answer")),
        (prefill(state=WAITS, age_s=20.0), decode()),  # it has them, and waits to be taken on
        (prefill(age_s=3.0), decode()),
        (prefill(before=()), decode()),  # it has just come
        (prefill(turns=1), decode()),
        (prefill(), decode(), decode(1, turns=1)),
        (prefill(), replace(prefill(1), first=None, second=None, silence="no answer"), decode()),
        (prefill(turns=0), decode(turns=0)),  # whether they turn is not known
        tuple(replace(one, state="recorded", stood_s=5.0) for one in (prefill(), decode())),
    ],
)
def test_twins_in_which_nothing_is_known_to_be_lost(looks: tuple[RankLooks, ...]) -> None:
    assert codes(*looks) == []


def test_what_no_time_out_ends_is_told_as_that() -> None:
    assert codes(prefill(), decode(clock_s=340.0)) == ["PD141"]


def test_where_no_time_out_of_prefill_ends_it_that_follows() -> None:
    endless = prefill(clock_s=400.0)
    found = connect(result(endless, decode()).findings)
    assert [(one.code, one.follows) for one in found] == [("PD155", ""), ("PD141", "PD155")]
