"""Names the engine's step that a rank's main thread is in, from the function names on its stack."""

from __future__ import annotations

from collections.abc import Mapping

from pdctl.engines.sglang.seams import POLL_FUNCTIONS
from pdctl.protocol.model import NEXT_STAGE, STAGE_BEFORE, Frame

_QUEUE_METHODS = {
    "pop_transferred": "decode.transfer",
    "_update_handshake_waiters": "decode.prealloc",
    "pop_bootstrapped": "prefill.bootstrap",
    "process_disagg_prefill_inflight_queue": "prefill.inflight",
    "get_transferred_rids": "prefill.inflight",
}

STEPS = {
    # 0.5.10.post1 – 0.5.12.post1: Scheduler.recv_requests; later scheduler_components/request_receiver.py
    "recv_requests": "recv_requests",
    "ingest_requests": "recv_requests",
    "process_input_requests": "process_input_requests",
    "pop_preallocated": "allocation of decode.prealloc",
    "resume_retracted_reqs": "resume of decode.retracted",
    "get_rids": "poll for the next pipeline stage",
    "resolve_waiting_queue_bootstrap": "poll of waiting",
    "check_bootstrap": "poll of a chunked request",
    "maybe_prepare_mlp_sync_batch": "dp attention sync",
    "forward_batch_generation": "model forward",
    "run_batch": "model forward",
    "process_batch_result": "process_batch_result",
    "process_batch_result_disagg_prefill": "process_batch_result",
    "on_idle": "idle",
    "self_check_during_idle": "idle",
    "maybe_sleep_on_idle": "idle",
    "launch_batch_sample_if_needed": "sampling",
    "send_kv_chunk": "send_kv_chunk",
    # Pipeline stages. They wait for the work of an isend or irecv, so that the stack shows no collective.
    "_pp_commit_comm_work": NEXT_STAGE,
    "_pp_send_pyobj_to_next_stage": NEXT_STAGE,
    "_pp_send_dict_to_next_stage": NEXT_STAGE,
    "_pp_send_output_to_next_stage": NEXT_STAGE,
    "_pp_recv_pyobj_from_prev_stage": STAGE_BEFORE,
    "_pp_recv_typed_dict": STAGE_BEFORE,
    "_pp_recv_proxy_tensors": STAGE_BEFORE,
    "_pp_recv_dict_from_prev_stage": STAGE_BEFORE,
    # Decode asks by HTTP on its main thread, one address after the other, 5 s each.
    "try_ensure_parallel_info": "question to a bootstrap server",
    "query_prefill_dp_ranks": "question to a bootstrap server",
    "_get_bootstrap_info_from_server": "question to a bootstrap server",
    "get_next_disagg_decode_batch_to_run": "scheduling",
    "get_next_disagg_prefill_batch_to_run": "scheduling",
    "get_next_batch_to_run": "scheduling",
}


def step_of(stack: tuple[Frame, ...], steps: Mapping[str, str] = STEPS) -> str:
    """Return the step of the innermost frame that has a name in ``steps``, "" when none has. Innermost frame first."""
    polling = False
    if stack and stack[0].function.startswith("event_loop_pp_"):
        return "process_batch_result"  # a call in the loop itself: it waits for the device, whose results come next
    for frame in stack:
        if frame.function in POLL_FUNCTIONS:
            polling = True
        queue = _QUEUE_METHODS.get(frame.function)
        if queue is not None:
            return f"poll of {queue}" if polling else f"result of the poll of {queue}"
        step = steps.get(frame.function)
        if step is not None:
            return step
    if any(frame.function.startswith("event_loop_") for frame in stack):
        return "scheduler loop"
    return ""
