"""The policies' rules for a whole batch of schedules at once, in torch: the same code on CPU and CUDA.

State is bytes: ``first``, ``second`` and ``flag`` are [ranks, requests, schedules], ``arrivals`` is [requests, schedules], or
None where all arrive in round 0. Schedules lie innermost, so that every operation is elementwise on long contiguous rows.
Booleans are 1 or 0 in a byte. A poll that decides is 1, any other is 0, so MIN over the ranks is AND over rows. Only operations
that torch vectorises in one pass over bytes are used (comparisons are ten times slower). Scratch memory is allocated once and
written in place.

Until the ranks part their lists are equal, so one row holds the requests on all lists. A schedule that has parted keeps the
splits of that round; later results for it are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pdctl.explore.policies import BITS, Policy, Split

if TYPE_CHECKING:
    from torch import Tensor

_SIGN = 7


@dataclass(frozen=True)
class Batch:
    """Schedules, as the module says, all uint8 with values below 128. rounds: how many are stepped."""

    rounds: int
    first: Tensor
    second: Tensor
    flag: Tensor
    arrivals: Tensor | None = None


class Kernel:
    """Steps batches under one policy. With count_polls (slow) ``polls`` counts what the ranks really poll until they part."""

    def __init__(self, policy: Policy, *, count_polls: bool = False) -> None:
        self.policy = policy
        self.count_polls = count_polls
        self.polls = 0
        self._scratch: dict[str, Tensor] = {}
        self._step = {"transfer": self._transfer, "receiver": self._receiver, "pipeline": self._pipeline}[
            policy.machine
        ]

    def run(self, batch: Batch) -> Tensor:
        """Return, per schedule, the :data:`BITS` of how its ranks part in the round in which they part, 0 for never.

        The tensor is the kernel's: the next call overwrites it.
        """
        ranks, requests, count = batch.first.shape
        parted = self._take("parted", batch, count).zero_()
        here = self._take("here", batch, count)
        shape = (ranks, requests, count) if self.policy.machine == "pipeline" else (requests, count)
        on = self._take("on", batch, *shape).fill_(1)
        for now in range(batch.rounds):
            here.zero_()
            listed = on
            if batch.arrivals is not None:
                arrived = _until(batch.arrivals, now, self._take("arrived", batch, requests, count))
                listed = torch.bitwise_and(on, arrived, out=self._take("listed", batch, *shape))
            if self.count_polls:
                self._count(batch, listed, parted, now)
            self._step(batch, now, on, listed, here)
            # Only the first round in which a schedule's ranks part counts: all bits of `fresh` are set until then.
            fresh = torch.clamp(parted, max=1, out=self._take("fresh", batch, count)).sub_(1)
            parted.bitwise_or_(here.bitwise_and_(fresh))
        return parted

    # ---- rules ----------------------------------------------------------------------------------------------------

    def _transfer(self, batch: Batch, now: int, on: Tensor, listed: Tensor, here: Tensor) -> None:
        cube, row, line = _shapes(batch)
        take = self._take
        policy = self.policy
        polls = _until(batch.first, now, take("polls", batch, *cube))
        own = _until(batch.second, now, take("own", batch, *cube))
        filled = own if policy.zeroed else torch.bitwise_or(own, batch.flag, out=take("filled", batch, *cube))
        if policy.gate != "none":
            polls.bitwise_and_(filled if policy.gate == "zero" else own)
        # Requests on the lists whose reduced poll is Success.
        leave = _every(polls, take("leave", batch, *row)).bitwise_and_(listed)
        some_own, all_own = _any(own, take("some_own", batch, *row)), _every(own, take("all_own", batch, *row))
        bit = take("bit", batch, *line)
        if policy.gate == "none":
            some, every = some_own, all_own
            if not policy.zeroed:
                some = _any(filled, take("some", batch, *row))
                every = _every(filled, take("every", batch, *row))
            apart = torch.bitwise_xor(some, every, out=take("apart", batch, *row)).bitwise_and_(leave)
            kept = torch.bitwise_and(apart, some_own, out=take("kept", batch, *row))
            _note(here, kept, Split.KEPT, bit)
            _note(here, apart.bitwise_xor_(kept), Split.ABORTED, bit)
            leave.bitwise_and_(every)
        mixed = some_own.bitwise_xor_(all_own).bitwise_and_(leave)
        _note(here, mixed, Split.MIXED, bit)
        on.bitwise_xor_(leave)

    def _receiver(self, batch: Batch, now: int, on: Tensor, listed: Tensor, here: Tensor) -> None:
        cube, row, line = _shapes(batch)
        take = self._take
        there = listed
        if not self.policy.early:
            answered = _until(batch.first, now, take("answered", batch, *cube)).bitwise_and_(listed)
            there = _every(answered, take("there", batch, *row))
            apart = _any(answered, take("some", batch, *row)).bitwise_xor_(there)
            differs = _any(apart, take("differs", batch, *line))
            has, one = take("has", batch, *line).fill_(1), take("one", batch, *line)
            for rank in answered:
                has.bitwise_and_(_any(rank, one))
            has.bitwise_and_(differs)
            here.add_(has, alpha=BITS[Split.LISTS]).add_(differs.bitwise_xor_(has), alpha=BITS[Split.SKIPPED])
        ready = _until(batch.second, now, take("ready", batch, *cube))
        on.bitwise_xor_(_every(ready, take("moved", batch, *row)).bitwise_and_(there))

    def _pipeline(self, batch: Batch, now: int, on: Tensor, listed: Tensor, here: Tensor) -> None:
        cube, row, line = _shapes(batch)
        take = self._take
        failed = _until(batch.first, now, take("failed", batch, *cube)).bitwise_and_(listed)
        removed = failed[0]
        on[0].bitwise_xor_(removed)
        for stage in range(1, cube[0]):
            takes = failed[stage]
            if not self.policy.drained:
                takes = torch.bitwise_and(takes, removed, out=take(f"takes{stage % 2}", batch, *row))
                stuck = torch.bitwise_xor(failed[stage], takes, out=take("stuck", batch, *row))
                before = torch.bitwise_xor(on[stage - 1], 1, out=take("before", batch, *row))
                bit = _any(stuck.bitwise_and_(before), take("bit", batch, *line))
                here.bitwise_or_(bit.mul_(BITS[Split.ORPHAN]))
            on[stage].bitwise_xor_(takes)
            removed = takes

    # ---- scratch --------------------------------------------------------------------------------------------------

    def _take(self, name: str, batch: Batch, *shape: int) -> Tensor:
        """Return scratch of this name; its content is what its last user left."""
        found = self._scratch.get(name)
        if found is None or tuple(found.shape) != shape or found.device != batch.first.device:
            found = self._scratch[name] = torch.empty(shape, dtype=torch.uint8, device=batch.first.device)
        return found

    def _count(self, batch: Batch, listed: Tensor, parted: Tensor, now: int) -> None:
        listed = listed.expand(batch.first.shape) if listed.dim() == 2 else listed
        if self.policy.machine == "receiver" and not self.policy.early:
            listed = listed * (batch.first <= now)
        self.polls += int((listed * (parted == 0)).sum())


def _shapes(batch: Batch) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    shape = tuple(batch.first.shape)
    return shape, shape[1:], shape[2:]


def _until(when: Tensor, now: int, out: Tensor) -> Tensor:
    """Return 1 where ``when`` is ``now`` or earlier: the sign of a subtraction that wraps."""
    return torch.sub(when, now + 1, out=out).bitwise_right_shift_(_SIGN)


def _every(rows: Tensor | Sequence[Tensor], out: Tensor) -> Tensor:
    """AND over the first dimension: over polls of ranks that is MIN."""
    torch.bitwise_and(rows[0], rows[min(1, len(rows) - 1)], out=out)
    for row in rows[2:]:
        out.bitwise_and_(row)
    return out


def _any(rows: Tensor | Sequence[Tensor], out: Tensor) -> Tensor:
    torch.bitwise_or(rows[0], rows[min(1, len(rows) - 1)], out=out)
    for row in rows[2:]:
        out.bitwise_or_(row)
    return out


def _note(here: Tensor, apart: Tensor, split: Split, scratch: Tensor) -> None:
    """Add the split's bit, which nothing has set in this round yet, where any request is apart."""
    here.add_(_any(apart, scratch), alpha=BITS[split])
