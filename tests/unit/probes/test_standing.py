"""Loops that stand, and all that looks like it and is well."""

from __future__ import annotations

from typing import Any

import pytest

from pdctl.probes.standing import judge, standing
from pdctl.probes.turns import ENDED, FROZEN, KERNEL, LOST, RUNNING, STOPPED, TRACED, UNSEEN, Loop, Turn
from pdctl.protocol.model import NEXT_STAGE, STAGE_BEFORE, Call, GroupInfo
from tests.support.identities import identity

POLL = Call("all_reduce", "attn-tp", 1, "poll of decode.transfer", seq=7, pg="5")
RECV = Call("broadcast", "attn-tp", 1, "recv_requests", seq=8, pg="5")
SYNC = Call("all_gather", "world", 4, "dp attention sync", seq=3, pg="0")
MODEL = Call("all_reduce", "tp", 64, "model forward", seq=18, pg="7")


def turn(call: Call, age_s: float | None = 30.0, stood_s: float = 2.0, **changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "turned": False if age_s is not None else None, "age_s": age_s, "doing": f"{call.inside}: {call.op}",
        "state": RUNNING, "stood_s": stood_s, "call": call, "outside": age_s is None,
    }  # fmt: skip
    return Turn(**fields | changes)


TURNS = Turn(turned=True, age_s=0.1, doing="recv_requests", state=RUNNING)
FORWARD = turn(Call(inside="model forward"), computing=True)
IDLE = turn(Call(inside="idle"), age_s=1.5, idle=True)
HTTP = turn(Call(), doing="recv_into (python3.12/socket.py:707)")
STOP = Turn(turned=False, age_s=34.0, state=STOPPED, stood_s=2.0)
DIED = Turn(age_s=34.0, state=ENDED)
AWAY = Turn(state=LOST)
NFS = "read (pathlib.py:9), in an uninterruptible wait in the kernel (nfs_wait)"


def group(*turns: Turn, **changes: Any) -> list[Loop]:
    return [Loop(identity(tp=n, tp_size=len(turns), pid=70 + n, **changes), one) for n, one in enumerate(turns)]


def stages(*turns: Turn) -> list[Loop]:
    return [
        Loop(identity(role="prefill", pp=n, pp_size=len(turns), service="prefill"), one) for n, one in enumerate(turns)
    ]


def test_ranks_in_different_collectives_stand() -> None:
    loops = group(turn(POLL), turn(RECV, age_s=31.0))
    assert standing(loops) == {0, 1}
    [found] = judge(loops)
    assert (found.code, found.level.value) == ("PD114", "error")
    assert found.summary == (
        "The scheduler loops of decode dp0 tp0,1 have not turned for 30.0 s: decode dp0 tp0 is in poll of decode.transfer: "
        "all_reduce; decode dp0 tp1 is in recv_requests: broadcast."
    )
    assert "restart this server" in found.next_step
    assert found.ranks == ("decode dp0 pp0 tp0", "decode dp0 pp0 tp1")
    assert found.evidence[0] == (
        "decode dp0 pp0 tp0: last turn began 30.0 s ago, in poll of decode.transfer: all_reduce, the same in all looks"
        " over 2.0 s"
    )


def test_stages_that_wait_for_each_other_stand() -> None:
    loops = stages(turn(Call(inside=STAGE_BEFORE), age_s=129.0), turn(Call(inside=NEXT_STAGE), age_s=129.0))
    [found] = judge(loops)
    assert (
        "of prefill dp0 pp0,1 tp0 have not turned for 129.0 s: prefill dp0 pp0 tp0 is in receive from" in found.summary
    )


def test_a_stopped_process_is_the_cause_and_others_wait_for_it() -> None:
    [found] = judge(group(turn(POLL, age_s=29.0), STOP))
    assert found.summary == (
        "The scheduler loop of decode dp0 tp1 has not turned for 34.0 s: its process is stopped (SIGSTOP). "
        "For it waits decode dp0 tp0, in poll of decode.transfer: all_reduce."
    )
    assert "kill -CONT 71" in found.next_step
    assert "restart this" not in found.next_step
    [both] = judge(group(STOP, STOP))
    assert "their processes are stopped" in both.summary
    assert both.next_step.startswith("kill -CONT 70 71 lets them go on, on their host. What waits for them")
    assert standing(group(turn(POLL, age_s=3.0), STOP)) == {1}, "the other has not waited for long yet"
    assert standing(group(FORWARD, STOP)) == {1}, "one that computes does not wait for it, and is not said to"


