"""What one recorded turn costs a rank's main thread, in CPU time, in a single process.

    python -m benchmarks.turn_cost [--requests 16 256 1024] [--blocks 200] [--changing | --reductions]

The hooks and the tap are the real ones, around a function of the engine's shape whose collective does nothing: what is
left between a block of turns with hooks and one without is pdctl's own work. ``--reductions``: the same of flags that ranks
agree on beside the polls, as of transfers that failed. ``time.thread_time`` counts only time on a
core, so a noisy machine blurs it far less than it blurs a ratio of wall-clock times. Printed: quartiles over block pairs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from benchmarks.statistics import quartiles
from benchmarks.synthetic import identity
from pdctl.agent.tap import QueueTap
from pdctl.engines.base import Hooks
from pdctl.engines.polls import PollHooks
from pdctl.protocol.model import KVPoll

TURNS = 4000
WARM_UP = 4


class _Poller:
    __slots__ = ("state",)

    def poll(self) -> int:
        return self.state


class _View:
    def describe(self, entry: Any) -> tuple[int, int]:
        return entry.room, entry.slot

    def found(self, slots: Any) -> list[int]:
        return [0 for _ in slots]


def _engine() -> Any:
    """A module of the shape of ``sglang.srt.disaggregation.utils``: poll, gate, reduce; the collective is no work."""
    import torch

    engine: Any = ModuleType("engine")
    engine.dist = SimpleNamespace(all_reduce=lambda tensor, op=None, group=None, async_op=False: None)

    def gate(polls: list[int], entries: Any) -> None:
        pass

    def poll_and_all_reduce(pollers: list[Any], group: Any, entries: Any) -> list[int]:
        polls = [int(poller.poll()) for poller in pollers]
        engine.gate(polls, entries)
        tensor = torch.tensor(polls, dtype=torch.uint8, device="cpu")
        engine.dist.all_reduce(tensor, op=None, group=group)
        result: list[int] = tensor.tolist()
        return result

    def agree(entries: Any, group: Any) -> list[int]:
        tensor = torch.tensor([1] * len(entries), dtype=torch.int32, device="cpu")
        engine.dist.all_reduce(tensor, op=None, group=group)
        result: list[int] = tensor.tolist()
        return result

    engine.gate, engine.poll_and_all_reduce, engine.agree = gate, poll_and_all_reduce, agree
    return engine


class Queue:
    """The engine's queue object: a list, and the method that polls it once a turn."""

    def __init__(self, engine: Any, count: int) -> None:
        self.engine = engine
        self.queue = [SimpleNamespace(room=n + 1, slot=n, poller=_Poller()) for n in range(count)]
        for entry in self.queue:
            entry.poller.state = int(KVPoll.TRANSFERRING)

    def turn(self) -> list[int]:
        """One turn."""
        result: list[int] = self.engine.poll_and_all_reduce([e.poller for e in self.queue], "group", self.queue)
        return result


class Flags(Queue):
    """The same, of which the engine reduces a flag each."""

    def turn(self) -> list[int]:
        """One turn."""
        result: list[int] = self.engine.agree(self.queue, "group")
        return result


def install(engine: Any, tap: QueueTap) -> Hooks:
    """Put the hooks in as an adapter does, and return them."""
    hooks = Hooks()
    polls = PollHooks(hooks, lambda group: 0)
    polls.reductions.caller(engine, "agree", "agree", tap, lambda entries, group: entries, steady=True)
    polls.poll_method(Queue, "turn", "transfer", tap, attrgetter("queue"))
    polls.poll_function(engine, "poll_and_all_reduce", None, lambda p, g, *a, **k: g)
    polls.gate_function(engine, "gate")
    polls.collective(engine)
    return hooks


def measure(count: int, blocks: int, changing: bool, reductions: bool) -> dict[str, Any]:
    """Return microseconds of CPU a turn with and without hooks, and of the difference, as quartiles."""
    from pdctl.recording.writer import RecordingWriter

    engine = _engine()
    queue = (Flags if reductions else Queue)(engine, count)
    turns = max(200, TURNS * 16 // (count + 16))
    states = (int(KVPoll.TRANSFERRING), int(KVPoll.WAITING_FOR_INPUT))
    pollers = [entry.poller for entry in queue.queue]
    done = 0

    def block(turn: Callable[[], Any]) -> float:
        nonlocal done
        start = time.thread_time()
        for _ in range(turns):
            if changing:
                done += 1
                pollers[done % count].state = states[done // count & 1]
            turn()
        return (time.thread_time() - start) / turns * 1e6

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        writer = RecordingWriter.create(Path(folder) / "r", identity())
        tap = QueueTap("decode.transfer", _View(), writer, lambda: 0)
        added, without, with_hooks = [], [], []
        for pair in range(blocks + WARM_UP):
            times = {}
            for hooked in (True, False) if pair % 2 else (False, True):
                hooks = install(engine, tap) if hooked else None
                times[hooked] = block(queue.turn)
                if hooks is not None:
                    errors = hooks.errors()
                    hooks.remove_all()
                    assert not errors, errors
            if pair >= WARM_UP:
                added.append(times[True] - times[False])
                without.append(times[False])
                with_hooks.append(times[True])
    return {
        "benchmark": "turn_cost",
        "requests": count,
        "changing": changing,
        "reductions": reductions,
        "added_us": quartiles(added),
        "with_us": quartiles(with_hooks),
        "without_us": quartiles(without),
        "pairs": blocks,
        "turns": turns,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print one JSON line per queue length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[16, 256, 1024])
    parser.add_argument("--blocks", type=int, default=100)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--changing", action="store_true")
    kind.add_argument("--reductions", action="store_true")
    options = parser.parse_args(arguments)
    for count in options.requests:
        result = measure(count, options.blocks, options.changing, options.reductions)
        print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
