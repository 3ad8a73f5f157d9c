"""The polls that a collective is given and gives back, as the hook around all_reduce reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pdctl.agent.rounds import narrow
from pdctl.engines.base import Hooks
from pdctl.engines.polls import PollHooks
from pdctl.engines.reductions import reader

LENGTHS = (1, 16, 64, 65, 2000)


class Tap:
    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes, int]] = []

    def entering(self, group: int, data: Any, width: int) -> None:
        self.seen.append(("entering", narrow(data, width), width))

    def left(self, group: int, data: Any, width: int) -> None:
        self.seen.append(("left", narrow(data, width), width))


def hooked() -> tuple[Any, Any, Tap, Hooks]:
    """A module whose all_reduce takes 1 from every poll, hooked; the hooks' state; the tap; the hooks."""
    module = SimpleNamespace(
        dist=SimpleNamespace(all_reduce=lambda tensor, op=None, group=None, async_op=False: tensor.sub_(1))
    )
    hooks, tap = Hooks(), Tap()
    polls: Any = PollHooks(hooks, lambda group: 0)
    polls.collective(module)
    polls.polling = tap
    return module, polls, tap, hooks


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_what_goes_in_and_what_comes_out(length: int, dtype: torch.dtype) -> None:
    module, _, tap, hooks = hooked()
    tensor = torch.arange(length).remainder(4).add(1).to(dtype)
    before = bytes(tensor.tolist())
    module.dist.all_reduce(tensor, group="g")
    after = bytes(tensor.tolist())
    assert before != after
    assert tap.seen == [("entering", before, tensor.element_size()), ("left", after, tensor.element_size())]
    assert not hooks.errors()


@pytest.mark.parametrize("length", [4, 100])
def test_polls_with_gaps_between_them(length: int) -> None:
    module, _, tap, hooks = hooked()
    module.dist.all_reduce(torch.full((2 * length,), 3, dtype=torch.uint8)[::2], group="g")
    assert [data for _, data, _ in tap.seen] == [bytes([3]) * length, bytes([2]) * length]
    assert not hooks.errors()


def test_polls_on_a_device_are_reduced_all_the_same() -> None:
    module, _, tap, hooks = hooked()
    module.dist.all_reduce(torch.ones(4, dtype=torch.uint8, device="meta"), group="g")
    assert tap.seen == []
    assert hooks.errors() == {"collective": 1}


def test_other_collectives_go_straight_through() -> None:
    module, polls, tap, _ = hooked()
    polls.polling = None
    tensor = torch.tensor([3, 4])
    module.dist.all_reduce(tensor, group="g")
    assert tensor.tolist() == [2, 3]
    assert tap.seen == []


def test_what_fails_before_the_collective_does_not_reach_the_engine() -> None:
    module, polls, tap, hooks = hooked()
    polls.polling, polls.current, polls._queue = None, tap, [1, 2]  # this tap can't be told who is polled
    tensor = torch.tensor([3, 4])
    module.dist.all_reduce(tensor, group="g")
    assert tensor.tolist() == [2, 3]
    assert hooks.errors() == {"collective": 1}


def test_a_list_that_a_stage_polls_for_the_others_is_no_round_while_it_is_empty() -> None:
    class Turns(Tap):
        def visit(self, queue: Any) -> None:
            self.seen.append(("visit", bytes(queue), 0))

        def leave(self, queue: Any) -> None:
            self.seen.append(("leave", bytes(queue), 0))

    class Stage:
        def get_rids(self, queue: list[int]) -> list[int]:
            tensor = torch.tensor(queue, dtype=torch.uint8)
            module.dist.all_reduce(tensor, group="g")
            return tensor.tolist()

    module, polls, _, hooks = hooked()
    polls.polling, tap = None, Turns()
    tap.polled = lambda pollers: None  # type: ignore[attr-defined]
    polls.picking_method(Stage, "get_rids", "rounds.get_rids", lambda _, queue: (tap, queue))
    assert Stage().get_rids([]) == []
    assert tap.seen == [("visit", b"", 0)]
    assert Stage().get_rids([3, 4]) == [2, 3]
    assert [name for name, _, _ in tap.seen[1:]] == ["visit", "entering", "left", "leave"]
    assert not hooks.errors()


@pytest.mark.parametrize(
    ("numbers", "read"),
    [
        (torch.tensor([0, 1, 254]), [0, 1, 254]),
        (torch.tensor([-1, 255, 1 << 40]), [0, 254, 254]),
        (torch.tensor([True, False]), [1, 0]),
        (torch.tensor([[1, 2], [3, 4]]).t(), [1, 3, 2, 4]),
        (torch.tensor(7), [7]),
    ],
)
def test_what_is_reduced_is_read_as_it_is_at_that_time(numbers: torch.Tensor, read: list[int]) -> None:
    values = reader(numbers)
    assert values is not None
    assert list(values()) == read
    numbers.fill_(1)
    assert list(values()) == [1] * len(read)
    assert reader(torch.tensor([0.5])) is None
