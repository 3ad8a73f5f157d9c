"""Whether a scheduler loop turns, and where it is, from looks at it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pdctl.probes import processes, turns
from pdctl.probes import view as view_module
from pdctl.probes.turns import ENDED, KERNEL, RUNNING, STOPPED, Looked, Pulse, judge
from pdctl.probes.view import View
from pdctl.protocol import structs
from pdctl.protocol.model import Call, Frame, GroupCount, Moment, Status
from pdctl.protocol.processes import Process
from pdctl.protocol.rank import Answer, FoundRank, Silence
from pdctl.recording import format as f
from pdctl.recording.writer import RecordingWriter
from pdctl.targets.client import Client
from pdctl.targets.find import Found
from tests.support.identities import identity

S = 10**9
STACK = (Frame("event_loop", "managers/scheduler.py", 10),)
COLLECTIVE = Call("all_reduce", "attn-tp", 1, "poll of decode.transfer", seq=7, pg="5")
FORWARD = Call(inside="model forward")


def status(at_s: float, tick_s: float = 5.0, ticks: int = 9, call: Call = COLLECTIVE, **changes: Any) -> Status:
    """Return an answer at ``at_s``, from a rank whose turn ``ticks`` began at ``tick_s``."""
    fields: dict[str, Any] = {
        "identity": identity(), "mono_ns": int(at_s * S), "ticks": ticks, "tick_mono_ns": int(tick_s * S), "call": call,
        "stack": STACK, "rounds": {}, "seams": (), "recording": "", "recording_off": "", "hook_errors": {},
        "hooks_removed": (), "faults": (), "agent_cpu_s": 0.0,
    }  # fmt: skip
    return Status(**fields | changes)


def looked(*statuses: Moment, **changes: Any) -> Looked:
    return Looked(**{"statuses": statuses, "process": RUNNING} | changes)


def test_a_loop_that_turns() -> None:
    between = judge(looked(status(20, 6, ticks=9), status(21, 20.5, ticks=10)))
    assert (between.turned, between.age_s, between.stood_s) == (True, 0.5, 0.0)
    assert judge(looked(status(20, 19.5))).turned, "it began a turn a moment ago: one look is enough"


def test_a_loop_that_stands_in_a_collective() -> None:
    turn = judge(looked(status(20), status(21), status(23)))
    assert (turn.turned, turn.age_s, turn.stood_s) == (False, 18.0, 3.0)
    assert turn.doing == "poll of decode.transfer: all_reduce of 1, group attn-tp (#7)"
    assert turn.waiting


def test_one_look_at_a_turn_that_began_long_ago_tells_nothing() -> None:
    turn = judge(looked(status(20)))
    assert turn.turned is None
    assert turn.age_s == 15.0


@pytest.mark.parametrize("inside", turns.COMPUTES)
def test_what_computes_does_not_wait(inside: str) -> None:
    turn = judge(looked(status(60, call=Call(inside=inside)), status(61, call=Call(inside=inside))))
    assert turn.computing
    assert not turn.waiting
    waits = Call("all_reduce", "tp", 64, inside, seq=3, pg="7")
    assert not judge(looked(status(60, call=waits), status(61, call=waits))).computing


def test_an_idle_step_is_no_waiting() -> None:
    turn = judge(looked(status(20, call=Call(inside="idle")), status(21, call=Call(inside="idle"))))
    assert turn.idle
    assert not turn.waiting


@pytest.mark.parametrize(
    "second",
    [
        status(23, call=Call("all_reduce", "attn-tp", 1, "poll of decode.transfer", seq=8, pg="5")),
        status(23, stack=(Frame("event_loop", "managers/scheduler.py", 11),)),
        status(23, rounds={"decode.transfer/attn-tp": 4}),
        status(23, counts=(GroupCount("5", "attn-tp", 2, 8),)),
    ],
)
def test_what_gets_on_within_its_turn_has_not_stood(second: Status) -> None:
    turn = judge(looked(status(20), second))
    assert turn.turned is False
    assert turn.stood_s == 0.0


def test_an_engine_without_a_seam_for_turns() -> None:
    none = {"ticks": 0, "tick_s": 0}
    assert judge(looked(status(20, **none), status(21, **none))).turned is None
    got_on = status(21, rounds={"decode.transfer/attn-tp": 4}, **none)
    turn = judge(looked(status(20, **none), got_on))
    assert (turn.turned, turn.age_s) == (True, None)


def test_from_outside_turns_are_not_counted() -> None:
    turn = judge(looked(status(20, 0, ticks=70), status(23, 0, ticks=70), outside=True))
    assert (turn.turned, turn.age_s, turn.stood_s) == (None, None, 3.0)
    assert turn.waiting


def test_a_silent_rank_has_its_recording_s_pulse() -> None:
    pulses = (Pulse(9, 5 * S, 20 * S), Pulse(9, 5 * S, 21 * S))
    turn = judge(Looked(pulses=pulses, process=STOPPED))
    assert (turn.turned, turn.age_s, turn.state, turn.doing) == (False, 16.0, STOPPED, "")
    assert judge(Looked(pulses=(Pulse(9, 5 * S, 20 * S), Pulse(10, 20 * S, 21 * S)), process=RUNNING)).turned
    assert judge(Looked(pulses=(Pulse(9, 5 * S),))).age_s is None, "its clock can't be read from here"
    silent_outside = looked(status(21, 0, ticks=70), outside=True, pulses=pulses)
    assert judge(silent_outside).age_s == 16.0
    just_now = (Pulse(9, 5 * S, 5 * S),)
    assert judge(Looked(pulses=just_now)).turned
    assert judge(Looked(pulses=just_now, process=ENDED)).turned is None
    assert judge(Looked(pulses=just_now, process=STOPPED)).turned is None, "whether it goes on is to be seen"


# ---- the view --------------------------------------------------------------------------------------------------------


class Answering(Client):
    """A client whose ranks answer with these, look by look."""

    def __init__(self, *looks: Sequence[Status | None]) -> None:
        super().__init__(timeout_s=60, rank_timeout_s=60)
        self.looks = list(looks)
        self.asked: list[int] = []

    def ask_each(self, questions: Sequence[tuple[FoundRank, dict[str, Any]]], op: str, kind: Any) -> list[Answer[Any]]:
        self.asked.append(len(questions))
        said = self.looks.pop(0)
        return [
            Answer(rank, said[rank.identity.tp], Silence.NONE if said[rank.identity.tp] else Silence.TIMED_OUT)
            for rank, _ in questions
        ]

    def pause(self, seconds: float) -> None:
        """Wait for nothing: the looks have times of their own."""


def ranks(*states: str, **changes: Any) -> tuple[FoundRank, ...]:
    return tuple(FoundRank(identity(tp=tp), state, **changes) for tp, state in enumerate(states))


def test_one_look_is_enough_where_every_loop_turns() -> None:
    client = Answering((status(20, 19.9), status(20, 19.9)))
    view = View(Found(ranks("live", "live")), client)
    assert [turn.turned for turn in view.turns()] == [True, True]
    assert view.turns() is view.turns()
    assert client.asked == [2]


def test_a_loop_is_looked_at_until_it_has_stood_for_a_while() -> None:
    looks = [(status(20 + n * 0.5), status(20 + n * 0.5, 19.9 + n * 0.5, ticks=n)) for n in range(9)]
    client = Answering(*looks)
    [stands, turns_on] = View(Found(ranks("live", "live")), client).turns()
    assert (stands.turned, turns_on.turned) == (False, True)
    assert stands.stood_s == 2.0
    assert len(client.asked) == 5


def test_looks_after_the_first_ask_for_the_moment_which_an_older_agent_s_status_is_too() -> None:
    asked: list[tuple[str, Any, dict[str, Any]]] = []

    class Noting(Answering):
        def ask_each(
            self, questions: Sequence[tuple[FoundRank, dict[str, Any]]], op: str, kind: Any
        ) -> list[Answer[Any]]:
            asked.append((op, kind, questions[0][1]))
            return super().ask_each(questions, op, kind)

    looks = [status(20 + n * 0.5) for n in range(9)]
    [stands] = View(Found(ranks("live")), Noting(*[(one,) for one in looks])).turns()
    assert asked == [("status", Status, {}), *[("status", Moment, {"moment": True})] * 4]
    moments = [structs.from_msgpack(msgspec.msgpack.encode(one), Moment) for one in looks[1:5]]
    turn = judge(looked(looks[0], *moments))
    assert (turn.turned, turn.age_s, turn.stood_s, turn.doing) == (
        stands.turned, stands.age_s, stands.stood_s, stands.doing,
    )  # fmt: skip


def test_a_long_forward_is_looked_at_twice() -> None:
    client = Answering(*[(status(60 + n, call=FORWARD),) for n in range(9)])
    [turn] = View(Found(ranks("live")), client).turns()
    assert (turn.turned, turn.computing) == (False, True)
    assert len(client.asked) == 2


def test_a_silent_rank_is_not_asked_again_and_its_process_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = identity(pid=77, proc_start=5)
    writer = RecordingWriter.create(tmp_path / "a.pdrec", msgspec.json.encode(one), size=f.MIN_SIZE)
    writer.pulse(3, 1)
    monkeypatch.setattr("pdctl.targets.find.look_closely", lambda pid: Process("T", 5) if pid == 77 else Process())
    monkeypatch.setattr(processes, "now_ns", lambda *_: 31 * S)
    rank = FoundRank(one, "live", recording=tmp_path / "a.pdrec", process=Process("T", 5))
    client = Answering((None,), (), ())
    [turn] = View(Found((rank,)), client).turns()
    assert client.asked[0] == 1
    assert not any(client.asked[1:])
    assert (turn.state, turn.turned, round(turn.age_s or 0)) == (STOPPED, False, 31)
    writer.stop()


@pytest.mark.parametrize("other", [Process("D", 5, wait="page_fault", switches=8), Process("S", 5)])
def test_one_wait_in_the_kernel_is_told_and_many_short_ones_are_not(
    monkeypatch: pytest.MonkeyPatch, other: Process
) -> None:
    wait = Process("D", 5, wait="nfs_wait", switches=7)
    for seen, state in (([wait], KERNEL), ([wait, other], RUNNING)):
        in_turn = itertools.cycle(seen)
        monkeypatch.setattr("pdctl.targets.find.look_closely", lambda _, of=in_turn: next(of))
        rank = FoundRank(identity(pid=77, proc_start=5), "live", process=wait)
        clock = SimpleNamespace(monotonic=itertools.count().__next__)
        monkeypatch.setattr(view_module, "time", clock)
        [turn] = View(Found((rank,)), Answering(*[(status(60 + n, call=Call()),) for n in range(20)])).turns()
        assert turn.state == state
        kept = "event_loop (managers/scheduler.py:10), in an uninterruptible wait in the kernel (nfs_wait)"
        assert turn.doing == (kept if state == KERNEL else "event_loop (managers/scheduler.py:10)")


def test_in_a_trace_ages_are_those_when_it_was_made(tmp_path: Path) -> None:
    one = identity()
    writer = RecordingWriter.create(tmp_path / "a.pdrec", msgspec.json.encode(one), size=f.MIN_SIZE)
    writer.pulse(3, 5 * S)
    writer.stop()
    lived = FoundRank(one, "recorded", recording=tmp_path / "a.pdrec", seen_ns=9 * S, seen_live=True)
    ended = FoundRank(one, "recorded", recording=tmp_path / "a.pdrec", seen_ns=9 * S, seen_live=False)
    view = View(Found((lived, ended)), Answering(), recorded=True)
    assert [(turn.state, turn.age_s) for turn in view.turns()] == [(RUNNING, 4.0), (ENDED, 4.0)]
