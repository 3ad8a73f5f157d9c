"""Start the agent in an SGLang scheduler process, from the engine's plug-in group or from a start-up file.

Both ways end in :func:`after_scheduler`, called with each scheduler right after its ``__init__``: the process groups,
queues and buffers exist then, and the event loop has not begun. Never earlier: a thread started while modules are still
being imported has broken programs.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

SCHEDULER_MODULE = "sglang.srt.managers.scheduler"
FLIGHT_RECORDER_ENTRIES = 2000
"""What NCCL groups have anyway."""

_wrapped: set[type] = set()


def switched_off() -> bool:
    """Return whether PDCTL_AGENT=off keeps the agent out of this process."""
    return os.environ.get("PDCTL_AGENT", "").strip().lower() in ("0", "off", "no", "false")


def register() -> None:
    """Entry point ``pdctl`` of group ``sglang.srt.plugins`` (SGLang ≥ 0.5.11), called once in each engine process.

    ``run_scheduler_process`` is defined in the scheduler's module, so a process that has not loaded that module is no
    scheduler (a detokenizer, a controller): nothing is hooked there, since applying a hook would import the module.
    """
    if switched_off() or SCHEDULER_MODULE not in sys.modules:
        return
    switch_flight_recorder_on()
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def started(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        after_scheduler(scheduler, "plugin")
        return result

    HookRegistry.register(f"{SCHEDULER_MODULE}.Scheduler.__init__", started, HookType.AFTER)


def scheduler_imported(module: Any) -> None:
    """Wrap ``Scheduler.__init__`` of the module that was just imported; the start-up file's import hook calls it."""
    scheduler = getattr(module, "Scheduler", None)
    if scheduler is None or scheduler in _wrapped or switched_off():
        return
    _wrapped.add(scheduler)
    switch_flight_recorder_on()
    scheduler.__init__ = _then_start(scheduler.__init__)


def _then_start(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        after_scheduler(self, "run")

    return __init__


def after_scheduler(scheduler: Any, loaded_by: str) -> None:
    """Start the agent of this process for ``scheduler``, unless it runs already. Never raises."""
    try:
        from pdctl.agent.core import Agent
        from pdctl.engines.sglang.adapter import SGLangAdapter

        if Agent.current is None and not switched_off():
            Agent.start(SGLangAdapter(scheduler), loaded_by=loaded_by)
    except Exception as error:
        import logging

        logging.getLogger("pdctl").info("pdctl agent is off: %s: %s", type(error).__name__, error)


def switch_flight_recorder_on() -> None:
    """Switch PyTorch's flight recorder on, unless PDCTL_FLIGHT_RECORDER=off or the variable is set already.

    It must be set before the first process group is made. docs/adr/0003-flight-recorder.md says what it costs.
    """
    if os.environ.get("PDCTL_FLIGHT_RECORDER", "").strip().lower() not in ("0", "off", "no", "false"):
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(FLIGHT_RECORDER_ENTRIES))
