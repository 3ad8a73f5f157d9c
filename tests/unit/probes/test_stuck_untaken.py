"""Requests that wait to be computed though there is place: what has to be seen for that, and what may hold them up else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pdctl.probes.stuck.model import RankLooks
from pdctl.protocol.model import UNKNOWN, KVPoll
from pdctl.protocol.requests import RoomEntry, Space
from tests.unit.probes.test_stuck_judge import codes, entry, look, result

SPACE = Space(slots=8, slots_free=4, kv=1000, kv_free=500, requests=8, requests_free=3, countable=True)


def runs(room: int) -> RoomEntry:
    return entry("running", room, slot=-1, state=UNKNOWN, clock_s=-1.0)


def waits(room: int = 3, **more: Any) -> RoomEntry:
    return entry("waiting", room, **{"slot": -1, "state": UNKNOWN, "clock_s": -1.0, **more})


def decode(*entries: RoomEntry, batch: int = 3, turns: int = 9, head: int = 0, **more: Any) -> RankLooks:
    space = msgspec.structs.replace(SPACE, batch=batch, head=head, needs=9000)
    return look("decode", *entries, space=space, turns=turns, **more)


def test_decode_does_not_take_what_it_has_a_place_for() -> None:
    both = [decode(runs(1), waits(3, age_s=50.0), waits(4), tp=tp) for tp in (0, 1)]
    [found] = result(*both).findings
    assert (found.code, found.level.value, found.rooms, found.ranks) == ("PD156", "warning", (4, 3), ("tp0", "tp1"))
    assert found.summary == (
        "2 requests, the oldest room 4, wait to be computed on decode dp0 pp0 for 60.0 s, and are not taken, though its"
        " loop turns. 1 of 3 places of the running batch are taken. The cause is not seen."
    )
    assert "POST /continue_generation" in found.next_step


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ((decode(runs(1), waits(), batch=1),), ["PD146"]),
        ((decode(runs(1), waits(), head=9),), ["PD140"]),
        ((decode(runs(1), waits(age_s=20.0)),), []),
        ((decode(runs(1), waits(), before=(runs(1), waits(2), waits())),), []),  # others are taken before it
        ((decode(runs(1), waits(), before=(waits(),)),), []),  # one that has come meanwhile
        ((decode(runs(1), waits(), entry("decode.retracted", 9, slot=-1, kv=0)),), []),
        ((decode(runs(1), waits(), turns=1),), []),  # a long step
        ((decode(runs(1), waits(), turns=0),), []),  # whether it turns is not known
        ((decode(runs(1), waits(), batch=-1),), []),
        ((decode(runs(1), waits()), decode(runs(1), runs(3), tp=1)), []),  # one rank has taken it
        ((decode(waits()), replace(decode(tp=1), first=None, second=None, silence="no answer")), []),
    ],
)
def test_twins_on_decode(looks: tuple[RankLooks, ...], expected: list[str]) -> None:
    assert codes(*looks) == expected


def prefill(*more: RoomEntry, pp: int = 0, space: Space = SPACE, **changes: Any) -> RankLooks:
    mine = waits(**{"state": KVPoll.WAITING_FOR_INPUT, "slot": 2, "tokens": 100, **changes})
    one = look("prefill", mine, *more, space=space, turns=9)
    return replace(one, identity=msgspec.structs.replace(one.identity, pp=pp, pp_size=2, world_rank=pp))


def test_prefill_does_not_take_what_it_has_memory_for() -> None:
    [found] = result(prefill(), prefill(pp=1)).findings
    assert found.code == "PD156"
    assert "its loop turns. Nothing is computed, and 3 rows and 500 KV tokens are free." in found.summary
    assert any("its loop began 9 turns between the looks" in line for line in found.evidence)


@pytest.mark.parametrize(
    "looks",
    [
        (prefill(runs(1)),),
        (prefill(), prefill(runs(1), pp=1)),  # a later stage computes
        (prefill(tokens=498),),
        (prefill(tokens=-1),),
        (prefill(slot=-1),),
        (prefill(state=KVPoll.BOOTSTRAPPING),),  # it was taken on before decode has told its addresses
        (prefill(waits(4, tokens=900, slot=1, state=KVPoll.WAITING_FOR_INPUT)),),  # one before it has no place
        (prefill(space=msgspec.structs.replace(SPACE, requests_free=0)),),
        (prefill(space=msgspec.structs.replace(SPACE, countable=False)),),  # a pool or a cache of another kind
    ],
)
def test_twins_on_prefill(looks: tuple[RankLooks, ...]) -> None:
    assert codes(*looks) == []


def test_memory_that_has_just_become_free_is_none_that_nobody_takes() -> None:
    now = prefill()
    assert now.first is not None
    full = msgspec.structs.replace(now.first, space=msgspec.structs.replace(SPACE, kv_free=10))
    assert codes(replace(now, first=full)) == []
