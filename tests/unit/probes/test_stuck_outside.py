"""Until when a rank that is read from outside has taken in requests: its main thread is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pdctl.probes.stuck.collect import collect
from pdctl.probes.stuck.judge import judge
from pdctl.probes.view import View
from pdctl.protocol.model import Call, Status
from pdctl.protocol.rank import Answer, FoundRank, Silence
from pdctl.protocol.requests import Cover, RoomEntry, Rooms, RoomTable, Space
from pdctl.targets.client import Client
from pdctl.targets.find import Found
from tests.support.identities import identity

S = 10**9
IDLE, READS, SCHEDULES = Call(inside="idle"), Call(inside="recv_requests"), Call(inside="scheduling")
FORWARD = Call(inside="model forward")
WAITS_FOR_TP0 = Call(op="broadcast", group="attn-tp", inside="recv_requests")
LOST = RoomEntry("decode.transfer", 7, "lost", state=2, age_s=60.0, clock_s=60.0)
COVERS = (Cover("decode.transfer", 2, 300.0, "WAITING", "when told"),)


class Outside(Client):
    """A decode rank that has a request, and a prefill rank that has none. calls: of prefill's looks, a second apart.

    runs: whether prefill's main thread was given a processor between two looks.
    """

    def __init__(self, *calls: Call, runs: bool = True) -> None:
        super().__init__(timeout_s=60, rank_timeout_s=60)
        self.calls, self.runs, self.now_s = list(calls), runs, 100

    def ask_each(self, questions: Sequence[tuple[FoundRank, dict[str, Any]]], op: str, kind: Any) -> list[Answer[Any]]:
        return [Answer(rank, self._body(rank, op), Silence.NONE) for rank, _ in questions]

    def _body(self, rank: FoundRank, op: str) -> Any:
        if op == "rooms":
            rooms = RoomTable.of([LOST] if rank.identity.role == "decode" else [])
            return Rooms(self.now_s * S, 0, rooms, COVERS, Space(), {}, {}, {})
        assert op == "status"
        if rank.identity.role == "prefill":
            self.now_s += 1
            call = self.calls.pop(0) if len(self.calls) > 1 else self.calls[0]
        else:
            call = IDLE
        return Status(
            identity=rank.identity, mono_ns=self.now_s * S, ticks=self.now_s if self.runs else 5, tick_mono_ns=0, call=call,
            stack=(), rounds={}, seams=(), recording="", recording_off="no agent is in it", hook_errors={},
            hooks_removed=(), faults=(), agent_cpu_s=0.0,
        )  # fmt: skip

    def pause(self, seconds: float) -> None:
        """Wait for nothing: the looks have times of their own."""


def found(client: Outside) -> tuple[list[str], str]:
    """Return the codes of what is found, and what is said of the other side."""
    ranks = tuple(FoundRank(identity(role=role, engine="sglang"), "outside") for role in ("prefill", "decode"))
    document = judge(collect(View(Found(ranks), client), pause_s=2.0), pause_s=2.0)
    [request] = document.requests
    return [one.code for one in document.findings], request.peer


@pytest.mark.parametrize("calls", [(IDLE,), (READS,), (FORWARD, IDLE), (IDLE, SCHEDULES, SCHEDULES, READS)])
def test_a_main_thread_that_takes_in_requests_is_a_witness(calls: tuple[Call, ...]) -> None:
    codes, said = found(Outside(*calls))
    assert codes == ["PD143"]
    assert said.startswith("no prefill rank has it now; whether one ever had it is not known")


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ((FORWARD,), "prefill dp0 pp0 tp0 is in model forward"),
        ((IDLE, FORWARD), "prefill dp0 pp0 tp0 is in model forward"),
        ((IDLE, WAITS_FOR_TP0), "when prefill dp0 pp0 tp0 last took in requests can't be seen"),
        ((SCHEDULES,), "when prefill dp0 pp0 tp0 last took in requests can't be seen"),
    ],
)
def test_one_that_was_not_seen_to_is_none(calls: tuple[Call, ...], why: str) -> None:
    assert found(Outside(*calls)) == ([], f"not known: {why}")


def test_a_process_that_is_stopped_in_its_idle_step_takes_in_nothing() -> None:
    codes, said = found(Outside(IDLE, runs=False))
    assert not codes
    assert said.startswith("not known")


def test_what_a_rank_with_requests_does_is_seen() -> None:
    decode = FoundRank(identity(role="decode", engine="sglang"), "outside")
    for calls, requests in ((IDLE, True), (FORWARD, False)):
        rank = decode if requests else FoundRank(identity(role="prefill", engine="sglang"), "outside")
        [seen] = collect(View(Found((rank,)), Outside(calls)), pause_s=2.0)
        assert (seen.turn is not None and seen.turn.outside and seen.turn.idle) == requests


def test_what_came_after_the_earlier_look_may_be_unread() -> None:
    """The witness is of the earlier look: a request that may have come later than that is not said to be missing."""
    client = Outside(IDLE)
    ranks = tuple(FoundRank(identity(role=role, engine="sglang"), "outside") for role in ("prefill", "decode"))
    [prefill, _] = collect(View(Found(ranks), client), pause_s=2.0)
    assert prefill.took_in_s == 1.0
