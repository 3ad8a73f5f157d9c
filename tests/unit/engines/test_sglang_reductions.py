"""What the ranks of a group agree on besides their polls: found in the code, recorded as rounds, compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from pdctl.agent.tap import QueueTap
from pdctl.engines.base import Hooks
from pdctl.engines.polls import PollHooks
from pdctl.engines.reductions import ByRoom
from pdctl.engines.sglang import reductions, seams
from pdctl.probes.queues.judge import judge
from pdctl.probes.queues.model import QueuesDocument, RankView
from pdctl.protocol.model import GroupInfo, Identity
from pdctl.recording import format as f
from pdctl.recording.reader import Recording, parse
from pdctl.recording.writer import RecordingWriter
from pdctl.report.findings import Level

UTILS = """
def all_reduce_flags(flags, group, op):
    if not flags:
        return flags
    tensor = torch.tensor(flags, dtype=torch.int32)
    dist.all_reduce(tensor, op=op, group=group)
    return tensor.tolist()
def _all_reduce_polls(polls, group):
    return all_reduce_flags(polls, group, "MIN")
def poll_and_all_reduce(pollers, gloo_group):
    return _all_reduce_polls([poller.poll() for poller in pollers], gloo_group)
def poll_and_all_reduce_attn_cp_tp_group(pollers, attn_cp_cpu_group, attn_tp_cpu_group):
    return poll_and_all_reduce(pollers, attn_tp_cpu_group)
def other(x):
    return x
"""
DECODE = """
class DecodeTransferQueue:
    def __init__(self, group):
        self.queue, self._deferred_releases, self.gloo_group, self.enable_host_receive = [], [], group, True
    def _poll_with_metadata_gate(self):
        return poll_and_all_reduce([one.kv_receiver for one in self.queue], self.gloo_group)
    def pop_transferred(self):
        if not self.queue:
            return []
        polls = self._poll_with_metadata_gate()
        failed = [(i, one, one.holds) for i, (one, poll) in enumerate(zip(self.queue, polls)) if poll == 0]
        held = all_reduce_flags(flags=[hold for _, _, hold in failed], group=self.gloo_group, op="MAX")
        for (_, one, _), hold in zip(failed, held):
            if hold:
                self._deferred_releases.append((one, 0.0))
        self.queue = [one for one, poll in zip(self.queue, polls) if poll != 0]
        return held
    def resolve_deferred_releases(self):
        if not self._deferred_releases:
            return
        ready = all_reduce_flags(
            flags=[one.acked for one, _ in self._deferred_releases], group=self.gloo_group, op="MIN"
        )
        self._deferred_releases = [entry for entry, done in zip(self._deferred_releases, ready) if not done]
class Next:
    def agree(self, group):
        tensor = torch.tensor([7, 9000])
        torch.distributed.all_reduce(tensor, group=group)
        return tensor.tolist()
    def more(self, group):
        return all_reduce_flags([1], group, "MIN")
    def again(self, group):
        return all_reduce_flags([1], group, "MIN") + all_reduce_flags([0, 1], group, "MIN")
    def too_many(self, group):
        return all_reduce_flags([1], group, "MIN")
    def quiet(self):
        return other(3)
"""
PREFILL = """
class SchedulerDisaggregationPrefillMixin:
    def resolve_waiting_queue_bootstrap(self):
        candidates = [req for req in self.waiting_queue if not req.aborted]
        if not candidates:
            return
        poll_and_all_reduce_attn_cp_tp_group([req.disagg_kv_sender for req in candidates], None, self.group)
    def check_bootstrap(self, req):
        return poll_and_all_reduce_attn_cp_tp_group([req.disagg_kv_sender], None, self.group)
