"""What recording costs the engine's own poll: ``poll_and_all_reduce`` with the tap and without, two ranks over Gloo.

Both ranks run in lock-step; blocks of rounds with and without hooks alternate in one session, so that the machine's drift
hits both alike. The pollers are the engine's own Mooncake receivers (their ``poll`` and a real ``request_status`` table),
the gate is the engine's, the collective is real. Printed: median over block pairs of time with / time without.

    python -m benchmarks.poll_overhead --requests 16 256 1024 --pairs 60 [--changing]

``--changing`` lets one request's state differ in every round, so that no round equals the one before (worst case).
Needs the engine's environment (``make test-engine`` makes it).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def _requests(utils: Any, count: int) -> tuple[list[Any], Any, Any, Any]:
    import torch
    from sglang.srt.disaggregation.base import KVPoll
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVReceiver

    manager = SimpleNamespace(request_status={}, waiting_timeout=300.0)
    manager.check_status = lambda room: manager.request_status[room]
    entries = []
    for number in range(count):
        receiver = MooncakeKVReceiver.__new__(MooncakeKVReceiver)
        receiver.__dict__.update(kv_mgr=manager, bootstrap_room=number + 1, conclude_state=None, init_time=time.time())
        manager.request_status[number + 1] = KVPoll.Transferring
        request = SimpleNamespace(bootstrap_room=number + 1, rid=f"r{number}", bootstrap_host="127.0.0.1")
        entries.append(SimpleNamespace(req=request, kv_receiver=receiver, metadata_buffer_index=number))
    buffers = utils.MetadataBuffers(count, 64, torch.bfloat16)
    arguments = SimpleNamespace(disaggregation_transfer_backend="mooncake")
    return entries, manager, buffers, arguments


class _Queue:
    """Stands for the engine's queue object: the list, and the method that polls it once a turn."""

    def __init__(self, utils: Any, entries: list[Any], group: Any, buffers: Any, arguments: Any) -> None:
        self.queue, self._u, self._g, self._b, self._a = entries, utils, group, buffers, arguments

    def turn(self) -> list[int]:
        """One turn as the engine does it."""
        extra = {"server_args": self._a} if "server_args" in self._u.poll_and_all_reduce.__code__.co_varnames else {}
        return self._u.poll_and_all_reduce(
            [entry.kv_receiver for entry in self.queue], self._g, decode_reqs=self.queue, metadata_buffers=self._b, **extra
        )


class _View:
    def __init__(self, buffers: Any) -> None:
        self._rooms = buffers.bootstrap_room.numpy()

    def describe(self, entry: Any) -> tuple[int, int]:
        return entry.req.bootstrap_room, entry.metadata_buffer_index

    def found(self, slots: Any) -> Any:
        return self._rooms[slots, 0]


def rank(number: int, port: int, options: argparse.Namespace) -> None:
    """Run one of the two ranks; rank 0 prints the results as JSON lines."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    import sglang.srt.disaggregation.utils as utils
    from sglang.srt.disaggregation.base import KVPoll

    import msgspec
    from pdctl.agent.tap import QueueTap
    from pdctl.engines.base import Hooks, PollHooks
    from pdctl.model import GroupInfo, Identity
    from pdctl.recording.writer import RecordingWriter

    group = dist.new_group([0, 1], backend="gloo")
    identity = Identity(
        engine="sglang", engine_version="", pdctl_version="", role="decode", host="", pid=os.getpid(), proc_start=0,
        started_wall_ns=0, started_mono_ns=0, instance="", service="", cluster="", world="w", world_rank=number,
        groups=(GroupInfo("attn-tp", (0, 1), "w"),),
    )
    for count in options.requests:
        entries, manager, buffers, arguments = _requests(utils, count)
        plain = _Queue(utils, entries, group, buffers, arguments)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            writer = RecordingWriter.create(Path(folder) / "r", msgspec.json.encode(identity))
            tap = QueueTap("decode.transfer", _View(buffers), writer, lambda: 0)

            def install() -> Hooks:
                hooks = Hooks()
                polls = PollHooks(hooks, lambda pg: 0)
                polls.poll_method(_Queue, "turn", "transfer", lambda q: tap, lambda q: q.queue)
                polls.poll_function(utils, "poll_and_all_reduce", lambda p, *a, **k: p, lambda p, g, *a, **k: g)
                polls.gate_function(utils, "_apply_metadata_gate")
                polls.collective(utils)
                return hooks

            states = (KVPoll.Transferring, KVPoll.WaitingForInput)
            turns = 0

            def block(rounds: int) -> float:
                nonlocal turns
                start = time.perf_counter()
                for _ in range(rounds):
                    if options.changing:
                        turns += 1
                        manager.request_status[turns % count + 1] = states[turns // count & 1]
                    plain.turn()
                return time.perf_counter() - start

            rounds = max(20, options.rounds * 16 // (count + 16))
            ratios, without = [], []
            for pair in range(options.pairs + 3):
                times = {}
                for hooked in (True, False) if pair % 2 else (False, True):
                    hooks = install() if hooked else None
                    dist.barrier(group)
                    times[hooked] = block(rounds)
                    if hooks is not None:
                        hooks.remove_all()
                if pair >= 3:
                    ratios.append(times[True] / times[False])
                    without.append(times[False] / rounds)
            if number == 0:
                quarter = statistics.quantiles(ratios, n=4)
                print(json.dumps({
                    "benchmark": "poll_overhead", "requests": count, "changing": options.changing,
                    "ratio": round(statistics.median(ratios), 4), "quartiles": [round(q, 4) for q in quarter],
                    "without_us": round(statistics.median(without) * 1e6, 1), "pairs": len(ratios), "rounds": rounds,
                }), flush=True)
    dist.barrier(group)
    os._exit(0)


def main() -> None:
    """Start both ranks and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[16, 256, 1024])
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--changing", action="store_true")
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.rank >= 0:
        rank(options.rank, options.port, options)
        return
    import socket
    import subprocess

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.poll_overhead", *sys.argv[1:], "--rank", str(n), "--port", str(port)])
        for n in (0, 1)
    ]
    sys.exit(max(child.wait() for child in children))


if __name__ == "__main__":
    main()
