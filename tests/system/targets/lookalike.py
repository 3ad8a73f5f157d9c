"""A process of SGLang's shape for those who read it from outside: its objects, no engine, standard library only.

usage: lookalike.py [--role R] [--tp N] [--size N] [--rooms 11,12] [--landed 11] [--then WHAT]

Runs under any Python from 3.8 on. Prints ``ready`` and then does WHAT:
  wait        for ever, in C, without the GIL
  gil         for ever, in C, with the GIL held
  move        counts in two attributes, one after the other, as fast as it can
  undumpable  as ``wait``, after it has made itself unreadable
"""

import argparse
import ctypes
import enum
import os
import sys
import time
import types

SLOTS, ROW = 8, 64


class DisaggregationMode(enum.Enum):
    PREFILL = "prefill"
    DECODE = "decode"


class ServerArgs:
    def __init__(self, role, size):
        self.port = 30000 if role == "prefill" else 30001
        self.dp_size = self.nnodes = 1
        self.tp_size = size
        self.enable_dp_attention = False
        self.disaggregation_transfer_backend = "mooncake"


class Group:
    pass


class Stats:
    __slots__ = ("decode_transfer_queue_entry_time", "wait_queue_entry_time")

    def __init__(self):
        self.decode_transfer_queue_entry_time = self.wait_queue_entry_time = time.perf_counter()


class Req:
    def __init__(self, room):
        self.rid, self.bootstrap_room = f"rid-{room}", room
        self.origin_input_ids = list(range(10))
        self.metadata_buffer_index = -1
        self.finished_reason = None
        self.time_stats = Stats()


class DecodeRequest:
    def __init__(self, room, slot):
        self.req, self.kv_receiver, self.metadata_buffer_index = Req(room), object(), slot


class Tensor:
    """Only its place is read, from the numbers that are registered for transfers."""


class MetadataBuffers:
    def __init__(self):
        self.output_ids, self.bootstrap_room = Tensor(), Tensor()
        self.memory = [ctypes.create_string_buffer(SLOTS * ROW) for _ in range(2)]

    def get_buf_infos(self):
        return [self.output_ids.data_ptr(), self.bootstrap_room.data_ptr()]

    def write(self, slot, room):
        ctypes.c_uint64.from_address(ctypes.addressof(self.memory[1]) + slot * ROW).value = room


class Queue:
    def __init__(self, manager):
        self.queue, self.pending_reqs, self.retracted_queue, self.kv_manager = [], [], [], manager


class Manager:
    def __init__(self, buffers):
        self.request_status = {}
        self.kv_args = types.SimpleNamespace(
            aux_data_ptrs=[ctypes.addressof(memory) for memory in buffers.memory],
            aux_data_lens=[SLOTS * ROW] * 2,
            aux_item_lens=[ROW] * 2,
        )


class Allocator:
    def __init__(self):
        import collections

        self.size, self.free_slots = SLOTS, collections.deque(range(SLOTS))


class Scheduler:
    def __init__(self, args):
        self.server_args = ServerArgs(args.role, args.size)
        self.disaggregation_mode = DisaggregationMode(args.role)
        self.attn_tp_rank, self.attn_tp_size = args.tp, args.size
        self.attn_tp_cpu_group = Group()
        self.waiting_queue = []
        self.disagg_metadata_buffers = MetadataBuffers()
        self.req_to_metadata_buffer_idx_allocator = Allocator()
        manager = Manager(self.disagg_metadata_buffers)
        if args.role == "prefill":
            self.disagg_prefill_bootstrap_queue = Queue(manager)
            self.disagg_prefill_inflight_queue = []
        else:
            self.disagg_decode_prealloc_queue = Queue(manager)
            self.disagg_decode_transfer_queue = Queue(manager)
        for room in args.rooms:
            self.enqueue(manager, room, landed=room in args.landed)
        self.first = self.second = 0

    def enqueue(self, manager, room, landed):
        manager.request_status[room] = 4 if landed else 3
        slot = self.req_to_metadata_buffer_idx_allocator.free_slots.popleft()
        if landed:
            self.disagg_metadata_buffers.write(slot, room)
        if hasattr(self, "disagg_decode_transfer_queue"):
            self.disagg_decode_transfer_queue.queue.append(DecodeRequest(room, slot))
        else:
            req = Req(room)
            req.metadata_buffer_index = slot
            self.disagg_prefill_inflight_queue.append(req)

    def event_loop_normal(self, then):
        if then == "undumpable":
            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        print("ready", flush=True)
        if then == "gil":
            ctypes.PyDLL(None).sleep(3600)
        while then == "move":
            self.first += 1
            self.second += 1
        while True:
            ctypes.CDLL(None).pause()


def publish_groups(scheduler, size):
    """Put a table of groups where torch has it."""
    module = types.ModuleType("torch.distributed.distributed_c10d")
    module._pg_group_ranks = {scheduler.attn_tp_cpu_group: {rank: rank for rank in range(size)}}
    module._pg_names = {scheduler.attn_tp_cpu_group: "4"}
    sys.modules[module.__name__] = module


def numbers(text):
    return [int(number) for number in text.split(",") if number]


def run_scheduler_process():
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", default="decode")
    parser.add_argument("--tp", type=int, default=0)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--rooms", type=numbers, default=[])
    parser.add_argument("--landed", type=numbers, default=[])
    parser.add_argument("--then", default="wait")
    args = parser.parse_args()
    scheduler = Scheduler(args)
    publish_groups(scheduler, args.size)
    os.environ["SGLANG_DISAGGREGATION_WAITING_TIMEOUT"] = "77"
    scheduler.event_loop_normal(args.then)


if __name__ == "__main__":
    run_scheduler_process()
