"""The checks of ``make gpu``: each does one thing on a card and says in a line what came out."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).parents[2]
HANG = str(ROOT / "tests" / "data" / "sglang-0.5.12.post1-c1.pdtrace")
TESTS = ("tests/unit/engines/test_metadata_reader.py", "tests/system/test_explore.py")
RACES = 200
SPIN = 2_000_000
"""Clock cycles of the device that a write is late, about a millisecond."""


class SkippedError(Exception):
    """Why a check was left out."""


class FailedError(Exception):
    """What came out that must not."""


@dataclass(frozen=True)
class Check:
    """what: the row's title. cards: how many it needs. run: returns what came out; raises FailedError or SkippedError."""

    what: str
    run: Callable[[], str]
    cards: int = 1


def cards() -> int:
    """Return how many cards torch sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def card() -> str:
    """Return the name of the card with the versions under it, "" without one."""
    return f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}" if cards() else ""


def pdctl(*words: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """Return the document of a command. Raises FailedError for another exit code."""
    command = [sys.executable, "-m", "pdctl.cli", *words, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240, check=False)
    if done.returncode not in codes:
        raise FailedError(
            f"pdctl {words[0]} exits with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}"
        )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


# ---- metadata rows ---------------------------------------------------------------------------------------------------


def tests() -> str:
    """Run the tests that are marked ``gpu``."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-n", "0", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240, check=False)
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-300:]]
    if "No module named pytest" in done.stderr:
        raise SkippedError("pytest is not installed here")
    if done.returncode or "skipped" in last[0]:
        raise FailedError(last[0])
    return last[0].strip("= ")


def race() -> str:
    """Read a row that another stream writes late: without waiting for that stream, then with."""
    device = torch.device("cuda")
    rows = torch.zeros((64, 8), dtype=torch.int64, device=device)
    writer = torch.cuda.Stream(device)
    source = torch.arange(1, RACES + 1, dtype=torch.int64).pin_memory()
    old = {False: 0, True: 0}
    for ordered in old:
        for number in range(RACES):
            rows.zero_()
            torch.cuda.synchronize()
            with torch.cuda.stream(writer):
                torch.cuda._sleep(SPIN)
                rows[7, 0].copy_(source[number], non_blocking=True)
                written = writer.record_event()
            if ordered:
                torch.cuda.current_stream().wait_event(written)
            old[ordered] += int(rows[7, 0].item() != number + 1)
    torch.cuda.synchronize()
    if old[True] or not old[False]:
        raise FailedError(f"stale reads: {old[False]} of {RACES} unordered, {old[True]} of {RACES} ordered")
    return (
        f"{old[False]} of {RACES} reads were of the old row without waiting for the writer's stream, 0 of {RACES} with"
    )


def lab(device: str = "cuda") -> str:
    """Make a lab hang whose metadata buffers are on the card, and have it named; the same with the gate goes on."""
    from tests.support.labs import Labs

    for up, code in ((("--without", "gate"), 1), ((), 0)):
        with Labs() as labs:
            made = labs.up("--decode", "tp=2", "--metadata-device", device, *up)
            if not made.load(requests=8).good:
                raise FailedError("requests of a healthy lab did not complete")
            document = json.loads(labs.cli("dump", "metadata", "-o", "json").stdout)
            if device not in json.dumps(document):
                raise FailedError("dump metadata does not name the card")
            made.inject_late_metadata()
            made.load(requests=1, room=71, seconds=30)
            found = json.loads(labs.cli("diff-queues", "-o", "json", code=code).stdout)
            codes = [finding["code"] for finding in found["findings"]]
            if (codes[:1] == ["PD101"]) is not (code == 1):
                raise FailedError(f"diff-queues finds {codes} {'without' if up else 'with'} the gate")
    return "rows on the card: late metadata is PD101 without the gate, and no finding with it"


# ---- replay ----------------------------------------------------------------------------------------------------------


