"""The replacement of the model: a collective over the tensor-parallel group, and tokens that depend on KV."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pdctl.lab import toymodel
from pdctl.lab.engine.groups import Groups

if TYPE_CHECKING:
    from pdctl.lab.engine.memory import KVPool
    from pdctl.lab.engine.request import Req

HIDDEN = 64


def tensor_model_parallel_all_reduce(hidden: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Sum over the tensor-parallel group, which is not the one that carries the polls."""
    if groups.tp_size * groups.dp_size > 1:
        dist.all_reduce(hidden, group=groups.tp)
    return hidden


class ModelRunner:
    """Runs batches. With pipeline stages each adds the share of its layers and hands the sum on."""

    def __init__(self, pool: KVPool, groups: Groups, step_s: float) -> None:
        self.pool = pool
        self.groups = groups
        self.step_s = step_s

    def forward(self, batch: list[Req], counts: list[int]) -> list[int]:
        """Return the next token of every request. counts: requests of each dp rank that takes part, this one's included.

        With dp attention each dp rank has its own rows in the sum over all ranks (SGLang: ``dp_gather``).
        """
        started = time.monotonic()
        first = sum(counts[: self.groups.dp_rank])
        hidden = torch.zeros((sum(counts), HIDDEN), dtype=torch.float32)
        for row, req in enumerate(batch, first):
            hidden[row, 0] = self.pool.share(req.kv, self.groups.tp_rank, self.groups.tp_size)
        hidden = tensor_model_parallel_all_reduce(hidden, self.groups)
        if self.groups.pp_size > 1:
            hidden = self._through_stages(hidden)
        left = self.step_s - (time.monotonic() - started)
        if left > 0:
            time.sleep(left)
        shares = hidden[first : first + len(batch), 0].tolist()
        last = [req.output_ids[-1] if req.output_ids else req.origin_input_ids[-1] for req in batch]
        return [toymodel.next_token(token, int(share)) for token, share in zip(last, shares, strict=True)]

    def _through_stages(self, hidden: torch.Tensor) -> torch.Tensor:
        groups = self.groups
        stages = groups.members["pp"]
        if not groups.pp_first:
            before = torch.empty_like(hidden)
            dist.recv(before, stages[groups.pp_rank - 1], group=groups.pp)
            hidden = hidden + before
        if not groups.pp_last:
            dist.send(hidden, stages[groups.pp_rank + 1], group=groups.pp)
        dist.broadcast(hidden, src=stages[-1], group=groups.pp)
        return hidden
