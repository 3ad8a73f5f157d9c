"""Names the step of a lab rank's main thread, from the function names on its stack."""

from __future__ import annotations

from pdctl.protocol.model import Frame

_QUEUE_METHODS = {
    "pop_transferred": "decode.transfer",
    "_update_handshake_waiters": "decode.prealloc",
    "pop_bootstrapped": "prefill.bootstrap",
    "process_disagg_prefill_inflight_queue": "prefill.inflight",
}

_STEPS = {
    "recv_requests": "recv_requests",
    "process_input_requests": "process_input_requests",
    "pop_preallocated": "allocation of decode.prealloc",
    "resume_retracted_reqs": "resume of decode.retracted",
    "get_rids": "poll for the next pipeline stage",
    "_pp_decode_rids": "poll for the next pipeline stage",
    "_pp_consensus": "agreement of the pipeline stages",
    "_pp_pass_on": "agreement of the pipeline stages",
    "_pp_recv_requests": "recv_requests",
    "run_batch": "model forward",
    "process_batch_result": "process_batch_result",
    "process_batch_result_disagg_prefill": "process_batch_result",
    "get_next_disagg_decode_batch_to_run": "scheduling",
    "get_new_batch_prefill": "scheduling",
}


def step_of(stack: tuple[Frame, ...]) -> str:
    """Return the step of the innermost frame that has a name here, "" when none has. Innermost frame first."""
    polling = False
    for frame in stack:
        if frame.function.startswith("poll_and_all_reduce"):
            polling = True
        queue = _QUEUE_METHODS.get(frame.function)
        if queue is not None:
            return f"poll of {queue}" if polling else f"result of the poll of {queue}"
        step = _STEPS.get(frame.function)
        if step is not None:
            return step
    return "scheduler loop" if any(frame.function.startswith("event_loop_") for frame in stack) else ""
