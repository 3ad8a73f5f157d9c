"""What is wrong with the way to the other side is told by whoever tells of requests that wait for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pdctl.probes import run
from pdctl.probes.routing import collect
from pdctl.probes.routing.collect import Seen
from pdctl.probes.routing.model import Fault
from pdctl.probes.stuck.judge import judge
from pdctl.probes.stuck.probe import PROBE
from pdctl.probes.view import View
from pdctl.protocol.model import KVPoll
from pdctl.targets.client import Client
from pdctl.targets.find import Found
from tests.unit.probes.test_routing_peers import PENDING, TRYING, decode, prefill, silent
from tests.unit.probes.test_routing_peers import look as routing_look
from tests.unit.probes.test_stuck_judge import entry, look


def test_rooms_that_do_not_move_are_looked_at() -> None:
    stays, new = entry("decode.pending", slot=-1, clock_s=-1.0), entry("decode.pending", 8, age_s=0.5)
    moves = entry("decode.transfer", 9)
    before = entry("decode.transfer", 9, state=KVPoll.BOOTSTRAPPING)
    document = judge([look("decode", stays, new, moves, before=(stays, new, before))], pause_s=2.0)
    assert PROBE.held_up(document) == {7}
    assert PROBE.held_up(judge([look("decode", entry("waiting"), entry("running", 8))], pause_s=2.0)) == set()


def test_what_is_found_of_them_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[View] = []

    def seen(view: View, *_: Any) -> Seen:
        taken.append(view)
        ranks = prefill(), decode(0, *PENDING, peers=(), lookups=TRYING)
        return Seen(routing_look(*ranks, at=silent()))

    monkeypatch.setattr(collect, "_twice", seen)
    with Client() as client:
        view = View(Found(()), client)
        assert [one.code for one in run.misrouted(view, frozenset((7, 8)))[0]] == ["PD145"]
        assert run.misrouted(view, frozenset((8,))) == ((), ())
        collect.twice(view, grace_s=collect.GRACE_S)  # the stage of check
        assert len(taken) == 1
        assert taken[0] is not view  # the view's own answers are older than what was found in it
        collect.twice(view, grace_s=collect.GRACE_S, rooms=(8,))
        assert len(taken) == 2


def test_what_was_not_asked_for_lack_of_time_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = replace(silent(), fault=Fault.OTHER, silence="no answer within 0.1 s", hurried=True)
    ranks = prefill(), decode(0, *PENDING, peers=())
    monkeypatch.setattr(collect, "_twice", lambda *_: Seen(routing_look(*ranks, at=slow)))
    with Client() as client:
        assert run.misrouted(View(Found(()), client), frozenset((7,))) == (
            (),
            (f"bootstrap server {slow.address}: no answer within 0.1 s",),
        )
    with Client(timeout_s=0.0) as client:
        found, unasked = run.misrouted(View(Found(()), client), frozenset((7,)))
    assert found == ()
    assert unasked[1].startswith("the way of requests that wait to the other side: no time left of 0 s")
