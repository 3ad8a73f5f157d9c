"""What an agent adds to a rank: memory, CPU while idle, and how long an answer keeps the GIL.

    python -m benchmarks.agent [--runs 5] [--seconds 20]

Every number comes from fresh processes (benchmarks/agent_rank.py), with the agent and without in turn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median
from typing import Any


def child(*arguments: str) -> dict[str, Any]:
    """Return what one fresh process measured. Raises CalledProcessError with its stderr shown."""
    command = [sys.executable, "-m", "benchmarks.agent_rank", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def memory(runs: int) -> dict[str, Any]:
    """Return MiB that the agent adds, medians over ``runs`` pairs of processes."""
    pairs = [(child("memory", "--agent"), child("memory")) for _ in range(runs)]
    added = {kind: round(median(w[kind] - o[kind] for w, o in pairs), 2) for kind in ("rss", "private_dirty")}
    inside = round(median(w["rss"] - w["before"]["rss"] for w, _ in pairs), 2)
    return {
        "benchmark": "agent_memory",
        "rss_added_mib": added["rss"],
        "rss_added_in_one_process_mib": inside,
        "private_dirty_added_mib": added["private_dirty"],
        "pss_with_mib": median(w["pss"] for w, _ in pairs),
        "pss_without_mib": median(o["pss"] for _, o in pairs),
        "runs": runs,
    }


def idle(seconds: float) -> dict[str, Any]:
    """Return the share of a core an idle process takes, with the agent and without."""
    with_agent = child("idle", "--agent", "--seconds", str(seconds))
    without = child("idle", "--seconds", str(seconds))
    share = with_agent["share"] - without["share"]
    return {"benchmark": "agent_idle", "share_of_a_core": round(share, 6), "seconds": with_agent["seconds"]}


def snapshot(requests: int) -> dict[str, Any]:
    """Return what a snapshot of ``requests`` queued requests costs, in ms."""
    return {"benchmark": "agent_snapshot", "requests": requests, **child("snapshot", "--requests", str(requests))}


def main(arguments: list[str] | None = None) -> int:
    """Print one JSON line for each number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args(arguments)
    print(json.dumps(memory(options.runs)), flush=True)
    print(json.dumps(idle(options.seconds)), flush=True)
    print(json.dumps(snapshot(1000)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
