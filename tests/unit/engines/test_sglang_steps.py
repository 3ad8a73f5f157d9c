"""The engine's step from function names, as they stand on real stacks of 0.5.12.post1 and 0.5.23."""

from __future__ import annotations

import pytest

from pdctl.engines.sglang.steps import step_of
from pdctl.protocol.model import Frame

PIPELINE = "event_loop_pp_disagg_prefill"


def stack(*names: str) -> tuple[Frame, ...]:
    return tuple(Frame(name, "disaggregation/decode.py", 1) for name in names)


@pytest.mark.parametrize(
    ("names", "step"),
    [
        (("all_reduce", "poll_and_all_reduce", "polls", "pop_transferred", "polls_queue"), "poll of decode.transfer"),
        (("all_reduce", "_all_reduce_polls", "poll_and_all_reduce", "pop_transferred"), "poll of decode.transfer"),
        (("item", "_commit_transfer_to_req", "commits", "pop_transferred"), "result of the poll of decode.transfer"),
        (("poll_and_all_reduce", "_update_handshake_waiters", "pop_preallocated"), "poll of decode.prealloc"),
        (("_pre_alloc", "pop_preallocated", "process_decode_queue"), "allocation of decode.prealloc"),
        (("broadcast", "broadcast_pyobj", "recv_requests", "event_loop_normal_disagg_decode"), "recv_requests"),
        (("all_reduce", "forward", "forward_batch_generation", "run_batch", "event_loop_normal"), "model forward"),
        (("all_reduce", "poll_and_all_reduce_attn_cp_tp_group", "resolve_waiting_queue_bootstrap"), "poll of waiting"),
        (("point_to_point_pyobj", "_pp_recv_pyobj_from_prev_stage", PIPELINE), "receive from the previous stage"),
        (("_pp_commit_comm_work", PIPELINE), "send to the next stage"),
        (("recv", "point_to_point_pyobj", "recv_requests", PIPELINE), "recv_requests"),
        ((PIPELINE, "dispatch_event_loop"), "process_batch_result"),
        (
            ("create_connection", "get", "try_ensure_parallel_info", "pop_preallocated"),
            "question to a bootstrap server",
        ),
        (("sleep", "event_loop_normal_disagg_prefill"), "scheduler loop"),
        (("wait", "_wait_for_tstate_lock"), ""),
    ],
)
def test_step(names: tuple[str, ...], step: str) -> None:
    assert step_of(stack(*names)) == step
