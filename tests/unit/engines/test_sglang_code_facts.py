"""What the loaded code of an engine says of itself, in the shapes of its versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pdctl.engines.sglang import seams
from pdctl.engines.sglang.elements import poll_type, reduced_type

TO_18 = """
def poll_and_all_reduce(pollers, gloo_group):
    tensor_to_reduce = torch.tensor(polls, dtype=torch.uint8, device="cpu")
    dist.all_reduce(tensor_to_reduce, op=dist.ReduceOp.MIN, group=gloo_group)
"""
IN_22 = """
def _all_reduce_polls(polls, group):
    if not polls or dist.get_world_size(group) == 1:
        return polls
    tensor_to_reduce = torch.tensor(polls, dtype=torch.uint8, device="cpu")
    dist.all_reduce(tensor_to_reduce, op=dist.ReduceOp.MIN, group=group)
def poll_and_all_reduce(pollers, gloo_group):
    return _all_reduce_polls(polls, gloo_group)
"""
FROM_23 = """
def all_reduce_flags(flags, group, op):
    tensor_to_reduce = torch.tensor(flags, dtype=torch.int32, device="cpu")
    dist.all_reduce(tensor_to_reduce, op=op, group=group)
def _all_reduce_polls(polls, group):
    return all_reduce_flags(flags=polls, group=group, op=dist.ReduceOp.MIN)
def poll_and_all_reduce(pollers, gloo_group):
    return _all_reduce_polls(polls, gloo_group)
"""
ELSEWHERE = "def poll_and_all_reduce(pollers, group): return group.reduce(pollers)"


def loaded(source: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(source, found)
    return {seams.UTILS: SimpleNamespace(**{**found, **more})}


@pytest.mark.parametrize(
    ("source", "element"), [(TO_18, "uint8"), (IN_22, "uint8"), (FROM_23, "int32"), (ELSEWHERE, ""), ("", "")]
)
def test_the_code_tells_the_type_of_reduced_polls(source: str, element: str) -> None:
    assert reduced_type(loaded(source)) == element


def test_a_hook_hides_nothing_of_the_code() -> None:
    modules = loaded(TO_18)
    utils = modules[seams.UTILS]

    def hook(original: Any) -> Any:
        def hooked(*args: Any) -> Any:
            return original(*args)

        return hooked

    utils.poll_and_all_reduce = hook(hook(utils.poll_and_all_reduce))
    assert reduced_type(modules) == "uint8"


def test_what_encloses_itself_or_an_odd_object_is_read_to_an_end() -> None:
    def turning(odd: Any) -> Any:
        def function() -> Any:
            return function, odd, torch.uint8  # type: ignore[name-defined]  # noqa: F821

        return function

    class Odd:
        def __getattr__(self, name: str) -> Any:
            return self

    assert seams.names_in(turning(Odd())) == {"torch", "uint8"}


@pytest.mark.parametrize(
    ("version", "element"),
    [("0.5.10.post1", "uint8"), ("0.5.18", "uint8"), ("0.5.22", "uint8"), ("0.5.23", "int32"), ("", "uint8")],
)
def test_of_a_recording_that_does_not_tell(version: str, element: str) -> None:
    assert poll_type(version) == element


@pytest.mark.parametrize("kind", [AssertionError, RuntimeError, ValueError, KeyError])
def test_a_coordinate_that_the_engine_has_not_set_is_the_default(kind: type[Exception]) -> None:
    class Context:
        @property
        def attn_dp_rank(self) -> int:
            raise kind("not initialized")

    assert seams.coordinate(Context(), "attn_dp_rank", 3) == 3
    assert seams.coordinate(SimpleNamespace(ps=SimpleNamespace(tp_rank=2)), "tp_rank", 0) == 2
