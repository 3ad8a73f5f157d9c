"""A rank of a tiny engine: a real process with the real agent, and an adapter over real lists and a real Gloo group.

usage: python -m tests.system.targets.tiny [--rank R --size N --port P --host H] [--count K] [--then WHAT]

It prints ``ready`` when its agent is up and then does WHAT:
  loop        turns of a scheduler: a reduced poll of the transfer queue, ten a second
  collective  rank 0 waits in an all_reduce of 7 elements that no other rank joins
  sleep     sleeps in Python
  gil       sleeps in C with the GIL held, for ever
  exit      ends in good order when its standard input does
  fork      forks; the child prints ``child AGENT LISTENS`` and ends, then as ``exit``
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import os
import sys
import time
from typing import Any

from pdctl.agent.core import Agent
from pdctl.agent.sinks import Recorder
from pdctl.agent.tap import QueueTap
from pdctl.engines.base import Hooks
from pdctl.faults.table import FaultTable
from pdctl.protocol.metadata import Holder, Metadata, Wanted
from pdctl.protocol.model import Frame, GroupInfo, Identity, KVPoll, QueueEntry, Seam, SlotEntry
from pdctl.protocol.requests import RoomEntry, Rooms, RoomTable, Settings, Space


class TinyAdapter:
    """Reads the lists of a :class:`Tiny`."""

    def __init__(self, rank: int, size: int, count: int, group: Any) -> None:
        self.hooks = Hooks()
        self.rank, self.size, self.group = rank, size, group
        self.requests = [(1000 + i, f"rid-{i}", i) for i in range(count)]
        self.tap: QueueTap | None = None
        self.turns = (0, 0)

    def identity(self) -> Identity:
        world = os.environ.get("TINY_WORLD", "tiny")
        ranks = tuple(range(self.size))
        return Identity(
            engine="tiny",
            engine_version="1",
            pdctl_version="",
            role=os.environ.get("TINY_ROLE", "decode"),
            host=os.environ.get("TINY_HOST", "localhost"),
            pid=0,
            proc_start=0,
            started_wall_ns=int(os.environ.get("TINY_STARTED", "0")),
            started_mono_ns=0,
            instance=os.environ.get("TINY_INSTANCE", "one"),
            service=os.environ.get("TINY_SERVICE", "tiny"),
            cluster="",
            world=world,
            world_rank=self.rank,
            tp=self.rank,
            tp_size=self.size,
            groups=(GroupInfo("attn-tp", ranks, world),),
        )

    def install(self, recorder: Recorder, faults: FaultTable) -> None:
        if os.environ.get("TINY_BREAK_INSTALL"):
            raise RuntimeError("no seam here")
        self.tap = QueueTap("decode.transfer", self, recorder, lambda: 0)

    def describe(self, entry: Any) -> tuple[int, int]:
        return entry[0], entry[2]

    def found(self, slots: Any) -> list[int]:
        return [1000 + slot for slot in slots]

    def seams(self) -> tuple[Seam, ...]:
        return (Seam("poll.decode.transfer", True, "tiny.turn"), Seam("gate", False, "tiny has none"))

    def ticks(self) -> tuple[int, int]:
        return self.turns

    def ordinals(self) -> dict[str, int]:
        return {"decode.transfer/attn-tp": self.tap.ordinals().get(0, -1)} if self.tap else {}

    def queues(self) -> tuple[dict[str, list[QueueEntry]], dict[str, str]]:
        return {"decode.transfer": [QueueEntry(*r, KVPoll.TRANSFERRING, 1.0) for r in self.requests]}, {}

    def slots(self) -> list[SlotEntry]:
        return [SlotEntry(slot, room, room) for room, _, slot in self.requests]

    def rooms(self) -> Rooms:
        rooms = [RoomEntry("decode.transfer", room, rid, slot) for room, rid, slot in self.requests]
        return Rooms(time.monotonic_ns(), self.turns[0], RoomTable.of(rooms), (), Space(), {}, {}, {})

    def settings(self) -> Settings:
        return Settings({}, {})

    def metadata(self, wanted: Wanted) -> Metadata:
        del wanted
        held = [Holder(room, rid, slot, "decode.transfer", KVPoll.TRANSFERRING) for room, rid, slot in self.requests]
        return Metadata(time.monotonic_ns(), self.turns[0], "", (), "", "", None, None, 0, held, [], not_read="no rows")

    def threads(self) -> tuple[()]:
        return ()

    def step_of(self, stack: tuple[Frame, ...]) -> str:
        return "poll of decode.transfer" if any(frame.function == "turn" for frame in stack) else ""

    def group_kind(self, group: Any) -> str:
        return "attn-tp" if self.group is not None and group is self.group else ""

    def turn(self, tensor: Any) -> None:
        """One turn of the scheduler: every rank polls, the polls are reduced."""
        import torch.distributed as dist

        tap = self.tap
        assert tap is not None
        self.turns = (self.turns[0] + 1, time.monotonic_ns())
        tap.visit(self.requests)
        tap.polled(self.requests)
        tap.entering(0, tensor.numpy().tobytes(), 1)
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=self.group)
        tap.left(0, tensor.numpy().tobytes(), 1)
        tap.leave(self.requests)


def _group(rank: int, size: int, port: int, host: str) -> Any:
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{host}:{port}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(minutes=5),
    )
    return dist.new_group(list(range(size)), backend="gloo")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("rank", 0), ("size", 1), ("port", 0), ("count", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--then", default="exit")
    parser.add_argument("--host", default="127.0.0.1")
    args = parser.parse_args()
    group = _group(args.rank, args.size, args.port, args.host) if args.port else None
    adapter = TinyAdapter(args.rank, args.size, args.count, group)
    agent = Agent.start(adapter, loaded_by="test")
    print("ready", agent.start_line() if agent else "without an agent", flush=True)
    if args.then in ("loop", "collective"):
        import torch

        tensor = torch.full((args.count,), int(KVPoll.TRANSFERRING), dtype=torch.uint8)
        while args.then == "loop":
            adapter.turn(tensor)
            time.sleep(0.1)
        if args.rank == 0:
            adapter.turn(tensor)
    if args.then == "gil":
        ctypes.PyDLL(None).sleep(1_000_000)
    if args.then == "fork":
        child = os.fork()
        if child == 0:
            print("child", Agent.current, Agent.start is not None, flush=True)
            sys.exit(0)
        os.waitpid(child, 0)
    if args.then in ("exit", "fork"):
        sys.stdin.read()
        return
    time.sleep(1_000_000)


if __name__ == "__main__":
    main()