@pytest.mark.parametrize(
    "turns",
    [
        (TURNS, TURNS),
        (FORWARD, turn(MODEL)),  # a long forward, and the rank that waits for it
        (FORWARD, FORWARD),
        (turn(Call(inside="scheduler loop"), computing=True), turn(Call(inside=STAGE_BEFORE))),
        (IDLE, turn(RECV, age_s=12.0)),  # an idle server whose first rank sleeps, on a busy machine
        (HTTP, turn(POLL)),  # it asks a bootstrap server that is slow, within its turn
        (turn(POLL, age_s=9.0), turn(RECV, age_s=9.0)),  # not for long enough
        (turn(POLL, stood_s=1.0), turn(RECV)),  # one gets on
        (turn(MODEL), turn(MODEL)),  # the same collective of a forward: it is done, however slowly
        (Turn(state=UNSEEN), turn(POLL)),  # who knows what the silent one does
        (Turn(state=RUNNING, turned=False, age_s=40.0), turn(POLL)),
        (turn(POLL, turned=True, age_s=0.2), turn(POLL, turned=True, age_s=0.3)),
        (turn(POLL, age_s=None, stood_s=4.0), turn(RECV, age_s=None, stood_s=4.0)),  # from outside, too short
        (Turn(state=STOPPED, turned=False, age_s=5.0, stood_s=0.5), turn(POLL, age_s=5.0)),  # a debugger's moment
        (turn(POLL, age_s=None, outside=False), turn(RECV, age_s=None, outside=False)),  # before its first turn
        (turn(POLL, age_s=60.0), AWAY),  # one of another host whose agent has ended: it may be in a long forward
        (turn(Call(), age_s=20.0, state=KERNEL, doing=NFS), turn(POLL)),  # a file system that is slow
        (turn(Call(inside="model forward"), age_s=60.0, state=KERNEL, computing=True), turn(MODEL)),
        (turn(Call(), age_s=None, state=KERNEL, doing=NFS, stood_s=6.0), turn(POLL)),
        (DIED, DIED),  # nobody is left to stand
    ],
)
def test_what_is_well_or_not_known_is_no_finding(turns: tuple[Turn, ...]) -> None:
    assert judge(group(*turns)) == ()