def verdicts(*words: str) -> list[tuple[str, str]]:
    """Return (gate, verdict) of each execution of the recorded hang."""
    document = pdctl("replay", HANG, "--queue", "decode.transfer", *words, codes=(0, 1))
    return [(run["gate"], run["verdict"]) for group in document["groups"] for run in group["runs"]]


def replay() -> str:
    """Replay the recorded hang with rows on the card."""
    seen = [dict(verdicts("--device", "cuda")) for _ in range(5)]
    if any(one.get("on") == "DIVERGES" for one in seen):
        raise FailedError(f"the ranks part with the gate: {seen}")
    parted = sum(one.get("off") == "DIVERGES" for one in seen)
    return f"gate off diverges in {parted} of {len(seen)} runs (rows race their polls), gate on in none"


def nccl() -> str:
    """Replay the recorded hang, reduced by NCCL on two cards."""
    seen = dict(verdicts("--backend", "nccl", "--device", "cuda"))
    if seen.get("on") == "DIVERGES":
        raise FailedError(f"the ranks part with the gate: {seen}")
    return f"gate off {seen.get('off')}, gate on {seen.get('on')}"


# ---- explorer --------------------------------------------------------------------------------------------------------


VIEWS = frozenset(("view", "select", "slice", "expand", "alias", "detach", "unbind", "as_strided"))


class Traffic(TorchDispatchMode):
    """Counts the bytes of all tensors that operations read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition("::")[2].partition(".")[0]
        if name not in VIEWS:
            kwargs = kwargs or {}
            touched = [leaf for leaf in tree_leaves([args, kwargs]) if isinstance(leaf, torch.Tensor)]
            written = touched[:1] if name.endswith("_") else []
            self.bytes += sum(leaf.numel() * leaf.element_size() for leaf in (*touched, *written))
        return func(*args, **(kwargs or {}))


def bandwidth(device: torch.device) -> float:
    """Return bytes a second of a copy on the card, read and written."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        target.copy_(source)
    torch.cuda.synchronize()
    return 20 * 2 * source.numel() / (time.perf_counter() - began)


def explorer() -> str:
    """Step the same schedules on the CPU and on the card; then time the kernel against the card's own copy."""
    from pdctl.explore.batches import sample
    from pdctl.explore.kernels import Kernel
    from pdctl.explore.policies import POLICIES
    from pdctl.explore.search import search
    from pdctl.explore.space import Model, space_of

    device = torch.device("cuda")
    said = []
    for name in ("no-gate", "gate-expected"):
        policy = POLICIES[name]
        space = space_of(policy, Model(4, 8, 4))
        on = [search(space, schedules=1 << 20, seed=5, device=where, limit_s=120) for where in ("cpu", "cuda")]
        if (on[0].parted, on[0].by_split) != (on[1].parted, on[1].by_split):
            raise FailedError(
                f"{policy.name}: the card finds {on[1].parted} of {on[1].stepped}, the CPU {on[0].parted}"
            )
        numbered = next(iter(sample(space, device, 5, 1 << 22)))
        kernel = Kernel(policy)
        with Traffic() as traffic:
            kernel.run(numbered.batch)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(10):
            kernel.run(numbered.batch)
        torch.cuda.synchronize()
        took = (time.perf_counter() - began) / 10
        share = traffic.bytes / took / bandwidth(device)
        said.append(
            f"{policy.name}: {numbered.count / took / 1e6:.0f} million schedules/s, {share:.0%} of a copy's bandwidth"
        )
    return "; ".join(said)


CHECKS = {
    "tests": Check(
        "tests marked gpu: rows are read beside a busy stream; the explorer gives what the CPU gives", tests
    ),
    "race": Check("a row that another stream writes late, read by `item()`", race),
    "lab": Check("a lab with its metadata buffers on the card, and late metadata", lab),
    "replay": Check("the recorded hang of 0.5.12.post1 with rows on the card", replay),
    "nccl": Check("the recorded hang of 0.5.12.post1, reduced by NCCL on two cards", nccl, cards=2),
    "explorer": Check("the explorer's kernels, 4 ranks × 8 requests × 4 rounds", explorer),
}
