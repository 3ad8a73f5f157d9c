"""How the agent gets into a rank that runs already: on a thread started from outside (``pdctl attach --inject-agent``).

What goes wrong is left in a file for whoever started the thread; the engine's own output gets no word of it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

LOADED_BY = "attach"
REFUSAL_SUFFIX = ".refused"
"""File in the run directory with the reason why no agent started: ``<pid>-<start>.refused``."""
_SCHEDULERS = {"sglang.srt.managers.scheduler": "sglang", "pdctl.lab.engine.scheduler": "lab"}


def start(options: Mapping[str, str]) -> None:
    """Start the agent of this process for the scheduler on its main thread. Never raises.

    options: variables of pdctl's (PDCTL_RUN_DIR, PDCTL_ARM, …) that hold instead of this process's own, and ``refused``: the
    file to write to when no agent starts.
    """
    try:
        why = _start({**os.environ, "PDCTL_AGENT": "on", **options})
    except Exception as error:  # the engine must not notice
        why = f"{type(error).__name__}: {error}"
    if why:
        try:
            Path(options["refused"]).write_text(why)
        except (OSError, KeyError):
            pass


def _start(env: Mapping[str, str]) -> str:
    from pdctl.agent.core import Agent

    before = Agent.current
    if before is not None:
        return f"it has an agent already ({before.identity.loaded_by})"
    scheduler = find_scheduler()
    if scheduler is None:
        return "no scheduler was found on its main thread: it is starting, ending, or no SGLang scheduler"
    said: list[str] = []
    agent = Agent.start(_adapter(scheduler), loaded_by=LOADED_BY, env=env, says=said.append)
    return "" if agent is not None else (said or ["it did not start"])[-1]


def find_scheduler() -> Any:
    """Return the scheduler whose loop the main thread is in, None without one."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    found = None
    while frame is not None and found is None:
        # Only what the code of the frame has by these names: other frames' locals are not looked at.
        if {"self", "scheduler"} & set(frame.f_code.co_varnames):
            there = frame.f_locals
            found = next((there[name] for name in ("scheduler", "self") if _engine(there.get(name))), None)
        frame = frame.f_back
    return found


def _engine(one: Any) -> str:
    return next((_SCHEDULERS[cls.__module__] for cls in type(one).__mro__ if cls.__module__ in _SCHEDULERS), "")


def _adapter(scheduler: Any) -> Any:
    if _engine(scheduler) == "lab":
        from pdctl.engines.lab.adapter import LabAdapter

        return LabAdapter(scheduler)
    from pdctl.engines.sglang.adapter import SGLangAdapter

    return SGLangAdapter(scheduler)
