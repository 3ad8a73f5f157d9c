"""The stack of a thread of this process, read from another thread.

Only the GIL is needed. Frames are walked through ``f_back`` and plain attributes. Locals are read of one frame only,
the innermost one of torch.distributed's own code, and of them only the group and the tensor: reading them takes a
reference for as long as that call lasts and changes nothing. No tensor's content is touched: its number of elements is
metadata.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from pdctl.protocol.model import Call, Frame, GroupCount

MAX_FRAMES = 128

_C10D = "torch/distributed/distributed_c10d.py"
OPS = frozenset(
    (
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_reduce",
        "all_reduce_coalesced",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "batch_isend_irecv",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "irecv",
        "isend",
        "monitored_barrier",
        "new_group",
        "init_process_group",
        "recv",
        "recv_object_list",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
        "scatter_object_list",
        "send",
        "send_object_list",
    )
)
"""Functions of ``torch.distributed.distributed_c10d`` (torch 2.4 to 2.13) that block until other ranks take part."""

_TENSORS = ("tensor", "output_tensor", "output", "tensor_list", "input_tensor", "input")


def main_frame() -> FrameType | None:
    """Return the innermost frame of this process's main thread, None when there is none."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def frames_of(frame: FrameType | None) -> tuple[Frame, ...]:
    """Return the stack that ends in ``frame``, innermost first, at most MAX_FRAMES of it."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < MAX_FRAMES:
        code = frame.f_code
        frames.append(Frame(code.co_name, "/".join(code.co_filename.split("/")[-2:]), frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(frames)


def call_of(
    frame: FrameType | None,
    stack: tuple[Frame, ...],
    group_kind: Callable[[Any], str],
    step_of: Callable[[tuple[Frame, ...]], str],
) -> Call:
    """Return the call that the thread of ``frame`` is in. Fields that can't be read stay unknown. Never raises.

    stack is :func:`frames_of` of the same frame; group_kind and step_of are the adapter's.
    """
    op, group, elements, inside, seq, name = "", "", -1, "", -1, ""
    found = _innermost_op(frame)
    if found is not None:
        op = found.f_code.co_name
        try:
            pg, elements = _locals(found)
            group = group_kind(pg)
            seq, name = _sequence(pg), _name(pg)
        except Exception:  # noqa: S110  # a rank's stack is worth showing without its group
            pass
    try:
        inside = step_of(stack)
    except Exception:  # noqa: S110  # and without the engine's step
        pass
    return Call(op=op, group=group, elements=elements, inside=inside, seq=seq, pg=name)


def counts(group_kind: Callable[[Any], str]) -> tuple[GroupCount, ...]:
    """Return how many collectives this rank has entered in each of its groups of more than one. Never raises.

    Empty if torch is not loaded, or keeps its groups elsewhere than in ``_world.pg_names`` (torch 2.0 to 2.13). A group whose
    backend does not count is left out.
    """
    found = []
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    for pg in list(getattr(getattr(c10d, "_world", None), "pg_names", ())):
        try:
            size = int(pg.size())
            if size > 1:
                found.append(GroupCount(_name(pg), group_kind(pg), size, _sequence(pg)))
        except Exception:  # noqa: S112  # torch raises what the backend raises
            continue
    return tuple(count for count in found if count.seq >= 0 and count.pg)


def _name(group: Any) -> str:
    return str(getattr(group, "group_name", ""))


def _innermost_op(frame: FrameType | None) -> FrameType | None:
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        code = frame.f_code
        if code.co_name in OPS and code.co_filename.endswith(_C10D):
            return frame
        frame = frame.f_back
    return None


def _locals(frame: FrameType) -> tuple[Any, int]:
    """Return (process group, elements of the tensor) of a torch.distributed frame; None and -1 where it has none."""
    if not getattr(sys, "_is_gil_enabled", bool)() and sys.version_info >= (3, 13):
        return None, -1  # without the GIL another thread's locals can't be read safely
    # Up to 3.12 this fills a dictionary that belongs to the frame, from 3.13 on it is a view of the frame. Either
    # is let go when the call returns; nothing is ever written back to the frame's variables.
    values = frame.f_locals
    group = values.get("group")
    if group is None:
        torch_group = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "group", None)
        group = getattr(torch_group, "WORLD", None)
    elements = -1
    for name in _TENSORS:
        value = values.get(name)
        if value is not None:
            elements = _numel(value)
            break
    return group, elements


def _sequence(group: Any) -> int:
    """Return the number of the collective the group is in, counted by its backend; -1 where it counts none."""
    count = getattr(group, "_get_sequence_number_for_group", None)
    return -1 if count is None else int(count())


def _numel(value: Any) -> int:
    torch = sys.modules.get("torch")
    if torch is None:
        return -1
    if isinstance(value, list):
        counts = [_numel(item) for item in value]
        return sum(counts) if counts and min(counts) >= 0 else -1
    # Subclasses may run Python code of their own when asked anything.
    return int(torch.Tensor.numel(value)) if type(value) is torch.Tensor else -1
