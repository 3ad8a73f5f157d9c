"""Polls and metadata buffers (SGLang: ``sglang/srt/disaggregation/utils.py``).

The reduction is positional and checks nothing, as in the engine: lists of different length hang or kill the ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from pdctl.protocol.model import KVPoll

SPARE_ROWS = 4
"""Rows beyond the slots, per slot: copies of rows whose write comes later than the slot's next use."""


def _apply_metadata_gate(polls: list[int], decode_reqs: Sequence[Any], metadata_buffers: MetadataBuffers) -> None:
    """Turn Success into Transferring, in place, for requests whose slot has not been written (reads 0).

    Done before the reduction, so that MIN keeps every rank from committing until all ranks can (fix ``gate``). A room
    that is not 0 passes, whoever's it is.
    """
    for i, poll in enumerate(polls):
        if poll == KVPoll.SUCCESS and metadata_buffers.room_of(decode_reqs[i].metadata_buffer_index) == 0:
            polls[i] = int(KVPoll.TRANSFERRING)


def poll_and_all_reduce(
    pollers: Sequence[Any],
    gloo_group: Any,
    decode_reqs: Sequence[Any] | None = None,
    metadata_buffers: MetadataBuffers | None = None,
) -> list[int]:
    """Poll every request and return the minimum over the group at each position.

    decode_reqs and metadata_buffers are given where the metadata gate applies.
    """
    polls = [int(poller.poll()) for poller in pollers]
    if decode_reqs is not None and metadata_buffers is not None:
        _apply_metadata_gate(polls, decode_reqs, metadata_buffers)
    tensor_to_reduce = torch.tensor(polls, dtype=torch.uint8, device="cpu")
    dist.all_reduce(tensor_to_reduce, op=dist.ReduceOp.MIN, group=gloo_group)
    return [int(poll) for poll in tensor_to_reduce.tolist()]


def poll_and_all_reduce_attn_cp_tp_group(
    pollers: Sequence[Any], attn_cp_cpu_group: Any, attn_tp_cpu_group: Any
) -> list[int]:
    """Poll every request and return the minimum over the attention-TP group, then over the attention-CP group."""
    polls = poll_and_all_reduce(pollers, attn_tp_cpu_group)
    tensor_to_reduce = torch.tensor(polls, dtype=torch.uint8, device="cpu")
    dist.all_reduce(tensor_to_reduce, op=dist.ReduceOp.MIN, group=attn_cp_cpu_group)
    return [int(poll) for poll in tensor_to_reduce.tolist()]


class ReqToMetadataIdxAllocator:
    """Metadata slots of one rank, used in turn."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_slots = deque(range(size))

    def available_size(self) -> int:
        """Return the number of free slots."""
        return len(self.free_slots)

    def alloc(self) -> int | None:
        """Take the slot that has been free for longest, None when there is none."""
        return self.free_slots.popleft() if self.free_slots else None

    def free(self, free_index: int) -> None:
        """Give a slot back."""
        self.free_slots.append(free_index)


class MetadataBuffers:
    """A row (slot) per request in each of ten tensors; ``bootstrap_room[slot, 0]`` is its owner, 0: not written."""

    def __init__(self, size: int, hidden_size: int = 32, device: str = "cpu", max_top_logprobs_num: int = 16) -> None:
        self.size = size
        rows = size * (1 + SPARE_ROWS)

        def zeros(width: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros((rows, width), dtype=dtype, device=device)

        self.output_ids = zeros(16, torch.int32)
        self.cached_tokens = zeros(16, torch.int32)
        self.output_token_logprobs_val = zeros(16, torch.float32)
        self.output_token_logprobs_idx = zeros(16, torch.int32)
        self.output_top_logprobs_val = zeros(max_top_logprobs_num, torch.float32)
        self.output_top_logprobs_idx = zeros(max_top_logprobs_num, torch.int32)
        self.output_topk_p = zeros(16, torch.float32)
        self.output_topk_index = zeros(16, torch.int64)
        self.output_hidden_states = zeros(hidden_size, torch.float32)
        self.bootstrap_room = zeros(8, torch.uint64)
        self._spare = deque(range(size, rows))

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors in the order in which their rows are sent; the room comes last."""
        return [
            self.output_ids,
            self.cached_tokens,
            self.output_token_logprobs_val,
            self.output_token_logprobs_idx,
            self.output_top_logprobs_val,
            self.output_top_logprobs_idx,
            self.output_topk_p,
            self.output_topk_index,
            self.output_hidden_states,
            self.bootstrap_room,
        ]

    def get_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
        """Return addresses, total bytes and bytes a row of all tensors."""
        tensors = self.tensors()
        return (
            [tensor.data_ptr() for tensor in tensors],
            [tensor.nbytes for tensor in tensors],
            [tensor[0].nbytes for tensor in tensors],
        )

    def room_of(self, idx: int) -> int:
        """Return the room that a slot holds."""
        return int(self.bootstrap_room[idx, 0].item())

    def get_buf(self, idx: int) -> tuple[int, int]:
        """Return (first token, room) of a slot."""
        return int(self.output_ids[idx, 0].item()), self.room_of(idx)

    def set_buf(self, idx: int, token: int, room: int) -> None:
        """Fill a slot on the prefill side."""
        self.output_ids[idx, 0] = token
        self.bootstrap_room[idx, 0] = room

    def hold_row(self, idx: int) -> int | None:
        """Copy a row aside, for a write that comes later; returns the copy's row, None when there is no room for it."""
        try:
            spare = self._spare.popleft()
        except IndexError:
            return None
        for tensor in self.tensors():
            tensor[spare].copy_(tensor[idx])
        return spare

    def drop_row(self, spare: int) -> None:
        """Give back a row from :meth:`hold_row`."""
        self._spare.append(spare)