"""
REDUCERS = ("all_reduce_flags", "_all_reduce_polls", "poll_and_all_reduce", "poll_and_all_reduce_attn_cp_tp_group")
GROUP = GroupInfo("attn-tp", (0, 1), "w")


def request(room: int, **how: Any) -> Any:
    return SimpleNamespace(req=SimpleNamespace(bootstrap_room=room, rid=f"r{room}"), kv_receiver=sender(room, 3), **how)


def sender(room: int, poll: int) -> Any:
    return SimpleNamespace(bootstrap_room=room, poll=lambda: poll)


class Rank:
    """A rank with the engine's modules, hooked; its collectives give what ``reduce`` makes of what goes in."""

    def __init__(self, number: int, folder: Path, role: str = "decode") -> None:
        self.reduce: Callable[[list[int]], list[int]] = list
        distributed = SimpleNamespace(all_reduce=self._all_reduce, ReduceOp=None)
        utils = ModuleType(seams.UTILS)
        vars(utils).update(torch=torch, dist=distributed)
        exec(UTILS, vars(utils))
        self.modules: dict[str, Any] = {seams.UTILS: utils}
        engine = SimpleNamespace(tensor=torch.tensor, distributed=distributed)
        for name, source in ((seams.DECODE, DECODE), (seams.PREFILL, PREFILL)):
            module = self.modules[name] = ModuleType(name)
            vars(module).update(torch=engine, other=utils.other, **{one: getattr(utils, one) for one in REDUCERS})
            exec(source, vars(module))
        self.identity = Identity(
            engine="sglang", engine_version="x", pdctl_version="0", role=role, host="h", pid=os.getpid(), proc_start=1,
            started_wall_ns=1, started_mono_ns=1, instance="i", service="s", cluster="c", world="w", world_rank=number,
            tp=number, tp_size=2, groups=(GROUP,),
        )  # fmt: skip
        self.path = folder / f"rank{number}"
        self.writer = RecordingWriter.create(self.path, msgspec.json.encode(self.identity), size=f.MIN_SIZE)
        self.hooks = Hooks()
        self._hook(role, utils)

    def _hook(self, role: str, utils: Any) -> None:
        polls = PollHooks(self.hooks, lambda group: {"g": 0}[group])
        streams = count()
        self.named, self.left = reductions.name(reductions.callers(role, self.modules))
        transfer = QueueTap("decode.transfer", ByRoom(), self.writer, lambda: next(streams))
        if role == "decode":
            owner = self.modules[seams.DECODE].DecodeTransferQueue
            polls.poll_method(owner, "pop_transferred", "rounds", transfer, lambda queue: queue.queue)
        for name in ("poll_and_all_reduce", "poll_and_all_reduce_attn_cp_tp_group"):
            pollers_of, group_of = seams.POLL_FUNCTIONS[name]
            for module in self.modules.values():
                polls.poll_function(module, name, pollers_of, group_of)
        for one in self.named:
            tap = QueueTap(one.queue, ByRoom(), self.writer, lambda: next(streams), ())
            polls.reductions.caller(
                one.caller.owner, one.caller.name, one.queue, tap, one.entries, steady=one.steady,
                module=one.caller.module, torch=polls.torch_of(one.caller.module) if one.caller.direct else None,
            )  # fmt: skip
        polls.collective(utils)

    def _all_reduce(self, tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> None:
        del op, group, async_op
        tensor.copy_(torch.tensor(self.reduce(tensor.tolist())))

    def made(self, name: str, *args: Any) -> Any:
        return getattr(self.modules[seams.DECODE], name)(*args)

    def recording(self) -> Recording:
        assert not self.hooks.errors()
        return parse(self.path.read_bytes())

    def view(self) -> RankView:
        return RankView(self.identity, "live", recording=self.recording())


def rounds(recording: Recording, queue: str) -> list[tuple[int, list[tuple[int, int, int]]]]:
    found = recording.stream(queue, "attn-tp")
    return [
        (run.ordinal, [(item.room, item.local, item.reduced) for item in found.items(run) or []])
        for run in (found.runs if found is not None else [])
        for _ in range(run.repeat)
    ]


def judged(ranks: Sequence[Rank]) -> QueuesDocument:
    return judge([rank.view() for rank in ranks])


def test_what_reduces_is_found_by_what_it_calls(tmp_path: Path) -> None:
    rank = Rank(0, tmp_path)
    assert reductions.reducers(rank.modules[seams.UTILS]) == set(REDUCERS)
    assert {one.queue: one.caller.title for one in rank.named} == {
        "decode.held": "DecodeTransferQueue.pop_transferred",
        "decode.deferred": "DecodeTransferQueue.resolve_deferred_releases",
        "reduction.0": "Next.agree",
        "reduction.1": "Next.more",
        "reduction.2": "Next.again",
    }
    assert rank.left == ["Next.too_many"]
    prefill = Rank(1, tmp_path, "prefill")
    assert {one.queue for one in prefill.named} == {"prefill.waiting", "prefill.chunk"}


def test_what_polls_a_queue_for_its_method_is_no_reduction_of_its_own() -> None:
    utils, decode = ModuleType(seams.UTILS), ModuleType(seams.DECODE)
    exec(UTILS, vars(utils))
    vars(decode).update({name: getattr(utils, name) for name in REDUCERS})
    exec(
        "class DecodeTransferQueue:\n"
        " def pop_transferred(self): return self._poll_with_metadata_gate()\n"
        " def _poll_with_metadata_gate(self): return poll_and_all_reduce([], 'g')\n"
        " def _count(self): return poll_and_all_reduce([], 'g')\n",
        vars(decode),
    )
    found = reductions.callers("decode", {seams.UTILS: utils, seams.DECODE: decode})
    assert [one.title for one in found] == ["DecodeTransferQueue._count"]


def test_what_a_module_has_from_elsewhere_is_not_its_own() -> None:
    tools, switch = ModuleType("sglang.srt.utils.common"), ModuleType("sglang.srt.disaggregation.role_switch")
    exec("def free_memory(group): torch.distributed.all_reduce(1, group=group)", vars(tools))
    exec("def settle(group): torch.distributed.all_reduce(1, group=group)", vars(switch))
    vars(switch)["free_memory"] = vars(tools)["free_memory"]
    found = reductions.callers("decode", {tools.__name__: tools, switch.__name__: switch})
    assert [one.title for one in found] == ["settle"]


def test_held_and_deferred_transfers_are_rounds_of_their_own(tmp_path: Path) -> None:
    rank = Rank(0, tmp_path)
    queue = rank.made("DecodeTransferQueue", "g")
    queue.queue = [request(11, holds=1, acked=0), request(12, holds=0, acked=0), request(13, holds=0, acked=0)]
    for one, poll in zip(queue.queue, (0, 3, 0), strict=True):
        one.kv_receiver.poll = lambda poll=poll: poll
    queue.resolve_deferred_releases()
    queue.pop_transferred()
    queue.resolve_deferred_releases()
    queue.resolve_deferred_releases()
    queue._deferred_releases[0][0].acked = 1
    queue.resolve_deferred_releases()
    queue.resolve_deferred_releases()
    found = rank.recording()
    assert rounds(found, "decode.transfer") == [(0, [(11, 0, 0), (12, 3, 3), (13, 0, 0)])]
    assert rounds(found, "decode.held") == [(0, [(11, 1, 1), (13, 0, 0)])]
    assert rounds(found, "decode.deferred") == [(0, [(11, 0, 0)]), (0, [(11, 0, 0)]), (2, [(11, 1, 1)])]
    assert (found.visits["decode.deferred"].count, found.visits["decode.deferred"].empty) == (5, True)


def deferring(tmp_path: Path, *acked: Sequence[int], rooms: Sequence[Sequence[int]]) -> list[Rank]:
    """Two ranks that have deferred these rooms and are asked for their releases as often as ``acked`` has rows."""
    ranks = [Rank(number, tmp_path) for number in range(2)]
    queues = [rank.made("DecodeTransferQueue", "g") for rank in ranks]
    for queue, mine in zip(queues, rooms, strict=True):
        queue._deferred_releases = [(request(room, acked=0), 0.0) for room in mine]
    for row in acked:
        for rank, queue in zip(ranks, queues, strict=True):
            rank.reduce = lambda flags, row=row: [min(row)] * len(flags)
            for entry in queue._deferred_releases:
                entry[0].acked = row[rank.identity.tp]
            queue.resolve_deferred_releases()
    return ranks


def test_a_release_that_one_rank_has_to_wait_with_for_the_other_is_no_difference(tmp_path: Path) -> None:
    ranks = deferring(tmp_path, (0, 0), (1, 0), (1, 0), (1, 1), (0, 0), rooms=[[11, 12], [11, 12]])
    document = judged(ranks)
    assert not document.findings
    [row] = [row for group in document.groups for row in group.queues if row.queue == "decode.deferred"]
    assert (row.verdict, row.round) == ("agree", 3)


def test_a_list_of_deferred_releases_that_is_empty_on_one_rank_is_a_skipped_collective(tmp_path: Path) -> None:
    ranks = deferring(tmp_path, (0, 0), (0, 0), rooms=[[11], []])
    [finding] = judged(ranks).findings
    assert (finding.code, finding.level, finding.rooms, finding.ranks) == ("PD103", Level.ERROR, (11,), ("tp1",))
    assert "tp1 had nothing in decode.deferred and skipped the collective of round 0" in finding.summary
    assert "tp0 entered it with 1 flag." in finding.summary


def test_lists_of_deferred_releases_that_differ_are_told_by_their_rooms(tmp_path: Path) -> None:
    ranks = deferring(tmp_path, (0, 0), rooms=[[11, 12], [11]])
    [finding] = judged(ranks).findings
    assert (finding.code, finding.rooms) == ("PD104", (12,))
    assert "In round 0 of decode.deferred the lists differ (tp0 2, tp1 1): room 12 is on tp0 only." in finding.summary
    assert any("its own flag: not ready" in line for line in finding.evidence)


def test_a_function_nobody_knows_is_recorded_and_compared(tmp_path: Path) -> None:
    ranks = [Rank(number, tmp_path) for number in range(2)]
    for rank in ranks:
        assert rank.made("Next").agree("g") == [7, 9000]
        rank.made("Next").more("g")
        rank.made("Next").again("g")
        rank.made("Next").quiet()
    assert rounds(ranks[0].recording(), "reduction.0") == [(0, [(0, 7, 7), (0, 254, 254)])]
    assert rounds(ranks[0].recording(), "reduction.2") == [(0, [(0, 1, 1)]), (1, [(0, 0, 0), (0, 1, 1)])]
    assert not judged(ranks).findings


def test_calls_of_a_function_nobody_knows_count_only_where_it_reduces(tmp_path: Path) -> None:
    ranks = [Rank(number, tmp_path) for number in range(2)]
    for number, rank in enumerate(ranks):
        flags = rank.modules[seams.DECODE].all_reduce_flags
        for _ in range(3 * number):  # nobody promised that all ranks call it alike
            rank.modules[seams.DECODE].all_reduce_flags = lambda *_: []
            rank.made("Next").more("g")
        rank.modules[seams.DECODE].all_reduce_flags = flags
        rank.made("Next").more("g")
    assert not judged(ranks).findings


def test_polls_of_a_part_of_the_queue_are_those_of_its_requests(tmp_path: Path) -> None:
    rank = Rank(0, tmp_path)
    queue = rank.made("DecodeTransferQueue", "g")
    queue.queue = [request(room, holds=0) for room in (11, 12, 13)]
    polls = rank.modules[seams.DECODE].poll_and_all_reduce

    def some(self: Any) -> list[int]:
        return [3, *polls([one.kv_receiver for one in self.queue[1:]], "g")]

    type(queue)._poll_with_metadata_gate = some
    queue.queue[2].kv_receiver.poll = lambda: 0
    queue.pop_transferred()
    queue.pop_transferred()
    assert rounds(rank.recording(), "decode.transfer") == [(0, [(12, 3, 3), (13, 0, 0)]), (1, [(12, 3, 3)])]


def test_polls_that_a_new_function_reduces_are_the_queues_all_the_same(tmp_path: Path) -> None:
    rank = Rank(0, tmp_path)
    queue = rank.made("DecodeTransferQueue", "g")
    queue.queue = [request(room, holds=0) for room in (11, 12)]
    flags = rank.modules[seams.DECODE].all_reduce_flags
    type(queue)._poll_with_metadata_gate = lambda self: flags(
        [one.kv_receiver.poll() for one in self.queue], "g", "MIN"
    )
    queue.pop_transferred()
    queue.pop_transferred()
    assert rounds(rank.recording(), "decode.transfer") == [(0, [(11, 3, 3), (12, 3, 3)])] * 2
    assert rounds(rank.recording(), "decode.held") == []


def test_groups_and_tensors_that_are_not_known_are_left_alone(tmp_path: Path) -> None:
    rank = Rank(0, tmp_path)
    rank.made("Next").agree("a group of somebody else's")
    assert rounds(rank.recording(), "reduction.0") == []


def test_a_module_has_another_torch_only_while_its_function_that_reduces_runs(tmp_path: Path) -> None:
    rank = Rank(0, tmp_path)
    module, seen = rank.modules[seams.DECODE], []
    real = module.torch

    def looks(flags: list[int]) -> list[int]:
        seen.append(module.torch)
        assert module.torch.tensor is real.tensor
        with pytest.raises(AttributeError):
            module.torch.nothing  # noqa: B018
        return flags

    rank.reduce = looks
    rank.made("Next").agree("g")
    rank.made("Next").more("g")
    rank.reduce = lambda flags: flags[0] // 0
    with pytest.raises(ZeroDivisionError):
        rank.made("Next").agree("g")
    assert [one is real for one in seen] == [False, True]
    assert module.torch is real


def test_requests_that_wait_are_polled_by_their_senders(tmp_path: Path) -> None:
    ranks = [Rank(number, tmp_path, "prefill") for number in range(2)]
    for rank in ranks:
        scheduler = rank.modules[seams.PREFILL].SchedulerDisaggregationPrefillMixin()
        scheduler.group = "g"
        reqs = [SimpleNamespace(aborted=False, disagg_kv_sender=sender(room, 2)) for room in (21, 22)]
        reqs[0].aborted = rank.identity.tp == 1  # what only this rank knows
        scheduler.waiting_queue = reqs
        scheduler.check_bootstrap(reqs[1])
        scheduler.resolve_waiting_queue_bootstrap()
    assert rounds(ranks[0].recording(), "prefill.chunk") == [(0, [(22, 2, 2)])]
    assert rounds(ranks[0].recording(), "prefill.waiting") == [(0, [(21, 2, 2), (22, 2, 2)])]
    [finding] = judged(ranks).findings
    assert (finding.code, finding.rooms) == ("PD104", (21,))
    assert "prefill.waiting" in finding.summary


def test_all_comes_out_again(tmp_path: Path) -> None:
    rank = Rank(0, tmp_path)
    rank.hooks.remove_all()
    before = {name: vars(module)["torch"] for name, module in rank.modules.items()}
    assert all(type(one) is not SimpleNamespace or hasattr(one, "tensor") for one in before.values())
    assert rank.made("Next").more("g") == [1]
    assert rank.recording().streams == []
