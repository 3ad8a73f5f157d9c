"""The differences between SGLang's versions, found in the loaded code of this rank.

pdctl never decides by a version number. The comments name the versions in which a form was read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import ModuleType
from typing import Any

from pdctl.protocol.model import Seam

UTILS = "sglang.srt.disaggregation.utils"
DECODE = "sglang.srt.disaggregation.decode"
PREFILL = "sglang.srt.disaggregation.prefill"
COMMON = "sglang.srt.disaggregation.common.conn"
MOONCAKE = "sglang.srt.disaggregation.mooncake.conn"
NIXL = "sglang.srt.disaggregation.nixl.conn"
CONNECTIONS = (
    MOONCAKE, NIXL, "sglang.srt.disaggregation.ascend.conn", "sglang.srt.disaggregation.mori.conn",
)  # fmt: skip
"""Modules of the transfer backends."""

UNIFIED = "unified"
"""Role of a rank without disaggregation, as ``DisaggregationMode.to_engine_type`` names it."""


def module(name: str, modules: Mapping[str, Any] | None = None) -> ModuleType | None:
    """Return an engine module if the rank has loaded it; pdctl itself imports none.

    modules: the loaded modules of the rank, if it is another process.
    """
    return (sys.modules if modules is None else modules).get(name)


def common(kind: str, modules: Mapping[str, Any] | None = None) -> Any:
    """Return a class that the transfer backends build on, None where it is not loaded. modules: as :func:`module` has them."""
    return getattr(module(COMMON, modules), kind, None)


SCHEDULER = "sglang.srt.managers.scheduler"
ENDING = "get_exception_traceback"
"""What the scheduler's module calls as it handles the exception that ended the loop, and nowhere else."""


# ---- polls -----------------------------------------------------------------------------------------------------------


def _plain(pollers: Any, _group: Any = None, decode_reqs: Any = None, *_: Any, **__: Any) -> list[Any]:
    # decode_reqs since 0.5.13. With a hierarchical cache the pollers are made anew every turn, these are not.
    return pollers if decode_reqs is None else list(decode_reqs)


def _copied(decode_reqs: Any, *_: Any, **__: Any) -> list[Any]:
    return list(decode_reqs)  # the engine's own queue: it grows in place


def _gloo_group(_pollers: Any, gloo_group: Any, *_: Any, **__: Any) -> Any:
    return gloo_group


def _attn_tp_group(_pollers: Any, attn_cp_cpu_group: Any, attn_tp_cpu_group: Any, *_: Any, **__: Any) -> Any:
    del attn_cp_cpu_group
    return attn_tp_cpu_group


def _staging_group(_reqs: Any, staging_handler: Any, gloo_group: Any, *_: Any, **__: Any) -> Any:
    del staging_handler
    return gloo_group


def _first_stage_group(
    _pollers: Any, attn_cp_cpu_group: Any, attn_tp_cpu_group: Any, pp_group: Any, pp_rank: int, *_: Any, **__: Any
) -> Any:
    del attn_cp_cpu_group, pp_group
    return attn_tp_cpu_group if pp_rank == 0 else None


POLL_FUNCTIONS: dict[str, tuple[Callable[..., list[Any]] | None, Callable[..., Any]]] = {
    "poll_and_all_reduce": (_plain, _gloo_group),
    "poll_and_all_reduce_attn_cp_tp_group": (None, _attn_tp_group),
    "poll_and_all_reduce_with_staging": (_copied, _staging_group),
    # 0.5.23: with pipeline parallelism only stage 0 reduces and later stages are told
    "poll_and_all_reduce_prefill_pp": (None, _first_stage_group),
}
"""Poll functions of ``disaggregation/utils.py``: which of their arguments are the pollers (None: the first) and the
reduced group."""

REDUCERS = ("all_reduce_flags", "_all_reduce_polls", "poll_and_all_reduce")
"""Where ``disaggregation/utils.py`` reduces polls: since 0.5.23, in 0.5.22, before."""


_DEEPEST = 8


def names_in(function: Any, depth: int = 0) -> set[str]:
    """Return the names that a function's code uses beside its own variables: what it calls, and attributes.

    Those of the functions that it encloses are among them: a hook encloses the engine's function. depth: how deep this is.
    """
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    if not isinstance(names, tuple) or depth > _DEEPEST:
        return set()
    found = set(names)
    for cell in getattr(function, "__closure__", None) or ():
        found |= names_in(getattr(cell, "cell_contents", None), depth + 1)
    return found


