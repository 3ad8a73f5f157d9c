"""How long ``pdctl --help`` and ``pdctl diff-queues --help`` take, against a bare import of typer and rich,
and against the smallest application that uses both: a current typer loads pydantic as soon as a command has an option, which
an import alone does not show.

    python -m benchmarks.start_up [--runs 15]

Fresh processes, one of each kind in turn; CPU time of the process (user and system), which other work on the machine
blurs less than wall time does. Both are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

from benchmarks.statistics import quartiles

KINDS = {
    "import_only": ["-c", "import typer, rich"],
    "minimal_app_help": ["-m", "benchmarks.minimal_app", "--help"],
    "minimal_app_one_help": ["-m", "benchmarks.minimal_app", "one", "--help"],
    "help": ["-m", "pdctl.cli", "--help"],
    "diff_queues_help": ["-m", "pdctl.cli", "diff-queues", "--help"],
}
BASES = {
    "help": ("import_only", "minimal_app_help"),
    "diff_queues_help": ("import_only", "minimal_app_one_help"),
}


def once(arguments: list[str]) -> tuple[float, float]:
    """Return (wall, CPU) milliseconds of one fresh process."""
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return wall * 1e3, cpu * 1e3


def main(arguments: list[str] | None = None) -> int:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args(arguments)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in KINDS}
    for turn in range(options.runs + 1):
        for name, command in KINDS.items():
            took = once(command)
            if turn:  # the first of each kind also reads the disk
                times[name].append(took)
    result: dict[str, object] = {"benchmark": "start_up", "runs": options.runs}
    for name, took in times.items():
        result[f"{name}_cpu_ms"] = quartiles([cpu for _, cpu in took], 1)
    for name, bases in BASES.items():
        for bare in bases:
            for index, clock in enumerate(("wall", "cpu")):
                ratios = [a[index] / b[index] for a, b in zip(times[name], times[bare], strict=True)]
                result[f"{name}_to_{bare}_{clock}"] = quartiles(ratios)["median"]
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
