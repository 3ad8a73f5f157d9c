"""What it costs a module's other functions that one of them calls ``torch.distributed`` itself, and is recorded.

    python -m benchmarks.torch_name [--blocks 100]

Such a function finds its collective by its module's name for torch, so that name stands for another object while the function
runs. Measured are eight uses of torch in a neighbour, in CPU time: hooked to not hooked, and, for comparison, with the other
object in place all the time. Printed: quartiles over blocks that follow each other.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.statistics import quartiles
from benchmarks.synthetic import identity
from pdctl.agent.tap import QueueTap
from pdctl.engines.base import Hooks
from pdctl.engines.polls import PollHooks
from pdctl.engines.reductions import ByRoom

CALLS = 20_000
SOURCE = """
def neighbour():
    torch.int32, torch.float32, torch.bool, torch.uint8, torch.Tensor, torch.device, torch.cuda, torch.nn
def agrees(group):
    torch.distributed.all_reduce(torch.tensor([1]), group=group)
"""


def _module() -> Any:
    import torch

    module: Any = ModuleType("module")
    module.torch = torch
    exec(SOURCE, vars(module))
    return module


def _block(call: Callable[[], None]) -> float:
    start = time.thread_time()
    for _ in range(CALLS):
        call()
    return time.thread_time() - start


def main(arguments: list[str] | None = None) -> int:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=100)
    options = parser.parse_args(arguments)
    from pdctl.recording import format as f
    from pdctl.recording.writer import RecordingWriter

    bare, hooked, standing = _module(), _module(), _module()
    with tempfile.TemporaryDirectory() as folder:
        writer = RecordingWriter.create(Path(folder) / "r", identity(), size=f.MIN_SIZE)
        polls = PollHooks(Hooks(), lambda _: 0)
        tap = QueueTap("reduction.0", ByRoom(), writer, lambda: 0, ())
        torch = polls.torch_of(hooked)
        polls.reductions.caller(hooked, "agrees", "site", tap, lambda _: [], steady=False, module=hooked, torch=torch)
        standing.torch = torch
        ratios: dict[str, list[float]] = {"ratio": [], "standing_ratio": []}
        for block in range(options.blocks + 1):
            base = _block(bare.neighbour)
            for name, module in (("ratio", hooked), ("standing_ratio", standing)):
                took = _block(module.neighbour)
                if block:  # the first is to warm up
                    ratios[name].append(took / base)
    print(json.dumps({"benchmark": "torch_name", **{name: quartiles(found) for name, found in ratios.items()}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
