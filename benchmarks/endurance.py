"""A real pair of SGLang servers for a long time, with agent, watch, and a short fault every 20 seconds.

    python -m benchmarks.endurance [--version 0.5.13.post1] [--minutes 30] [--every 20]

One request after the other is sent, each with a prompt whose tokens are known. A fault of FAULTS holds the next request back
for a few seconds and is healed; then the request must end, with its own tokens. A line of JSON a minute: requests, those that
were lost or had other tokens, memory and descriptors of the schedulers and the watch. The last line has what grew from the
first tenth of the time to the last, and what watch told. Exit code 1 if a request was lost or had other tokens, or if a fault
could not be placed or healed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil

from tests.engine.env import ROOT, engine_env, install_pdctl, loopback_namespace
from tests.engine.harness import Pair
from tests.engine.tokens import PROMPTS, right_tokens

FAULTS = (
    ("--delay-metadata", "3s", "--rank", "decode:tp1"),
    ("--stall-transfer", "3s", "--rank", "decode:tp1"),
    ("--drop-metadata", "--rank", "decode:tp0"),
    ("--drop-status", "--rank", "decode:tp1"),
    ("--skew-poll", "200ms", "--rank", "decode:tp0"),
)
"""What holds a request back without harm on a version with the gate."""
HELD_S = 4.0


class Load:
    """Requests, one after the other, in a thread of its own. right: the tokens of each prompt."""

    def __init__(self, pair: Pair, right: list[list[int]]) -> None:
        self._pair, self._right = pair, right
        self.asked, self.wrong = 0, list[str]()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for number in cycle(range(PROMPTS)):
            if self.over.is_set():
                return
            [tokens] = self._pair.one_by_one(1, first=number)
            self.asked += 1
            if tokens != self._right[number]:
                self.wrong.append(f"request {self.asked}, prompt {number}: {tokens}")


def sizes(processes: dict[str, psutil.Process]) -> dict[str, list[float]]:
    """Return MiB of resident memory and the number of descriptors of each process."""
    found = {}
    for name, process in processes.items():
        with contextlib.suppress(psutil.NoSuchProcess):
            found[name] = [round(process.memory_info().rss / 2**20, 1), process.num_fds()]
    return found


def line(**values: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps({"benchmark": "endurance", **values}), flush=True)


def run(pair: Pair, options: argparse.Namespace, folder: Path) -> bool:
    """Load and break the pair; return whether all went well."""
    load = Load(pair, right_tokens(options.version))
    told = folder / "watch.jsonl"
    command = pair.ns.argv([sys.executable, "-m", "pdctl.cli", "watch", "--every", "1s", "-o", "jsonl"])
    with told.open("wb") as out:
        env = {**os.environ, **pair.agent_environ, "PYTHONPATH": str(ROOT)}
        watch = subprocess.Popen(command, env=env, stdout=out)
    processes = {rank.identity.label: psutil.Process(rank.identity.pid) for rank in pair.ranks()}
    processes["watch"] = psutil.Process(watch.pid)
    load.thread.start()
    seen: list[dict[str, list[float]]] = []
    faults = failed = 0
    end = time.monotonic() + 60 * options.minutes
    minute = time.monotonic()
    try:
        for fault in cycle(FAULTS):
            if time.monotonic() > end or load.wrong:
                break
            done = pair.pdctl("inject", *fault, "--hits", "1", "--for", "2m", "--detach")
            faults += 1
            failed += done.returncode != 0
            time.sleep(HELD_S)
            failed += pair.pdctl("heal", "--all").returncode != 0
            time.sleep(max(0.0, options.every - HELD_S))
            if time.monotonic() - minute > 60:
                minute = time.monotonic()
                seen.append(sizes(processes))
                line(requests=load.asked, wrong=load.wrong, faults=faults, failed=failed, sizes=seen[-1])
    finally:
        load.over.set()
        load.thread.join()
        watch.send_signal(signal.SIGINT)
        watch.wait(60)
    changes = [json.loads(one) for one in told.read_text().splitlines()]
    alarms = [one for one in changes if one.get("change") == "began"]
    part = max(1, len(seen) // 10)
    growth = {
        name: [
            round(
                statistics.median(one[name][of] for one in seen[-part:])
                - statistics.median(one[name][of] for one in seen[:part]),
                1,
            )
            for of in (0, 1)
        ]
        for name in (seen[0] if seen else {})
        if all(name in one for one in seen)
    }
    line(
        minutes=options.minutes, version=options.version, requests=load.asked, wrong=load.wrong, faults=faults, failed=failed,
        alarms=len(alarms), codes=sorted({str(one.get("code", "")) for one in alarms}), growth=growth,
    )  # fmt: skip
    return not load.wrong and not failed


def main(arguments: list[str] | None = None) -> int:
    """Print the results; exit status 0, 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="0.5.13.post1")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=20.0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pde-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        env = engine_env(options.version).with_path(install_pdctl(folder / "site"))
        namespace = stack.enter_context(loopback_namespace())
        pair = stack.enter_context(Pair.start(env, namespace, folder, wrap=env.wrap))
        return int(not run(pair, options, folder))


if __name__ == "__main__":
    sys.exit(main())
