"""Search a space in batches, completely or by a seeded sample: how the ranks part, how often, and where first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from pdctl.explore.batches import Numbered, digits_of, every, sample
from pdctl.explore.kernels import Kernel
from pdctl.explore.policies import BITS, Split
from pdctl.explore.space import Schedule, Space


@dataclass
class SearchResult:
    """The result of a search.

    exhaustive: every schedule of the space was stepped. stepped: how many were. parted: in how many of them the ranks
    part. by_split: the same by the way they part (a schedule may part in several in one round), with the lowest number and
    that schedule. ran_out: the time limit ended it. seconds: how long it took.
    """

    exhaustive: bool
    stepped: int = 0
    parted: int = 0
    by_split: dict[Split, int] = field(default_factory=dict)
    examples: dict[Split, tuple[int, Schedule]] = field(default_factory=dict)
    ran_out: bool = False
    seconds: float = 0.0


def search(
    space: Space,
    *,
    schedules: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    limit_s: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> SearchResult:
    """Search ``space``: all of it (schedules None), or so many drawn with ``seed``, for at most ``limit_s`` seconds.

    The result is a function of the arguments, on any device, unless the time limit ends it. One thread: rows of bytes in
    caches gain nothing from several. Raises RuntimeError as torch does where ``device`` can't be used.
    """
    where = torch.device(device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        source = every(space, where) if schedules is None else sample(space, where, seed, schedules)
        total = space.size if schedules is None else schedules
        found = _run(space, source, clock, limit_s, None if schedules is None else seed)
    finally:
        torch.set_num_threads(threads)
    found.ran_out = found.stepped < total
    found.exhaustive = schedules is None and not found.ran_out
    return found


def _run(
    space: Space, source: Iterable[Numbered], clock: Callable[[], float], limit_s: float, seed: int | None
) -> SearchResult:
    kernel = Kernel(space.policy)
    found = SearchResult(exhaustive=False)
    began = clock()
    for numbered in source:
        parted = kernel.run(numbered.batch)
        apart = int(torch.count_nonzero(parted))
        if apart:
            found.parted += apart
            for split, bit in BITS.items():
                have = parted.bitwise_and(bit)
                count = int(torch.count_nonzero(have))
                if count and split not in found.examples:
                    number = numbered.start + int(have.ne(0).to(torch.uint8).argmax())
                    found.examples[split] = number, space.schedule(digits_of(space, number, seed))
                if count:
                    found.by_split[split] = found.by_split.get(split, 0) + count
        found.stepped += numbered.count
        found.seconds = clock() - began
        if found.seconds >= limit_s:
            break
    return found
