"""Schedules of the explorer, through the engine's own queues: polls, gate, MIN over what it would send, commits, filters.

Run in the engine's environment; reads ``{"machine": …, "schedules": [{rounds, arrivals, cells}]}`` on stdin and prints a line
of JSON: per schedule, per round, per rank a list of (request, poll sent, poll reduced, action). All ranks are in this one
process: what stands in is the transport of the collective, which carries each rank's own tensor to the others.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

KEPT, COMMITTED, FAILED, ABORTED = 0, 1, 2, 3
TRANSFERRING, SUCCESS = 3, 4
ROOM, FORMER = 7001, 6001


def light() -> Any:
    """Return the program that the other light tests run, as a module."""
    spec = importlib.util.spec_from_file_location("light_rank", Path(__file__).with_name("rank.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Sent(BaseException):
    """A rank is about to reduce these polls."""


class Collective:
    """Stands for ``dist.all_reduce``: first tells what a rank sends, then gives it what the group made of that."""

    def __init__(self) -> None:
        self.answer: list[int] | None = None

    def __call__(self, tensor: torch.Tensor, op: Any = None, group: Any = None, **_: Any) -> None:
        assert op == dist.ReduceOp.MIN
        if self.answer is None:
            raise Sent(tensor.tolist())
        tensor.copy_(torch.tensor(self.answer, dtype=tensor.dtype))


_SCHEDULERS: dict[tuple[str, int], Any] = {}


def scheduler_of(rank: Any, role: str, number: int) -> Any:
    """Return a scheduler for rank ``number``, with all its slots free; made once, since it takes long."""
    from sglang.srt.disaggregation.utils import ReqToMetadataIdxAllocator

    if (role, number) not in _SCHEDULERS:
        _SCHEDULERS[role, number] = rank.make_scheduler(role, 0, 1, 8)
    scheduler = _SCHEDULERS[role, number]
    scheduler.req_to_metadata_buffer_idx_allocator = ReqToMetadataIdxAllocator(8)
    return scheduler


class TransferRank:
    """One rank's transfer queue and metadata buffers."""

    def __init__(self, rank: Any, schedule: dict[str, Any], number: int) -> None:
        from sglang.srt.disaggregation.decode import DecodePreallocQueue, DecodeTransferQueue

        self.rank, self.schedule, self.cells = rank, schedule, schedule["cells"][number]
        self.scheduler = scheduler_of(rank, "decode", number)
        self.queue = rank.make_queue(DecodeTransferQueue, self.scheduler, number)
        self.scheduler.disagg_decode_transfer_queue = self.queue
        self.scheduler.disagg_decode_prealloc_queue = rank.make_queue(DecodePreallocQueue, self.scheduler, number)
        self.slots = self.scheduler.disagg_metadata_buffers.bootstrap_room
        self.slots.zero_()
        self.now = 0

    def begin(self, now: int) -> None:
        from sglang.srt.disaggregation.decode import DecodeRequest

        self.now = now
        for request, (first, second, flag) in enumerate(self.cells):
            if self.schedule["arrivals"][request] == now:
                polls = [[TRANSFERRING] * first + [SUCCESS]]
                receiver = self.rank.Transfer(ROOM + request, polls, 0, self.queue.kv_manager)
                receiver._turn = now
                made = DecodeRequest(req=self.rank.Request(ROOM + request), kv_receiver=receiver)
                made.metadata_buffer_index = self.scheduler.req_to_metadata_buffer_idx_allocator.alloc()
                if flag:
                    self.slots[made.metadata_buffer_index, 0] = FORMER + request
                self.queue.extend([made])
            for made in self.queue.queue:
                if made.req.bootstrap_room == ROOM + request and now >= second:
                    self.slots[made.metadata_buffer_index, 0] = ROOM + request

    def sends(self, collective: Collective) -> list[int]:
        collective.answer = None
        try:
            self.queue.pop_transferred()
        except Sent as sent:
            return list(sent.args[0])
        assert not self.queue.queue
        return []

    def apply(self, collective: Collective, sent: list[int], reduced: list[int]) -> list[list[int]]:
        collective.answer = reduced
        before = list(self.queue.queue)
        committed = {req.bootstrap_room for req in self.queue.pop_transferred()}
        still = set(map(id, self.queue.queue))
        actions = []
        for made, poll, least in zip(before, sent, reduced, strict=True):
            room = made.req.bootstrap_room
            action = KEPT if id(made) in still else COMMITTED if room in committed else ABORTED
            assert (action == ABORTED) == (made.req.finished_reason is not None)
            actions.append([room - ROOM, poll, least, action])
            if made.kv_receiver is not None:
                made.kv_receiver.next_turn()
        return actions


