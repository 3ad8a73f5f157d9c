"""Start the agent in a rank that runs already, on a thread started from outside (``pdctl attach --inject-agent``).

The result goes into a file for the process that started the thread. Nothing goes to the engine's own output. If the file is
removed before the agent has started, the agent does not start.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdctl.protocol.paths import Registration

RESULT_SUFFIX = ".attach"
"""File in the run directory that says what came of it, ``<pid>-<start>.<token>.attach``: blank until then, then STARTED or the
reason why no agent started."""
STARTED = "started"
ALREADY = "it has an agent already"
LACKS = "lacks"
"""How it begins where a module is missing: then come its name and, in a second line, this process's Python."""
NEEDS = ("msgspec", "numpy")
"""Packages that an agent needs in the process's own Python, besides pdctl."""
ROOM = 2000
"""Characters in it: its place is taken before anything is done, for a disk may be full."""
_SCHEDULERS = {
    "sglang": (("server_args",), ("waiting_queue",), ("attn_tp_cpu_group", "tp_cpu_group")),
    "lab": (("config",), ("waiting_queue",), ("attn_tp_cpu_group",), ("model_runner",)),
}
"""By what each engine's scheduler is known: its own attributes, one of each row. Its helpers live in the same module and lend
it their methods, and other programs call a class so: neither module nor name tells.
"""


def start(options: Mapping[str, str]) -> None:
    """Start the agent of this process for the scheduler on its main thread. Never raises.

    options: variables of pdctl's (PDCTL_RUN_DIR, PDCTL_ARM, …) that hold instead of this process's own, and ``result``: the
    file to write to, without which nothing is started.
    """
    result = Path(options["result"])
    if not result.exists():
        return
    try:
        importlib.invalidate_caches()  # what was missing the last time may be there now
        why = _start({**os.environ, "PDCTL_AGENT": "on", **options}) or STARTED
    except ModuleNotFoundError as error:
        why = f"{LACKS} {error.name}\n{sys.executable or ''}"
    except Exception as error:  # the engine must not notice
        why = f"{type(error).__name__}: {error}"
    try:
        with result.open("r+") as file:  # its place on the disk was taken before
            file.write(why.ljust(ROOM)[:ROOM])
    except OSError:
        pass


def _start(env: Mapping[str, str]) -> str:
    from pdctl.agent.core import Agent
    from pdctl.protocol.model import ATTACHED

    before = Agent.current
    if before is not None:
        return already(before.registration)
    scheduler = find_scheduler()
    if scheduler is None:
        return "no scheduler was found on its main thread: it is starting, ending, or no SGLang scheduler"
    said: list[str] = []
    adapter = _adapter(scheduler)
    agent = Agent.start(adapter, loaded_by=ATTACHED, env=env, says=said.append)
    if agent is None:
        return (said or ["it did not start"])[-1]
    if agent.adapter is not adapter:  # another one was quicker
        return already(agent.registration)
    if not agent.registration.endpoint:  # nobody could ask it, nor take it out
        agent.stop()
        return agent.registration.endpoint_off
    return ""


def already(registration: Registration) -> str:
    """Describe a process's existing agent: its socket, and whether it takes faults."""
    i = registration.identity
    armed = "armed" if i.armed else "not armed"
    return f"{ALREADY} ({i.loaded_by}, {armed}) at {registration.endpoint or registration.endpoint_off}"


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


def engine_of(attributes: Collection[str]) -> str:
    """Return the engine whose scheduler has these attributes of its own, "" if they are no scheduler's."""
    return next(
        (engine for engine, rows in _SCHEDULERS.items() if all(any(n in attributes for n in row) for row in rows)), ""
    )


def _engine(one: Any) -> str:
    return engine_of(getattr(one, "__dict__", ()))


def _adapter(scheduler: Any) -> Any:
    if _engine(scheduler) == "lab":
        from pdctl.engines.lab.adapter import LabAdapter

        return LabAdapter(scheduler)
    from pdctl.engines.sglang.adapter import SGLangAdapter

    return SGLangAdapter(scheduler)
