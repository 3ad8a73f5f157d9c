"""What recording costs the engine's own poll: ``poll_and_all_reduce`` with the tap and without, two ranks over Gloo.

    python -m benchmarks.poll_overhead [--requests 16 256 1024] [--pairs 200] [--rounds 40] [--changing]

The pollers are the engine's own Mooncake receivers (their ``poll`` and a real ``request_status`` table), the gate is the
engine's where it has one, the collective is real. Both ranks run in lock-step; short blocks of rounds with and without
hooks alternate in one session, so that the machine's drift hits both alike. Two numbers are printed for each length:

- ``ratio``: quartiles over block pairs of wall time with / wall time without;
- ``cpu_ratio``: 1 + CPU time that the hooks add to a round of the rank's main thread / median wall time of a round
  without. ``time.thread_time`` counts time on a core only, so this one stays readable where other work takes the cores.

``--changing`` lets one request's state differ in every round, so that no round equals the one before (worst case).
Needs the engine's environment: ``make bench`` finds the one that ``make test-engine`` installs.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.statistics import quartiles

WARM_UP = 6


class Queue:
    """Stands for the engine's queue object: the list, and the method that polls it once a turn."""

    def __init__(self, utils: Any, group: Any, count: int) -> None:
        import torch
        from sglang.srt.disaggregation.base import KVPoll
        from sglang.srt.disaggregation.mooncake.conn import MooncakeKVReceiver

        self.status: dict[int, Any] = {}
        manager = SimpleNamespace(request_status=self.status, waiting_timeout=300.0)
        manager.check_status = lambda room: manager.request_status[room]
        self.queue = []
        for number in range(count):
            receiver = MooncakeKVReceiver.__new__(MooncakeKVReceiver)
            receiver.__dict__.update(
                kv_mgr=manager, bootstrap_room=number + 1, conclude_state=None, init_time=time.time()
            )
            self.status[number + 1] = KVPoll.Transferring
            request = SimpleNamespace(bootstrap_room=number + 1, rid=f"r{number}", bootstrap_host="127.0.0.1")
            self.queue.append(SimpleNamespace(req=request, kv_receiver=receiver, metadata_buffer_index=number))
        self.buffers = utils.MetadataBuffers(count, 64, torch.bfloat16)
        self._utils, self._group = utils, group
        self._states = (KVPoll.Transferring, KVPoll.WaitingForInput)
        self._turns = 0
        takes = utils.poll_and_all_reduce.__code__.co_varnames
        given = {
            "decode_reqs": self.queue,
            "metadata_buffers": self.buffers,
            "server_args": SimpleNamespace(disaggregation_transfer_backend="mooncake"),
        }
        self._given = {name: value for name, value in given.items() if name in takes}

    def turn(self) -> Any:
        """One turn as the engine does it."""
        return self._utils.poll_and_all_reduce([entry.kv_receiver for entry in self.queue], self._group, **self._given)

    def change(self) -> None:
        """Give one request another state."""
        count = len(self.queue)
        self._turns += 1
        self.status[self._turns % count + 1] = self._states[self._turns // count & 1]


class _View:
    def __init__(self, buffers: Any) -> None:
        rooms = getattr(buffers, "bootstrap_room", None)
        self._rooms = None if rooms is None else rooms.numpy()

    def describe(self, entry: Any) -> tuple[int, int]:
        return entry.req.bootstrap_room, entry.metadata_buffer_index

    def found(self, slots: Any) -> Any:
        return None if self._rooms is None else self._rooms[slots, 0]


def _measure(utils: Any, group: Any, count: int, number: int, options: argparse.Namespace) -> dict[str, Any]:
    import torch.distributed as dist

    from benchmarks.synthetic import identity
    from pdctl.agent.tap import QueueTap
    from pdctl.engines.base import Hooks, PollHooks
    from pdctl.recording.writer import RecordingWriter

    queue = Queue(utils, group, count)
    rounds = max(10, options.rounds * 16 // (count + 16))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        tap = QueueTap(
            "decode.transfer",
            _View(queue.buffers),
            RecordingWriter.create(Path(folder) / "r", identity(number)),
            lambda: 0,
        )

        def install() -> Hooks:
            hooks = Hooks()
            polls = PollHooks(hooks, lambda pg: 0)
            polls.poll_method(Queue, "turn", "transfer", lambda q: tap, lambda q: q.queue)
            polls.poll_function(utils, "poll_and_all_reduce", lambda p, *a, **k: p, lambda p, g, *a, **k: g)
            polls.gate_function(utils, "_apply_metadata_gate")
            polls.collective(utils)
            return hooks

        def block() -> tuple[float, float]:
            dist.barrier(group)
            wall, cpu = time.perf_counter(), time.thread_time()
            for _ in range(rounds):
                if options.changing:
                    queue.change()
                queue.turn()
            return (time.perf_counter() - wall) / rounds * 1e6, (time.thread_time() - cpu) / rounds * 1e6

        ratios, without, added = [], [], []
        for pair in range(options.pairs + WARM_UP):
            times = {}
            for hooked in (True, False) if pair % 2 else (False, True):
                hooks = install() if hooked else None
                times[hooked] = block()
                if hooks is not None:
                    errors = hooks.errors()
                    hooks.remove_all()
                    assert not errors, errors
            if pair >= WARM_UP:
                ratios.append(times[True][0] / times[False][0])
                without.append(times[False][0])
                added.append(times[True][1] - times[False][1])
        assert tap.visits >= rounds * options.pairs, "the hooks saw nothing"
    return {
        "benchmark": "poll_overhead",
        "requests": count,
        "changing": options.changing,
        "ratio": quartiles(ratios, 4),
        "cpu_ratio": round(1 + statistics.median(added) / statistics.median(without), 4),
        "added_cpu_us": quartiles(added),
        "without_us": quartiles(without, 1),
        "pairs": options.pairs,
        "rounds": rounds,
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
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=40, help="in a block of 16 requests; fewer with more requests")
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
