"""One question to many ranks at once: what it takes with 512 real agents, each in a process and on a socket of its own.

    python -m benchmarks.fan_out [--ranks 512] [--requests 100] [--times 5]
    python -m benchmarks.fan_out --whole [--sizes 16,64,256,512] [--times 3]

A line of JSON for each number of ranks and each question: wall milliseconds and milliseconds of CPU of the client until every
rank has answered, and what a rank costs. The agents are idle, on the machine of the client: its share of the
time is an upper bound. ``--whole``: whole commands over TCP, with full recordings (:mod:`benchmarks.fan_out_whole`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.agent_rank import adapter, scheduler
from pdctl.agent import core
from pdctl.protocol.model import Snapshot, Status
from pdctl.protocol.rank import FoundRank
from pdctl.targets.client import Client
from pdctl.targets.find import discover
from pdctl.targets.places import parse_places


def be_rank(engine: Any, number: int, size: int) -> None:
    """Be one rank for ever: an agent, and a main thread that waits."""
    made = adapter(engine)
    identity = made.identity()
    who = msgspec.structs.replace(
        identity, tp=number, tp_size=size, world_rank=number, instance="bench", service="bench"
    )
    made.identity = lambda: who
    made.settings = made.rooms = made.metadata = lambda *_: None
    core.Agent.start(made, loaded_by="benchmark")
    while True:
        signal.pause()


def asked(client: Client, ranks: list[FoundRank], op: str, kind: type[Any]) -> tuple[float, float]:
    """Return (wall ms, CPU ms) of one question to all of these ranks, which all answer."""
    wall, cpu = time.perf_counter(), time.process_time()
    answers = client.ask(ranks, op, kind)
    took = (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000
    if silent := [answer.reason for answer in answers if answer.body is None]:
        raise SystemExit(f"{len(silent)} of {len(ranks)} ranks give no answer to {op}: {silent[0]}")
    return took


def measure(ranks: list[FoundRank], times: int) -> None:
    """Print a line for each question."""
    for op, kind in (("status", Status), ("queues", Snapshot)):
        with Client(timeout_s=60, rank_timeout_s=60) as client:
            first = asked(client, ranks, op, kind)  # makes the connections
            seen = [asked(client, ranks, op, kind) for _ in range(times)]
        line = {
            "benchmark": "fan_out", "op": op, "ranks": len(ranks),
            "first_wall_ms": round(first[0], 1), "wall_ms": round(statistics.median(w for w, _ in seen), 1),
            "cpu_ms": round(statistics.median(c for _, c in seen), 1),
        }  # fmt: skip
        line["cpu_ms_a_rank"] = round(line["cpu_ms"] / len(ranks), 3)
        print(json.dumps(line))


def main(arguments: list[str] | None = None) -> int:
    """Print the results; exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--whole", action="store_true", help="whole commands: they need 16 MiB of disk a rank")
    parser.add_argument("--sizes", default="16,64,256,512", help="numbers of ranks for --whole")
    options = parser.parse_args(arguments)
    if options.whole:
        from benchmarks import fan_out_whole

        fan_out_whole.main([int(size) for size in options.sizes.split(",")], options.times)
        return 0
    with tempfile.TemporaryDirectory(prefix="pdf-") as name:
        os.environ.update(PDCTL_RUN_DIR=f"{name}/run", PDCTL_RECORD="off")
        engine = scheduler(options.requests)
        children = []
        try:
            for number in range(options.ranks):
                child = os.fork()
                if child == 0:
                    be_rank(engine, number, options.ranks)
                children.append(child)
            end = time.monotonic() + 120
            while len(list(Path(name).glob("run/*.json"))) < options.ranks and time.monotonic() < end:
                time.sleep(0.2)
            found = [rank for rank in discover(parse_places(os.environ)).ranks if rank.live]
            for some in sorted({min(8, options.ranks), min(64, options.ranks), options.ranks}):
                measure(found[:some], options.times)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
