"""The scheduler on the main thread's stack, among all that is there with it: by what it has, as each version has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pdctl.agent.injected import find_scheduler

SCHEDULER = "sglang.srt.managers.scheduler"
COMPONENTS = "sglang.srt.managers.scheduler_components.idle_sleeper"


class Shape:
    """An object with attributes of its own, and loops that lead to where a test looks from."""

    def __init__(self, **own: Any) -> None:
        self.__dict__.update(own)

    def maybe_sleep(self, look: Callable[[], Any]) -> Any:
        return look()

    def event_loop_normal_disagg_decode(self, inner: Any, look: Callable[[], Any]) -> Any:
        return look() if inner is None else inner.maybe_sleep(look)


class Greedy(Shape):
    """Has whatever it is asked for, as a mock has."""

    def __getattr__(self, name: str) -> Any:
        return name


def of_module(module: str, name: str, base: type = Shape) -> type:
    """Return a class that is said to be of this module."""
    return type(name, (base,), {"__module__": module})


def run_event_loop_supervisor(scheduler: Any, inner: Any, look: Callable[[], Any]) -> Any:
    return scheduler.event_loop_normal_disagg_decode(inner, look)


HAS = {"server_args": object(), "waiting_queue": [], "attn_tp_cpu_group": object()}
INSIDE: dict[str, Any] = {
    "loaded": None,
    "idle to 0.5.12": of_module(SCHEDULER, "IdleSleeper")(poller=object(), last_empty_time=0.0),
    "idle from 0.5.13": of_module(COMPONENTS, "IdleSleeper")(poller=object(), last_empty_time=0.0),
    "idle from 0.5.18, in Rust": of_module(COMPONENTS, "RustServerIdleSleeper")(server=object()),
    "a helper that lends itself the scheduler's settings": of_module(SCHEDULER, "Helper")(server_args=object()),
    "in the model": of_module("sglang.srt.model_executor.model_runner", "ModelRunner")(
        server_args=object(), tp_cpu_group=object()
    ),
    "a mock": of_module(SCHEDULER, "Scheduler", Greedy)(),
    "a scheduler of images": of_module("sglang.multimodal_gen.runtime.managers.scheduler", "Scheduler")(
        server_args=object(), waiting_queue=[], worker=object()
    ),
}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("module", [SCHEDULER, "somebody.elses"])
def test_the_scheduler_is_found(module: str, inside: str) -> None:
    scheduler = of_module(module, "Scheduler")(**HAS)
    assert scheduler.event_loop_normal_disagg_decode(INSIDE[inside], find_scheduler) is scheduler
    assert run_event_loop_supervisor(scheduler, INSIDE[inside], find_scheduler) is scheduler


@pytest.mark.parametrize("inside", [name for name, one in INSIDE.items() if one is not None])
def test_what_is_no_scheduler_is_not_taken_for_one(inside: str) -> None:
    assert INSIDE[inside].maybe_sleep(find_scheduler) is None


@pytest.mark.parametrize("missing", HAS)
def test_a_scheduler_that_is_still_being_made_is_none_yet(missing: str) -> None:
    scheduler = of_module(SCHEDULER, "Scheduler")(**{name: value for name, value in HAS.items() if name != missing})
    assert scheduler.event_loop_normal_disagg_decode(None, find_scheduler) is None


def test_the_group_of_all_tp_ranks_will_do() -> None:
    scheduler = of_module(SCHEDULER, "Scheduler")(server_args=object(), waiting_queue=[], tp_cpu_group=object())
    assert scheduler.event_loop_normal_disagg_decode(None, find_scheduler) is scheduler