def transfer(rank: Any, schedule: dict[str, Any]) -> list[Any]:
    collective = Collective()
    dist.all_reduce = collective
    dist.get_world_size = lambda *_, **__: len(schedule["cells"])
    ranks = [TransferRank(rank, schedule, number) for number in range(len(schedule["cells"]))]
    rounds = []
    for now in range(schedule["rounds"]):
        for one in ranks:
            one.begin(now)
        sent = [one.sends(collective) for one in ranks]
        reduced = [min(column) for column in zip(*sent, strict=True)]
        rounds.append([one.apply(collective, mine, reduced) for one, mine in zip(ranks, sent, strict=True)])
        if any(len({action for *_, action in column}) > 1 for column in zip(*rounds[-1], strict=True)):
            break
    return rounds


def pipeline(rank: Any, schedule: dict[str, Any]) -> list[Any]:
    """Stages with the engine's bootstrap queue: the first is told what any has seen fail, the next what it removed."""
    from sglang.srt.disaggregation.prefill import PrefillBootstrapQueue

    stages = []
    for number, cells in enumerate(schedule["cells"]):
        scheduler = scheduler_of(rank, "prefill", number)
        queue = rank.make_queue(PrefillBootstrapQueue, scheduler, 0)
        stages.append((queue, cells))
    rounds: list[Any] = []
    for now in range(schedule["rounds"]):
        told: set[str] = set()
        for queue, cells in stages:
            for request, (first, *_) in enumerate(cells):
                if schedule["arrivals"][request] == now:
                    req = rank.Request(ROOM + request)
                    req.disagg_kv_sender = rank.Transfer(ROOM + request, [[1] * first + [0]], 0, queue.kv_manager)
                    req.disagg_kv_sender._turn = now
                    queue.queue.append(req)
            told |= {req.rid for req in queue.queue if req.disagg_kv_sender.poll() == 0}
        lists = []
        for queue, _ in stages:
            before = list(queue.queue)
            _, failed = queue.pop_bootstrapped(return_failed_reqs=True, rids_to_check=sorted(told))
            gone = {id(req) for req in failed}
            polls = [req.disagg_kv_sender.poll() for req in before]
            lists.append(
                [
                    [req.bootstrap_room - ROOM, poll, poll, FAILED if id(req) in gone else KEPT]
                    for req, poll in zip(before, polls, strict=True)
                ]
            )
            assert [req for req in before if id(req) not in gone] == queue.queue
            for req in queue.queue:
                req.disagg_kv_sender.next_turn()
            told = {req.rid for req in failed}
        rounds.append(lists)
    return rounds


def main() -> None:
    """Serve one order."""
    rank = light()
    import sglang.srt.disaggregation.decode
    import sglang.srt.disaggregation.prefill
    import sglang.srt.managers.scheduler_pp_mixin

    rank.publish_settings(sglang.srt.disaggregation.decode, sglang.srt.disaggregation.prefill)
    order = json.loads(sys.stdin.read())
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", f"file://{folder}/store", rank=0, world_size=1)
        group = dist.new_group([0], backend="gloo")
        dist.new_group = lambda *_, **__: group
        run = {"transfer": transfer, "pipeline": pipeline}[order["machine"]]
        print(json.dumps([run(rank, schedule) for schedule in order["schedules"]]))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
