"""The judge of stacks: what stands out, what is certain, and what is only skew."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pdctl.introspect.pyspy import parse
from pdctl.probes.stacks.judge import anything_stuck, judge, worth_a_longer_look
from pdctl.probes.stacks.model import RankLooks, StacksDocument, TreeNode
from pdctl.probes.stacks.probe import PROBE
from pdctl.protocol.model import Call, FlightEntry, Frame, GroupCount, Status
from pdctl.report.output import Format, Output
from pdctl.targets.nodeset import Place, unfold
from tests.support.drawing import drawing
from tests.support.identities import identity

OUTER = (Frame("event_loop", "managers/scheduler.py", 10), Frame("main", "sglang/server.py", 1))
FORWARD = (
    Frame("all_reduce", "distributed/distributed_c10d.py", 3),
    Frame("run_batch", "managers/scheduler.py", 2),
    *OUTER,
)
RECV = (
    Frame("broadcast", "distributed/distributed_c10d.py", 4),
    Frame("recv_requests", "managers/scheduler.py", 5),
    *OUTER,
)
MODEL = Call("all_reduce", "tp", 64, "model forward", seq=18, pg="7")
REQUESTS = Call("broadcast", "attn-tp", 1, "recv_requests", seq=164, pg="5")


def rank(
    tp: int,
    call: Call,
    stack: tuple[Frame, ...],
    *,
    tp_count: int,
    attn_count: int,
    size: int = 8,
    looks: int = 3,
    over_s: float = 2.0,
    ticks: int = 0,
    **changes: Any,
) -> RankLooks:
    """A rank that stood in ``call`` in every look; ticks: turns it made between two looks."""
    one = identity(tp=tp, tp_size=size, world_rank=tp, **changes)
    counts = (GroupCount("7", "tp", size, tp_count), GroupCount("5", "attn-tp", size, attn_count))
    seen = [
        Status(
            identity=one, mono_ns=int(10**9 * over_s * n / max(1, looks - 1)), ticks=5 + n * ticks, tick_mono_ns=1,
            call=call, stack=stack, rounds={}, seams=(), recording="", recording_off="", hook_errors={},
            hooks_removed=(), faults=(), agent_cpu_s=0.0, counts=counts,
        )
        for n in range(looks)
    ]  # fmt: skip
    return RankLooks(one, "live", looks=tuple(seen))


def hung(size: int = 8, odd: int = 1, **how: Any) -> list[RankLooks]:
    """A group of which one rank waits for new requests and the others in the model, as after late metadata."""
    return [
        rank(n, REQUESTS, RECV, tp_count=17, attn_count=164, size=size, **how)
        if n == odd
        else rank(n, MODEL, FORWARD, tp_count=18, attn_count=163, size=size, **how)
        for n in range(size)
    ]


def test_a_wait_in_the_kernel_is_said_where_the_rank_stands() -> None:
    views = hung(4)
    views[1] = replace(views[1], in_kernel="in an uninterruptible wait in the kernel (nfs_wait)")
    document = judge(views)
    assert document.ranks[1].where.endswith("(#164), in an uninterruptible wait in the kernel (nfs_wait)")
    assert "the kernel (nfs_wait)" in document.groups[0].reason


def drawn(document: StacksDocument, form: Format = Format.TABLE, columns: int = 80) -> str:
    out = io.StringIO()
    Output(form, out=out, env={"COLUMNS": str(columns)}).document(document, PROBE.rows(document), drawing(PROBE, form))
    return out.getvalue()


def leaves(nodes: tuple[TreeNode, ...]) -> list[TreeNode]:
    return [leaf for node in nodes for leaf in (leaves(node.children) or [node])]


def test_the_one_that_is_elsewhere_comes_first_and_is_said_in_words() -> None:
    document = judge(hung())
    [group] = document.groups
    assert group.reason == "tp1 waits in broadcast of new requests, the other 7 wait in all_reduce of the model"
    assert [(place.ranks, place.outlier, place.moves) for place in group.places] == [
        ("tp1", True, "stuck"),
        ("tp0,2-7", False, "stuck"),
    ]
    assert [row.rank for row in document.ranks if row.outlier] == ["decode dp0 pp0 tp1"]


def test_ranks_that_wait_for_each_other_in_two_groups() -> None:
    document = judge(hung())
    [finding] = document.findings
    assert (finding.code, finding.group) == ("PD161", "group tp and group attn-tp")
    assert len(finding.ranks) == 8
    assert "decode dp0 tp1 waits in broadcast #164 of group attn-tp" in finding.summary
    assert "which decode dp0 tp0,2-7 have not entered" in finding.summary
    assert (
        "decode dp0 tp0,2-7 wait in all_reduce #18 of group tp, which decode dp0 tp1 has not entered" in finding.summary
    )
    assert "decode dp0 tp1: at #17 of group tp" in finding.evidence


@pytest.mark.parametrize(
    "views",
    [
        hung(ticks=1),  # they get on: caught twice at the same place
        hung(over_s=1.0),  # not for long enough
        hung(looks=1),
        hung(looks=2),
        # tp1 has done the model's collective already, the others only have to leave it
        [rank(0, MODEL, FORWARD, tp_count=18, attn_count=163, size=2),
         rank(1, REQUESTS, RECV, tp_count=18, attn_count=164, size=2)],
        # one that works while the others wait for it
        [rank(0, MODEL, FORWARD, tp_count=18, attn_count=163, size=2),
         rank(1, Call(inside="recv_requests"), RECV[1:], tp_count=17, attn_count=163, size=2)],
        # an older agent tells no counts
        [replace(view, looks=tuple(msgspec.structs.replace(look, counts=()) for look in view.looks)) for view in hung()],
        # a send and its receive
        [rank(n, Call(op, "pp", 4, "scheduler loop", seq=9, pg="5"), RECV, tp_count=1, attn_count=9, size=2)
         for n, op in enumerate(("send", "recv"))],
    ],
)  # fmt: skip
def test_what_is_not_certain_is_no_finding(views: list[RankLooks]) -> None:
    document = judge(views)
    assert document.findings == ()
    assert not document.partial


def test_a_suspicion_is_looked_at_for_longer_and_only_a_suspicion() -> None:
    assert worth_a_longer_look(hung(over_s=0.4))
    assert not worth_a_longer_look(hung())  # it is certain
    assert not worth_a_longer_look(hung(ticks=1))


def polls(tp: int, elements: int, seq: int = 9, op: str = "all_reduce", **how: Any) -> RankLooks:
    call = Call(op, "attn-tp", elements, "poll of decode.transfer", seq=seq, pg="5")
    return rank(tp, call, FORWARD, tp_count=1, attn_count=seq, **how)


def test_other_sizes_and_other_operations_under_one_number() -> None:
    [finding] = judge([polls(0, 2, size=2), polls(1, 3, size=2)]).findings
    assert (finding.code, finding.ranks) == ("PD160", ("decode dp0 pp0 tp0", "decode dp0 pp0 tp1"))
    assert "collective #9 of group attn-tp is all_reduce of 2 on decode dp0 tp0" in finding.summary
    [finding] = judge([polls(0, 1, size=2), polls(1, 1, op="broadcast", size=2)]).findings
    assert "broadcast of 1 on decode dp0 tp1" in finding.summary
    assert judge([polls(0, 2, size=2), polls(1, 2, size=2)]).findings == ()
    assert judge([polls(0, 2, op="all_gather", size=2), polls(1, 3, op="all_gather", size=2)]).findings == ()


def test_other_numbers_count_only_when_the_whole_group_stands_in_it() -> None:
    views = [polls(0, 2, seq=9, size=3), polls(1, 2, seq=10, size=3)]
    late = rank(2, Call(inside="scheduling"), OUTER, tp_count=1, attn_count=8, size=3)
    assert judge([*views, late]).findings == ()  # the others wait for tp2, one of them has passed #9 already
    assert judge(views).findings == ()  # of tp2 nothing is known
    [finding] = judge([*views, polls(2, 2, seq=10, size=3)]).findings
    assert finding.code == "PD160"
    assert "decode dp0 tp0 stands in all_reduce #9 of group attn-tp" in finding.summary
    assert "decode dp0 tp1,2 stand in all_reduce #10" in finding.summary


def test_numbers_mean_nothing_where_stages_send_to_each_other() -> None:
    call = Call("all_reduce", "world", 1, seq=9, pg="5")
    views = [
        rank(n, msgspec.structs.replace(call, seq=9 + n), FORWARD, tp_count=1, attn_count=9 + n, size=2, pp_size=2)
        for n in range(2)
    ]
    assert judge(views).findings == ()
    one_stage = [replace(v, identity=msgspec.structs.replace(v.identity, pp_size=1)) for v in views]
    assert [f.code for f in judge(one_stage).findings] == ["PD160"]


def test_groups_of_other_servers_of_the_same_name_are_not_mixed() -> None:
    other = [rank(n, MODEL, FORWARD, tp_count=18, attn_count=163, size=2, world="other", instance="i2") for n in (0, 1)]
    document = judge([rank(1, REQUESTS, RECV, tp_count=17, attn_count=164, size=2), *other])
    assert document.findings == ()
    assert len(document.groups) == 2


def test_512_ranks_fold_into_a_few_lines() -> None:
    views = [
        view
        for dp in range(8)
        for view in [
            replace(v, identity=msgspec.structs.replace(v.identity, dp=dp, dp_size=8, world=f"w{dp}"))
            for v in hung(size=64, odd=7 if dp == 3 else 99)
        ]
    ]
    document = judge(views)
    assert (len(document.ranks), len(document.groups)) == (512, 8)
    assert document.groups[0].reason == (
        "tp7 waits in broadcast of new requests, the other 63 wait in all_reduce of the model"
    )
    [finding] = document.findings
    assert finding.code == "PD161"
    most, one = leaves(document.tree)
    assert (one.ranks, one.count) == ("decode dp3 tp7", 1)
    assert most.ranks == "decode dp0-2,4-7 tp0-63; decode dp3 tp0-6,8-63"
    assert unfold(most.ranks) == {Place("decode", dp, 0, 0, tp) for dp in range(8) for tp in range(64)} - unfold(
        one.ranks
    )
    text = drawn(document)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("decode dp3 · 64 ranks   tp7: elsewhere than the others\n")
    assert "\ndecode dp0-2,4-7 · 7 × 64 ranks\n" in text
    assert len(text.splitlines()) < 50


def test_moving_is_not_an_outlier_and_stuck_is_what_stays() -> None:
    def moving(n: int, *stacks: tuple[Frame, ...]) -> RankLooks:
        view = rank(n, Call(), OUTER, tp_count=1, attn_count=1, size=2, ticks=1)
        looks = [msgspec.structs.replace(look, stack=stack) for look, stack in zip(view.looks, stacks, strict=True)]
        return replace(view, looks=tuple(looks))

    document = judge([moving(0, FORWARD, RECV, FORWARD), moving(1, RECV, RECV, RECV)])
    [group] = document.groups
    assert (group.reason, [place.outlier for place in group.places]) == ("all move", [False, False])
    assert {frame.moves for node in document.tree for frame in node.frames} == {"moving"}
    # In a rank that makes no turn, what every look has is stuck and what is below it moves.
    still = rank(0, Call(), FORWARD, tp_count=1, attn_count=1, size=1)
    looks = (msgspec.structs.replace(still.looks[0], stack=FORWARD[1:]), *still.looks[1:])
    [node] = judge([replace(still, looks=looks)]).tree
    assert [(f.function, f.moves) for f in node.frames] == [
        ("main", "stuck"), ("event_loop", "stuck"), ("run_batch", "stuck"), ("all_reduce", "moving"),
    ]  # fmt: skip


def test_a_group_that_waits_for_requests_is_idle() -> None:
    sleeps = (Frame("poll", "sugar/poll.py", 106), Frame("maybe_sleep_on_idle", "managers/scheduler.py", 7), *OUTER)
    views = [
        rank(0, Call(inside="idle"), sleeps, tp_count=17, attn_count=163, size=2),
        rank(1, REQUESTS, RECV, tp_count=17, attn_count=164, size=2),
    ]
    document = judge(views)
    assert (document.groups[0].reason, {row.moves for row in document.ranks}) == ("idle", {"idle"})
    assert {frame.moves for node in document.tree for frame in node.frames} == {"idle"}
    assert not any(row.outlier for row in document.ranks)
    assert document.findings == ()
    assert not anything_stuck(views)
    views[1] = rank(1, MODEL, FORWARD, tp_count=18, attn_count=163, size=2)  # it has a batch that tp0 does not have
    document = judge(views)
    assert {row.moves for row in document.ranks} == {"stuck"}
    assert all(row.outlier for row in document.ranks)
    assert anything_stuck(views)


def test_one_look_says_that_it_may_be_skew() -> None:
    document = judge(hung(looks=1))
    assert document.groups[0].reason.endswith("(one look: it may be skew)")
    assert "tp1: elsewhere than the others (in one look)" in drawn(document)
    assert {row.moves for row in document.ranks} == {""}


def test_a_rank_without_an_answer_has_a_row_and_makes_it_partial() -> None:
    stopped = RankLooks(identity(tp=1, tp_size=2), "live", "no answer within 2 s: process is stopped")
    document = judge([rank(0, MODEL, FORWARD, tp_count=18, attn_count=163, size=2), stopped])
    assert [(row.rank, row.state) for row in document.ranks][1] == ("decode dp0 pp0 tp1", "silent")
    assert "tp1 does not answer: no answer within 2 s: process is stopped" in document.groups[0].reason
    assert [group.in_step for group in document.collectives] == [None, None]
    assert document.findings == ()
    assert document.partial


def test_a_stack_read_from_outside_is_marked_as_that() -> None:
    stopped = RankLooks(identity(tp=1, tp_size=2), "live", "process is stopped", outside=RECV)
    document = judge([rank(0, REQUESTS, RECV, tp_count=17, attn_count=164, size=2), stopped])
    assert [(row.source, len(row.stack)) for row in document.ranks] == [("agent", 4), ("outside", 4)]
    reason = document.groups[0].reason
    assert reason.startswith(
        "tp0 waits in broadcast of new requests, tp1 does not answer: process is stopped; seen from"
    )
    assert "outside in broadcast (distributed/distributed_c10d.py)" in reason
    assert "one look" not in reason
    assert "from outside: is in broadcast" in drawn(document)


def test_collectives_from_the_recorder_the_stack_and_the_counter() -> None:
    def entry(pg: int, seq: int, op: str, *, retired: bool) -> FlightEntry:
        return FlightEntry(pg, "", seq, op, "gloo", ((2, 16),), "scheduled", retired, seq)

    views = hung(size=2)
    views[0] = replace(
        views[0], flight=(entry(7, 17, "all_gather", retired=True), entry(7, 18, "all_reduce", retired=False))
    )
    tp, attn = judge(views).collectives
    said = {row.ranks: row for row in tp.rows}
    current, last = said["tp0"].current, said["tp0"].last
    assert current is not None
    assert last is not None
    assert (current.seq, current.op, current.size, current.state) == (18, "all_reduce", "64", "in it")
    assert (last.seq, last.op, last.size, last.source) == (17, "all_gather", "2x16", "flight recorder")
    other = said["tp1"].last
    assert other is not None
    assert (said["tp1"].current, other.seq, other.source) == (None, 17, "count")
    assert (tp.in_step, attn.in_step, tp.kind, tp.title) == (False, False, "tp", "decode dp0")
    # A collective that the device does while the main thread is elsewhere.
    views[1] = replace(views[1], flight=(entry(7, 17, "all_reduce", retired=False),))
    [row] = [row for row in judge(views).collectives[0].rows if row.ranks == "tp1"]
    assert row.current is not None
    assert (row.current.state, row.current.source) == ("not over", "flight recorder")
    assert judge(views, with_collectives=False).collectives == ()


def test_every_format_can_be_written_and_none_has_more_than_functions_files_and_lines() -> None:
    document = judge(hung())
    for form in Format:
        assert "recv_requests" in drawn(document, form)
    rows = drawn(document, Format.JSONL).splitlines()
    assert [json.loads(row)["schema"] for row in rows] == ["pdctl.stacks"] * 8
    decoded = msgspec.json.decode(drawn(document, Format.JSON), type=StacksDocument)
    assert decoded == document
    assert set(Frame.__struct_fields__) == {"function", "file", "line"}


def test_what_py_spy_writes() -> None:
    text = b"""[{"pid": 41, "thread_id": 1, "thread_name": "pdctl-agent", "os_thread_id": 44, "active": true,
      "owns_gil": false, "frames": []},
     {"pid": 41, "thread_id": 2, "thread_name": "MainThread", "os_thread_id": 41, "active": true, "owns_gil": true,
      "frames": [{"name": "Poller.sleep", "filename": "/a/b/c.py", "module": null, "short_filename": "c.py", "line": 7,
                  "locals": null, "is_entry": true}]}]"""
    assert parse(text, 41).frames == (Frame("sleep", "b/c.py", 7),)
    assert parse(b"[]", 41).frames == ()
    with pytest.raises(ValueError, match="JSON"):
        parse(b"Error: permission denied", 41)


def test_ranks_that_get_on_are_not_mispaired() -> None:
    """What a rank does and under which number are not read at one moment, so one that moves may say both of two moments."""
    moving = [polls(0, 2, size=2, ticks=1), polls(1, 1, op="broadcast", size=2, ticks=1)]
    assert [group.mispaired for group in judge(moving).collectives] == [(), ()]
    stuck = [polls(0, 2, size=2), polls(1, 1, op="broadcast", size=2)]
    assert [bool(group.mispaired) for group in judge(stuck).collectives] == [False, True]
