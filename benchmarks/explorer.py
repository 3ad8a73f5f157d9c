"""What the explorer takes: schedules and poll decisions per second, against plain Python over the same schedules.

    python -m benchmarks.explorer [--schedules 2000] [--seconds 3]

A line of JSON for each policy: all schedules of 2 ranks × 3 requests × 3 rounds (9 of pipeline stages), of which the plain
loops step a random part. ``engine``: a loop over the engine's own ``_apply_metadata_gate`` and a MIN, where this
interpreter has one; the gate and MIN alone, no commit, which only makes that loop cheaper. CPU time of this process:
what other processes take does not count. A decision is one rank's poll of one request in one round, until its ranks part.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from pdctl.explore.batches import every, sample
from pdctl.explore.kernels import Kernel
from pdctl.explore.policies import POLICIES, Policy
from pdctl.explore.rules import run as step
from pdctl.explore.search import search
from pdctl.explore.space import Model, Schedule, Space, space_of

MODEL, STAGES = Model(2, 3, 3), Model(2, 3, 9)
CPU = torch.device("cpu")


def plain(policy: Policy) -> Callable[[Schedule], bool]:
    """Return a plain loop over the transfer rule with nothing but what it takes: no records of rounds."""
    gate = policy.gate

    def parts(schedule: Schedule) -> bool:
        cells = schedule.cells
        on = list(range(schedule.requests))
        for now in range(schedule.rounds):
            polls = []
            for row in cells:
                mine = []
                for request in on:
                    first, second, flag = row[request]
                    poll = 4 if first <= now else 3
                    if poll == 4 and second > now and (gate == "expected" or (gate == "zero" and not flag)):
                        poll = 3
                    mine.append(poll)
                polls.append(mine)
            stays = []
            for place, request in enumerate(on):
                if min(mine[place] for mine in polls) < 4:
                    stays.append(request)
                    continue
                acts = set()
                for row in cells:
                    _, second, flag = row[request]
                    acts.add(1 if second <= now else 3 if flag or gate != "none" else 0)
                if len(acts) > 1:
                    return True
                if 0 in acts:
                    stays.append(request)
            on = stays
            if not on:
                return False
        return False

    return parts


def engines() -> Callable[[Schedule], bool] | None:
    """Return a loop over the engine's own gate and a MIN, None without the engine."""
    try:
        from sglang.srt.disaggregation.utils import _apply_metadata_gate
    except ImportError:
        return None
    rooms = torch.zeros((3, 8), dtype=torch.int64)
    buffers = SimpleNamespace(bootstrap_room=rooms)
    args = SimpleNamespace(disaggregation_transfer_backend="mooncake")
    reqs = [SimpleNamespace(req=SimpleNamespace(bootstrap_host="10.0.0.1"), metadata_buffer_index=n) for n in range(3)]

    def parts(schedule: Schedule) -> bool:
        on = list(range(schedule.requests))
        for now in range(schedule.rounds):
            polls = []
            for row in schedule.cells:
                for request in on:
                    _, second, flag = row[request]
                    rooms[request, 0] = 7001 if second <= now else 6001 if flag else 0
                mine = [4 if row[request].first <= now else 3 for request in on]
                _apply_metadata_gate(mine, [reqs[request] for request in on], buffers, args)
                polls.append(torch.tensor(mine, dtype=torch.uint8))
            reduced = torch.stack(polls).amin(0).tolist()
            on = [request for request, poll in zip(on, reduced, strict=True) if poll < 4]
            if not on:
                break
        return False

    return parts


def cpu(what: Callable[[], Any]) -> float:
    """Return the seconds of CPU that ``what`` takes."""
    began = time.process_time()
    what()
    return time.process_time() - began


def decisions(space: Space, seed: int = 1) -> float:
    """Return how many polls a schedule takes on average until its ranks part, from a sample."""
    kernel = Kernel(space.policy, count_polls=True)
    count = 20_000
    for numbered in sample(space, CPU, seed, count):
        kernel.run(numbered.batch)
    return kernel.polls / count


def measure(policy: Policy, schedules: int, seconds: float) -> dict[str, Any]:
    """Return the numbers of one policy."""
    space = space_of(policy, STAGES if policy.machine == "pipeline" else MODEL)
    rates = []
    spent = 0.0
    while spent < seconds or len(rates) < 3:
        took = cpu(lambda: search(space, limit_s=1e9))
        rates.append(space.size / took)
        spent += took
    per_s = statistics.median(rates)
    pick = random.Random(1)
    chosen = [space.schedule(space.digits(pick.randrange(space.size))) for _ in range(schedules)]
    line: dict[str, Any] = {
        "benchmark": "explorer",
        "policy": policy.name,
        "schedules": space.size,
        "schedules_per_s": round(per_s),
        "decisions_per_s": round(per_s * decisions(space)),
        "rule_per_s": round(schedules / cpu(lambda: [step(policy, s) for s in chosen])),
    }
    if policy.machine == "transfer":
        loop = plain(policy)
        assert [loop(s) for s in chosen] == [bool(step(policy, s).splits) for s in chosen]
        line["plain_per_s"] = round(schedules / cpu(lambda: [loop(s) for s in chosen]))
    if policy.name.startswith("gate-zero") and (own := engines()) is not None:
        few = chosen[: max(50, schedules // 10)]
        own(few[0])
        line["engine_per_s"] = round(len(few) / cpu(lambda: [own(s) for s in few]))
    return line


def sampled(schedules: int) -> dict[str, Any]:
    """Return what drawing schedules takes, of a model that is too large to try all."""
    space = space_of(POLICIES["no-gate"], Model(4, 8, 4))
    took = cpu(lambda: search(space, schedules=schedules, limit_s=1e9))
    return {"benchmark": "explorer_sampled", "schedules_per_s": round(schedules / took)}


def main(arguments: list[str] | None = None) -> int:
    """Print the results; exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--policy", action="append")
    options = parser.parse_args(arguments)
    for _ in every(space_of(POLICIES["pp-filter-old"], Model(2, 1, 1)), CPU):
        pass
    for name in options.policy or POLICIES:
        print(json.dumps(measure(POLICIES[name], options.schedules, options.seconds)), flush=True)
    print(json.dumps(sampled(20 * options.schedules)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
