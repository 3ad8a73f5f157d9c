"""What the agent and ``pdctl watch`` cost a real pair of SGLang servers under load, side by side in one run.

    python -m benchmarks.engine_cost [--version 0.5.13.post1] [--rounds 6] [--seconds 20] [--beside 4]

Two pairs of servers are started, one without pdctl and one with its agent. In each round every way has ``--seconds`` of load,
in an order that changes from round to round: without, with the agent, with the agent and a watch that looks once a second. The
pair that is not asked is stopped meanwhile, so that it takes no time. A JSON line for each slice; then one a way: requests a
second and latencies (median over rounds), and their ratios to the way without.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.engine.env import ROOT, engine_env, install_pdctl, loopback_namespace
from tests.engine.harness import Pair

WITHOUT, AGENT, WATCH = "without", "agent", "agent and watch"


def processes(pair: Pair) -> list[psutil.Process]:
    """Return all processes of both servers."""
    roots = [psutil.Process(server.process.pid) for server in pair.servers]
    return [one for root in roots for one in (root, *root.children(recursive=True))]


@contextlib.contextmanager
def alone(stopped: Pair) -> Iterator[None]:
    """Stop a pair while another one works."""
    held = processes(stopped)
    for process in held:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in held:
            process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def watched(pair: Pair) -> Iterator[None]:
    """Have ``pdctl watch`` look at the pair once a second."""
    command = pair.ns.argv([sys.executable, "-m", "pdctl.cli", "watch", "--every", "1s", "-o", "jsonl"])
    env = {**os.environ, **pair.agent_environ, "PYTHONPATH": str(ROOT)}
    watch = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    try:
        time.sleep(2)
        yield
    finally:
        watch.send_signal(signal.SIGINT)
        watch.wait(60)


def loaded(pair: Pair, seconds: float, beside: int, tokens: int) -> list[float]:
    """Keep ``beside`` requests in the pair for so long. Return the seconds of each that was answered; all must be."""
    took: list[float] = []
    failed: list[str] = []
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        while time.monotonic() < end:
            began = time.monotonic()
            [outcome] = [wait() for wait in pair.begin(1, tokens=tokens, first_prompt=number)]
            took.append(time.monotonic() - began)
            if outcome.tokens is None:
                failed.append(outcome.error)

    clients = [threading.Thread(target=client, args=(number,)) for number in range(beside)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    return took


def line(**values: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps({"benchmark": "engine_cost", **values}), flush=True)


def measure(plain: Pair, armed: Pair, options: argparse.Namespace) -> None:
    """Load both pairs by turns, and print what came out."""
    rates: dict[str, list[float]] = {WITHOUT: [], AGENT: [], WATCH: []}
    latencies: dict[str, list[float]] = {way: [] for way in rates}
    for pair, other in ((plain, armed), (armed, plain)):
        with alone(other):
            loaded(pair, options.seconds / 2, options.beside, options.tokens)  # what is slow the first time
    for number in range(options.rounds):
        for way in random.Random(number).sample(list(rates), len(rates)):
            pair, other = (plain, armed) if way == WITHOUT else (armed, plain)
            with alone(other), watched(pair) if way == WATCH else contextlib.nullcontext():
                began = time.monotonic()
                took = loaded(pair, options.seconds, options.beside, options.tokens)
                rate = len(took) / (time.monotonic() - began)
            rates[way].append(rate)
            latencies[way] += took
            line(round=number, way=way, requests=len(took), per_s=round(rate, 2), load=round(os.getloadavg()[0], 1))
    for way, seen in rates.items():
        of_each = [mine / base for mine, base in zip(seen, rates[WITHOUT], strict=True)]
        cuts, base = (statistics.quantiles(latencies[one], n=100) for one in (way, WITHOUT))
        line(
            way=way, version=options.version, rounds=options.rounds, requests=len(latencies[way]),
            per_s=round(statistics.median(seen), 2), per_s_ratio=round(statistics.median(of_each), 3),
            ratios=[round(one, 3) for one in sorted(of_each)],
            p50_ms=round(cuts[49] * 1000), p99_ms=round(cuts[98] * 1000),
            p50_ratio=round(cuts[49] / base[49], 3), p99_ratio=round(cuts[98] / base[98], 3),
        )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print the results; exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="0.5.13.post1")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--beside", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pdc-") as folder, contextlib.ExitStack() as stack:
        env = engine_env(options.version).with_path(install_pdctl(Path(folder) / "site"))
        pairs = []
        for name, environ in (("plain", {"PDCTL_AGENT": "off"}), ("armed", {})):
            place = Path(folder) / name
            place.mkdir()
            namespace = stack.enter_context(loopback_namespace())
            pairs.append(stack.enter_context(Pair.start(env, namespace, place, wrap=env.wrap, environ=environ)))
        if pairs[0].ranks() or not pairs[1].ranks():
            raise RuntimeError("the pair without agents has some, or the other has none")
        measure(*pairs, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