def test_a_slow_collective_of_a_forward_keeps_others_waiting_by_right() -> None:
    """Stage 0 is in one of its own, and stage 1 waits for it; or dp rank 0 is, and dp rank 1 waits for all."""
    model = turn(MODEL)
    first = [Loop(identity(role="prefill", pp=0, pp_size=2, tp=n, tp_size=2), model) for n in (0, 1)]
    second = [
        Loop(identity(role="prefill", pp=1, pp_size=2, tp=n, tp_size=2), turn(Call(inside=STAGE_BEFORE)))
        for n in (0, 1)
    ]
    assert judge([*first, *second]) == ()
    assert len(judge([first[0], Loop(first[1].identity, turn(RECV)), *second])) == 1, "it has not all its ranks"
    groups = (GroupInfo("tp", (0, 1), "w"), GroupInfo("attn-tp", (0, 1), "w"))
    dp = [
        Loop(identity(dp=n // 2, dp_size=2, dp_attention=True, tp=n, groups=groups), one)
        for n, one in enumerate([model, model, turn(SYNC), turn(SYNC)])
    ]
    assert judge(dp) == ()
    assert len(judge([dp[0], Loop(dp[1].identity, turn(SYNC)), *dp[2:]])) == 1


def test_a_long_turn_in_no_collective_counts_after_five_minutes() -> None:
    blocked = turn(Call(inside="send_kv_chunk"), age_s=310.0, doing="send_kv_chunk")
    assert len(judge(group(blocked))) == 1
    assert judge(group(turn(Call(inside="send_kv_chunk"), age_s=130.0))) == ()
    assert judge(group(turn(Call(inside="model forward"), age_s=310.0, computing=True))) == ()
    assert len(judge(group(turn(MODEL, age_s=310.0), turn(MODEL, age_s=310.0)))) == 1


def test_from_outside_standing_is_what_was_seen() -> None:
    loops = group(turn(POLL, age_s=None, stood_s=5.5), turn(RECV, age_s=None, stood_s=5.5))
    [found] = judge(loops)
    assert "have not turned while pdctl looked, for 5.5 s" in found.summary


def test_worlds_are_judged_by_themselves() -> None:
    other = [Loop(identity(dp=1, world="w1", instance="first"), FORWARD)]
    assert standing([*group(turn(POLL), turn(RECV)), *other]) == {0, 1}
    restarted = [Loop(identity(instance="second"), FORWARD)]
    assert standing([*group(turn(POLL), turn(RECV)), *restarted]) == {0, 1}


def test_data_parallel_ranks_of_one_world_have_one_cause() -> None:
    dp = [
        Loop(identity(dp=n, dp_size=2, dp_attention=True, pid=70 + n), one) for n, one in enumerate((turn(POLL), STOP))
    ]
    [found] = judge(dp)
    assert found.summary.startswith(
        "The scheduler loop of decode dp1 tp0 has not turned for 34.0 s: its process is stopped"
    )
    assert "For it waits decode dp0 tp0" in found.summary
    assert found.units == ("decode dp0 of first", "decode dp1 of first")


def test_who_waits_for_one_that_has_ended_stands() -> None:
    assert standing(group(turn(POLL), DIED)) == {0}


def test_one_that_was_not_reached_may_still_wake_those_that_wait() -> None:
    loops = [*group(turn(POLL, age_s=310.0)), Loop(identity(tp=1, tp_size=2, host="node1"), AWAY)]
    [found] = judge(loops)
    assert found.summary.endswith("all_reduce. What decode dp0 tp1 does is not known: it may keep them waiting."), (
        found.summary
    )
    assert found.next_step == (
        "See on node1 whether decode dp0 tp1 still runs: a stopped process needs SIGCONT. Where one has ended, restart this"
        " server."
    )
    [found] = judge([*group(STOP), loops[1]])
    assert found.next_step.startswith("kill -CONT 70 lets it go on, on its host. See on node1 whether decode dp0 tp1")


def test_a_stopped_process_is_not_all_where_another_has_ended() -> None:
    [found] = judge(group(STOP, DIED))
    assert found.next_step == "kill -CONT 70 lets it go on, on its host."


def test_stopped_data_parallel_ranks_of_a_server_are_one_finding_that_lets_all_go_on() -> None:
    loops = [
        Loop(identity(dp=dp, dp_size=3, tp=tp, tp_size=2, world=f"w{dp}", pid=70 + 2 * dp + tp), STOP)
        for dp in range(3)
        for tp in range(2)
    ]
    [found] = judge(loops)
    assert found.summary.startswith("The scheduler loops of decode dp0-2 tp0,1 have not turned for 34.0 s: their")
    assert found.next_step.startswith("kill -CONT 70 71 72 73 74 75 lets them go on, on their host.")
    assert found.units == ("decode dp0 of first", "decode dp1 of first", "decode dp2 of first")
    other = [Loop(identity(service="other", instance="second"), STOP)]
    assert len(judge([*loops, *other])) == 2, "another server has another cause"


def test_ranks_that_stand_for_another_reason_are_told_by_themselves() -> None:
    stopped = [Loop(identity(dp=1, dp_size=2, world="w1", pid=80), STOP)]
    hung = group(turn(POLL), turn(RECV), dp_size=2)
    found = judge([*hung, *stopped])
    assert ["kill -CONT 80" in one.next_step for one in found] == [False, True]


def test_processes_of_several_hosts_are_let_go_on_host_by_host() -> None:
    loops = [Loop(identity(tp=n, tp_size=3, pid=70 + n, host=f"node{n // 2}"), STOP) for n in range(3)]
    [found] = judge(loops)
    assert found.next_step.startswith("Let them go on, on node0: kill -CONT 70 71; on node1: kill -CONT 72. What waits")


def test_what_a_debugger_or_a_freezer_holds_is_let_go_on_by_it() -> None:
    frozen, traced = (Turn(turned=False, age_s=34.0, state=state, stood_s=2.0) for state in (FROZEN, TRACED))
    [found] = judge(group(frozen, frozen))
    assert found.summary.endswith("their processes are frozen with the cgroup, as in a paused container.")
    assert found.next_step.startswith("Thaw the container: docker unpause")
    assert "kill" not in found.next_step
    [found] = judge(group(traced, turn(POLL)))
    assert "its process is stopped by a debugger. For it waits decode dp0 tp1" in found.summary
    [found] = judge(group(traced, STOP))
    assert "decode dp0 tp0 is stopped by a debugger; decode dp0 tp1 is stopped (SIGSTOP)" in found.summary
    assert found.next_step.startswith("kill -CONT 71 lets it go on, on its host. End the debugger")


def test_what_the_kernel_holds_is_not_said_to_be_stopped() -> None:
    held = turn(Call(), age_s=34.0, state=KERNEL, doing=NFS, wait="nfs_wait")
    [found] = judge(group(held, turn(POLL)))
    assert (
        "its process is in an uninterruptible wait in the kernel (nfs_wait). For it waits decode dp0 tp1"
        in found.summary
    )
    assert found.evidence[0].startswith(f"decode dp0 pp0 tp0: last turn began 34.0 s ago, in {NFS}, the same")
    assert found.next_step.startswith("It goes on when what it waits for there comes")
    assert "CONT" not in found.next_step
    assert "restart this" not in found.next_step
    assert standing(group(Turn(turned=False, age_s=34.0, state=KERNEL, stood_s=2.0), FORWARD)) == {0}, "silent, too"