GATE = "_apply_metadata_gate"
"""The metadata gate, in ``disaggregation/utils.py`` since 0.5.13."""


def lacks(role: str, modules: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return the protections that this rank's code lacks, by the names of their seams."""
    utils = module(UTILS, modules)
    return ("gate",) if role == "decode" and utils is not None and not hasattr(utils, GATE) else ()


def importers(name: str) -> Iterator[tuple[ModuleType, str]]:
    """Yield (module, attribute) for every engine module that holds ``utils.<name>``, utils itself first."""
    utils = module(UTILS)
    function = getattr(utils, name, None)
    if utils is None or function is None:
        return
    yield utils, name
    for key, found in list(sys.modules.items()):
        if found is not utils and key.startswith("sglang.") and getattr(found, name, None) is function:
            yield found, name


@dataclass(frozen=True)
class PollMethod:
    """A method that polls one queue. leave: the outer method that also removes from it, "" where it is the same one.

    picks: the method is given the queue it polls as its first argument and polls any of several.
    """

    queue: str
    owner: str
    method: str
    leave: str = ""
    picks: bool = False


POLL_METHODS = (
    PollMethod("decode.transfer", "DecodeTransferQueue", "pop_transferred"),
    PollMethod("decode.prealloc", "DecodePreallocQueue", "_update_handshake_waiters", leave="pop_preallocated"),
    PollMethod("prefill.bootstrap", "PrefillBootstrapQueue", "pop_bootstrapped"),
    PollMethod("prefill.inflight", "Scheduler", "process_disagg_prefill_inflight_queue"),
    # Pipeline stages up to 0.5.18 poll once more to tell the next stage what they saw.
    PollMethod("prefill.inflight", "Scheduler", "get_transferred_rids"),
    PollMethod("", "Scheduler", "get_rids", picks=True),
)

# ---- queues ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueuePath:
    """The attribute path of a queue, from the scheduler. age: the field of ``Req.time_stats`` that is set on entry.

    held: the path of a list of requests that will be put into the queue, () without one.
    """

    name: str
    roles: tuple[str, ...]
    path: tuple[str, ...]
    age: str = ""
    held: tuple[str, ...] = ()


QUEUE_PATHS = (
    QueuePath(
        "prefill.bootstrap",
        ("prefill",),
        ("disagg_prefill_bootstrap_queue", "queue"),
        "prefill_bootstrap_queue_entry_time",
    ),
    QueuePath(
        "prefill.inflight", ("prefill",), ("disagg_prefill_inflight_queue",), "prefill_transfer_queue_entry_time"
    ),
    QueuePath(
        "decode.pending",
        ("decode",),
        ("disagg_decode_prealloc_queue", "pending_reqs"),
        "decode_prealloc_queue_entry_time",
    ),
    QueuePath(
        "decode.prealloc", ("decode",), ("disagg_decode_prealloc_queue", "queue"), "decode_prealloc_queue_entry_time"
    ),
    QueuePath(
        "decode.transfer", ("decode",), ("disagg_decode_transfer_queue", "queue"), "decode_transfer_queue_entry_time"
    ),
    # held since 0.5.22: retracted for new weights, sent to prefill again when generation goes on
    QueuePath(
        "decode.retracted",
        ("decode",),
        ("disagg_decode_prealloc_queue", "retracted_queue"),
        held=("disagg_decode_prealloc_queue", "held_rebootstrap_reqs"),
    ),
    QueuePath("waiting", ("prefill", "decode", UNIFIED), ("waiting_queue",), "wait_queue_entry_time"),
)

BATCHES = ("running_batch", "cur_batch", "cur_batch_for_debug", "last_batch")
"""Attributes of the scheduler that hold a batch of requests; cur_batch became cur_batch_for_debug by 0.5.23."""
MICROBATCHES = ("mbs", "running_mbs")
"""Attributes of the scheduler that hold a list of batches: with pipeline stages, those of the other turns of the cycle."""

RUNNING_AGE = "forward_entry_time"


def own_list(queue: str) -> Callable[[Any], Any]:
    """Return a function from the owner of the poll method to the polled queue's list."""
    [path] = [path.path for path in QUEUE_PATHS if path.name == queue]
    return attrgetter(path[-1])


def follow(start: Any, path: tuple[str, ...]) -> Any:
    """Return the object at the end of an attribute path, None where a part is missing or None."""
    for name in path:
        start = getattr(start, name, None)
        if start is None:
            return None
    return start


def room_of(req: Any) -> int:
    """Return a request's room, 0 where it has none (a request that never had a prefill)."""
    return req.bootstrap_room or 0


def slot_of(holder: Any) -> int:
    """Return the metadata slot kept on ``holder`` (a Req on prefill, a DecodeRequest on decode), -1 without one."""
    slot = getattr(holder, "metadata_buffer_index", None)
    return -1 if slot is None else slot


# ---- who the rank is -------------------------------------------------------------------------------------------------

GROUPS = (
    ("attn-tp", ("attn_tp_cpu_group",)),
    ("attn-cp", ("attn_cp_cpu_group",)),
    ("tp", ("tp_cpu_group",)),
    ("pp", ("pp_group", "cpu_group")),
    ("world", ("world_group", "cpu_group")),
)
"""Gloo groups on the scheduler, in the order that decides where one group serves two purposes."""

DEVICE_GROUPS = (
    ("tp", ("tp_group", "device_group")),
    ("attn-tp", ("attn_tp_group", "device_group")),
    ("pp", ("pp_group", "device_group")),
)
"""Groups the model's own collectives use; named for "which call is it in", never compared."""


def coordinate(scheduler: Any, name: str, default: int) -> int:
    """Return a parallel rank or size.

    It is on the scheduler (to 0.5.12.post1), on its ``ps`` (0.5.13.post1) or in the runtime context (0.5.23).
    """
    for holder in (scheduler, getattr(scheduler, "ps", None), runtime_context()):
        try:
            value = getattr(holder, name, None)
        except Exception:  # the runtime context raises several kinds for what is not set, AssertionError in 0.5.15
            value = None
        if isinstance(value, int):
            return value
    return default


def runtime_context() -> Any:
    """Return the engine's parallel sizes and the like (0.5.23), None where there is no such thing."""
    get = getattr(module("sglang.srt.runtime_context"), "get_parallel", None)
    return get() if get is not None else None


def server_arg(scheduler: Any, name: str, default: Any) -> Any:
    """Return a server argument; ``default`` where this version has no such argument or it is None."""
    value = getattr(getattr(scheduler, "server_args", None), name, None)
    return default if value is None else value


def role_of(scheduler: Any) -> str:
    """Return ``prefill``, ``decode`` or ``unified``."""
    mode = getattr(scheduler, "disaggregation_mode", None)
    role = str(getattr(mode, "value", mode or server_arg(scheduler, "disaggregation_mode", "null")))
    return role if role in ("prefill", "decode") else UNIFIED


def engine_version(modules: Mapping[str, Any] | None = None) -> str:
    """Return the version the engine gives itself, for show only."""
    for name in ("sglang.version", "sglang"):
        version = getattr(module(name, modules), "__version__", None)
        if version is not None:
            return str(version)
    return ""


def kv_manager(scheduler: Any) -> Any:
    """Return the rank's KV manager, None without one."""
    for queue in ("disagg_prefill_bootstrap_queue", "disagg_decode_prealloc_queue"):
        manager = follow(scheduler, (queue, "kv_manager"))
        if manager is not None:
            return manager
    return None


# ---- metadata slots --------------------------------------------------------------------------------------------------


def slot_view(scheduler: Any) -> tuple[Any, Seam]:
    """Return a numpy view of ``MetadataBuffers.bootstrap_room[:, 0]`` and what was found; None where it can't be read.

    The buffers are CPU tensors, except with some memory pools (INTRA_NODE_NVLINK from 0.5.13 on) and on NPU:
    reading those would wait for the device behind work that may be stuck.
    """
    rooms = follow(scheduler, ("disagg_metadata_buffers", "bootstrap_room"))
    if rooms is None:
        return None, Seam("slots", False, "no MetadataBuffers.bootstrap_room")
    if rooms.device.type != "cpu":
        return None, Seam(
            "slots", False, f"MetadataBuffers are on {rooms.device}: not read, it could wait for the device"
        )
    return rooms[:, 0].numpy(), Seam("slots", True, f"MetadataBuffers.bootstrap_room, {len(rooms)} slots on cpu")


def zeroes_slots(modules: Mapping[str, Any] | None = None) -> list[Seam]:
    """Return whether a freed slot is set to 0 (0.5.13 on: ``pop_transferred`` then uses the buffers itself)."""
    method = getattr(getattr(module(DECODE, modules), "DecodeTransferQueue", None), "pop_transferred", None)
    there = "metadata_buffers" in names_in(method)
    return [
        Seam("slots.zeroed", there, "pop_transferred sets freed slots to 0" if there else "freed slots keep their room")
    ]
