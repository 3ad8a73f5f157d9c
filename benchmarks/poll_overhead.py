"""What recording costs the engine's own poll: ``poll_and_all_reduce`` with the tap and without, two ranks over Gloo.

    python -m benchmarks.poll_overhead [--requests 16 256 1024] [--chunks 30] [--pairs 50] [--changing]

The pollers are the engine's own Mooncake receivers (their ``poll`` and a real ``request_status`` table), the gate is the
engine's where it has one, the collective is real. The engine's module is loaded twice, once with hooks and once without,
and every round of the one is followed by a round of the other, in both orders in turn: so both meet the same machine, and
neither is measured in a loop that keeps its code warm. Both ranks run in lock-step. Rounds are taken in chunks, each with a
median for either side; printed are, for each length:

- ``ratio``: quartiles over chunks of wall time of a round with / without;
- ``cpu_ratio``: 1 + CPU time that the hooks add to a round of the rank's main thread / wall time of a round without.
  ``time.thread_time`` counts time on a core only, so this one stays readable where other work takes the cores.

``--changing`` lets one request's state differ in every round, so that no round equals the one before (worst case).
``--sites`` compares a recorded poll on an armed rank, whose fault sites have nothing to do, with one on a rank that is not.
``--twin`` measures the engine's poll against itself, without any hooks: how far from 1 this machine gets by itself.
Needs the engine's environment: ``make bench`` finds the one that ``make test-engine`` installs.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.statistics import quartiles
from benchmarks.synthetic import identity
from pdctl.agent.tap import QueueTap
from pdctl.engines.base import Hooks
from pdctl.engines.polls import PollHooks
from pdctl.engines.sglang import seams
from pdctl.engines.sites import PollSites
from pdctl.faults.table import FaultTable
from pdctl.recording.writer import RecordingWriter

WARM_UP = 4


class Queue:
    """Stands for the engine's queue object: the list, and the method that polls it once a turn."""

    def __init__(self, utils: Any, group: Any, queue: list[Any], buffers: Any) -> None:
        self.queue = queue
        self._utils, self._group = utils, group
        takes = utils.poll_and_all_reduce.__code__.co_varnames
        given = {
            "decode_reqs": queue,
            "metadata_buffers": buffers,
            "server_args": SimpleNamespace(disaggregation_transfer_backend="mooncake"),
        }
        self._given = {name: value for name, value in given.items() if name in takes}

    def turn(self) -> Any:
        """One turn as the engine does it."""
        return self._utils.poll_and_all_reduce([entry.kv_receiver for entry in self.queue], self._group, **self._given)


class Hooked(Queue):
    """The one whose polls are recorded."""


class Unarmed(Queue):
    """Recorded as well, without fault sites."""


def _entries(count: int) -> tuple[list[Any], dict[int, Any]]:
    """Return what is queued, and the status of each room."""
    from sglang.srt.disaggregation.base import KVPoll
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVReceiver

    status: dict[int, Any] = {}
    manager = SimpleNamespace(request_status=status, waiting_timeout=300.0)
    manager.check_status = lambda room: manager.request_status[room]
    queue = []
    for number in range(count):
        receiver = MooncakeKVReceiver.__new__(MooncakeKVReceiver)
        receiver.__dict__.update(kv_mgr=manager, bootstrap_room=number + 1, conclude_state=None, init_time=time.time())
        status[number + 1] = KVPoll.Transferring
        request = SimpleNamespace(bootstrap_room=number + 1, rid=f"r{number}", bootstrap_host="127.0.0.1")
        queue.append(SimpleNamespace(req=request, kv_receiver=receiver, metadata_buffer_index=number))
    return queue, status


def _changes(status: dict[int, Any]) -> Iterator[None]:
    """Give one request after the other another state, one a step."""
    from sglang.srt.disaggregation.base import KVPoll

    for state in itertools.cycle((KVPoll.WaitingForInput, KVPoll.Transferring)):
        for room in status:
            status[room] = state
            yield


def _copy_of(module: Any) -> Any:
    """Return the engine's module once more, for hooks of its own."""
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_hooked", module.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


class _View:
    def __init__(self, buffers: Any) -> None:
        rooms = getattr(buffers, "bootstrap_room", None)
        self._rooms = None if rooms is None else rooms.numpy()

    def describe(self, entry: Any) -> tuple[int, int]:
        return entry.req.bootstrap_room, entry.metadata_buffer_index

    def found(self, slots: Any) -> Any:
        return None if self._rooms is None else self._rooms[slots, 0]


