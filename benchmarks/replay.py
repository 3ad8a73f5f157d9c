"""What a replayed round costs on top of its collective: a replay, and bare Gloo reductions of as many polls, in turn.

    python -m benchmarks.replay [--rounds 10000] [--requests 64] [--times 3]

Two ranks, a process each. In the replay one request is committed and one arrives every hundred rounds. A line of JSON:
seconds of both (medians) and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pdctl.protocol.model import Action, KVPoll
from pdctl.replay.plan import HAS_ROWS, Plan, RankPlan, Request, Step
from pdctl.replay.run import Workers
from pdctl.replay.worker_log import Options

EVERY = 100
"""Rounds after which a request is committed and another arrives."""


def plan(rounds: int, requests: int) -> Plan:
    """Return a plan of that many rounds with that many requests in the queue at any time."""
    waiting, success, committed = int(KVPoll.WAITING_FOR_INPUT), int(KVPoll.SUCCESS), int(Action.COMMITTED)
    steps = {0: Step(arrive=list(range(requests)), polls=[(r, waiting) for r in range(requests)])}
    every = range(EVERY, rounds, EVERY)
    for number, at in enumerate(every):
        steps[at] = Step(polls=[(number, success)], rows=[(number, 1000 + number)], acts=[(number, committed)])
        steps[at + 1] = Step(arrive=[requests + number], polls=[(requests + number, waiting)])
    count = requests + len(every)
    ranks = tuple(RankPlan(f"decode dp0 pp0 tp{tp}", f"tp{tp}", True, steps) for tp in range(2))
    those = tuple(Request(1000 + number, (number, number)) for number in range(count))
    return Plan(HAS_ROWS, "bench", "uint8", those, ranks, tuple(range(rounds)), 0, slots=count)


def replayed(made: Plan) -> float:
    """Return the seconds that the slower rank took for its rounds."""
    with Workers() as workers:
        left = workers.execute(made, Options(gate=True))
    ends = [line for work in left for line in work.lines if line.what == "end"]
    assert len(ends) == 2, left
    committed = [sum(len(line.left) for line in work.lines) for work in left]
    assert committed == [sum(len(step.acts) for step in made.ranks[0].steps.values())] * 2, "it did what it was to do"
    return max(line.seconds for line in ends)


def bare(rounds: int, requests: int) -> float:
    """Return the seconds that the slower rank took for as many reductions alone."""
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "benchmarks.replay", "--rounds", str(rounds), "--requests", str(requests)]
        ranks = [
            subprocess.Popen([*words, "--bare", folder, str(rank)], env=env, stdout=subprocess.PIPE, text=True)
            for rank in range(2)
        ]
        return max(float(rank.communicate()[0]) for rank in ranks)


def bare_rank(folder: Path, rank: int, rounds: int, requests: int) -> None:
    """Reduce, and print how long it took."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    tensor = torch.full((requests,), 2, dtype=torch.uint8)
    dist.barrier()
    started = time.perf_counter()
    for _ in range(rounds):
        dist.all_reduce(tensor, dist.ReduceOp.MIN)
    print(time.perf_counter() - started)


def main(arguments: list[str] | None = None) -> int:
    """Print the result; exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--bare", nargs=2, metavar=("FOLDER", "RANK"))
    options = parser.parse_args(arguments)
    if options.bare:
        bare_rank(Path(options.bare[0]), int(options.bare[1]), options.rounds, options.requests)
        return 0
    made = plan(options.rounds, options.requests)
    pairs = [(replayed(made), bare(options.rounds, options.requests)) for _ in range(options.times)]
    replay_s, bare_s = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    line = {
        "benchmark": "replay", "rounds": options.rounds, "ranks": 2, "requests": options.requests,
        "replay_s": round(replay_s, 3), "bare_s": round(bare_s, 3), "ratio": round(ratio, 2),
    }  # fmt: skip
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