def _hook(owner: type[Queue], utils: Any, tap: QueueTap, *, armed: bool = False) -> Hooks:
    hooks = Hooks()
    polls = PollHooks(hooks, lambda pg: 0, PollSites(FaultTable(armed=True)) if armed else None)
    polls.poll_method(owner, "turn", "transfer", tap, attrgetter("queue"))
    polls.poll_function(utils, "poll_and_all_reduce", *seams.POLL_FUNCTIONS["poll_and_all_reduce"])
    polls.gate_function(utils, seams.GATE, lambda *held: None)
    polls.collective(utils)
    return hooks


def _once(turn: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.thread_time()
    turn()
    return (time.perf_counter() - wall) * 1e6, (time.thread_time() - cpu) * 1e6


def _measure(utils: Any, group: Any, count: int, number: int, options: argparse.Namespace) -> dict[str, Any]:
    import torch

    entries, status = _entries(count)
    changes = _changes(status)
    buffers = utils.MetadataBuffers(count, 64, torch.bfloat16)
    copy = _copy_of(utils)
    ratios, without, added = [], [], []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        taps = [
            QueueTap(
                "decode.transfer",
                _View(buffers),
                RecordingWriter.create(Path(folder) / name, identity(number)),
                lambda: 0,
            )
            for name in ("hooked", "unarmed")
        ]
        tap = taps[0]
        hooks = Hooks() if options.twin else _hook(Hooked, copy, tap, armed=options.sites)
        base: tuple[type[Queue], Any] = (Queue, utils)
        if options.sites:
            base = (Unarmed, _copy_of(utils))
            _hook(*base, taps[1])
        plain, hooked = (kind(module, group, entries, buffers) for kind, module in (base, (Hooked, copy)))
        for chunk in range(options.chunks + WARM_UP):
            took: dict[Queue, list[tuple[float, float]]] = {plain: [], hooked: []}
            for pair in range(options.pairs):
                if options.changing:
                    next(changes)
                for queue in (plain, hooked) if pair % 2 else (hooked, plain):
                    took[queue].append(_once(queue.turn))
            if chunk >= WARM_UP:
                [wall, cpu], [wall_with, cpu_with] = (
                    map(statistics.median, zip(*took[q], strict=True)) for q in (plain, hooked)
                )
                ratios.append(wall_with / wall)
                without.append(wall)
                added.append(cpu_with - cpu)
        assert not hooks.errors(), hooks.errors()
        assert options.twin or tap.visits >= options.chunks * options.pairs, "the hooks saw nothing"
    return {
        "benchmark": "poll_overhead",
        "requests": count,
        "changing": options.changing,
        "twin": options.twin,
        "sites": options.sites,
        "ratio": quartiles(ratios, 4),
        "cpu_ratio": round(1 + statistics.median(added) / statistics.median(without), 4),
        "added_cpu_us": quartiles(added),
        "without_us": quartiles(without, 1),
        "chunks": options.chunks,
        "pairs": options.pairs,
    }


def rank(number: int, options: argparse.Namespace) -> None:
    """Run one of the two ranks; rank 0 prints the results as JSON lines."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{options.port}", rank=number, world_size=2)
    from sglang.srt.disaggregation import utils

    group = dist.new_group([0, 1], backend="gloo")
    for count in options.requests:
        result = _measure(utils, group, count, number, options)
        if number == 0:
            print(json.dumps(result), flush=True)
    dist.barrier(group)
    os._exit(0)  # the engine's threads would keep the process


def main(arguments: list[str] | None = None) -> int:
    """Start both ranks and wait for them; 0 when both ended well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[16, 256, 1024])
    parser.add_argument("--chunks", type=int, default=30)
    parser.add_argument("--pairs", type=int, default=50, help="of rounds, in a chunk")
    parser.add_argument("--sites", action="store_true", help="what the fault sites of an armed rank cost")
    parser.add_argument("--twin", action="store_true", help="the engine's poll against itself")
    parser.add_argument("--changing", action="store_true")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    if options.rank >= 0:
        rank(options.rank, options)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.poll_overhead", *given, "--port", str(port), "--rank"]
    children = [subprocess.Popen([*command, str(number)]) for number in (0, 1)]
    return max(abs(child.wait()) for child in children)


if __name__ == "__main__":
    sys.exit(main())
