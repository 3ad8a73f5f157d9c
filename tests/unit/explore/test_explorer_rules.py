"""The explorer's kernels against its plain rule, schedule by schedule: same schedules, same splits."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch

from pdctl.explore import batches
from pdctl.explore.batches import digits_of, every, sample
from pdctl.explore.kernels import Kernel
from pdctl.explore.policies import BITS, POLICIES, Policy
from pdctl.explore.rules import run
from pdctl.explore.space import Model, Schedule, Space, choices, space_of
from pdctl.report.findings import catalogue

CPU = torch.device("cpu")
MODELS = [Model(2, 1, 4), Model(3, 1, 3), Model(2, 2, 2, arrivals=2), Model(2, 1, 3, arrivals=3)]


def bits(policy: Policy, schedule: Schedule) -> int:
    return sum(BITS[split] for split in run(policy, schedule).splits)


def check(space: Space, numbers: list[int], parted: list[int], seed: int | None = None) -> None:
    for number, got in zip(numbers, parted, strict=True):
        schedule = space.schedule(digits_of(space, number, seed))
        assert got == bits(space.policy, schedule), schedule


def test_findings_policies_and_their_page_name_the_same_releases() -> None:
    for name, code in (("gate-zero", "PD101"), ("pp-filter-new", "PD152")):
        assert POLICIES[name].engine == f"SGLang >= {catalogue()[code].affects.removeprefix('<')}"
    page = (Path(__file__).parents[3] / "docs" / "explorer.md").read_text()
    for policy in POLICIES.values():
        if policy.engine.startswith("SGLang"):
            assert f"| `{policy.name}` | {policy.engine.replace('>=', '≥').replace('<=', '≤')} |" in page


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda p: p.name)
def test_every_schedule_of_small_models(policy: Policy, model: Model) -> None:
    space = space_of(policy, model)
    seen = 0
    for numbered in every(space, CPU):
        parted = Kernel(policy).run(numbered.batch).tolist()
        numbers = list(range(numbered.start, numbered.start + numbered.count))
        seen += len(numbers)
        if len(numbers) > 800:
            chosen = random.Random(5).sample(range(len(numbers)), 800)
            numbers, parted = [numbers[n] for n in chosen], [parted[n] for n in chosen]
        check(space, numbers, parted)
    assert seen == space.size


@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda p: p.name)
def test_sampled_schedules_of_a_model_too_large_to_exhaust(policy: Policy) -> None:
    space = space_of(policy, Model(5, 7, 6, arrivals=3))
    [numbered] = sample(space, CPU, 42, 400)
    check(space, list(range(400)), Kernel(policy).run(numbered.batch).tolist(), seed=42)


@pytest.mark.parametrize("most", [1, 7, 16, 100, 1000])
def test_small_batches_are_the_same_schedules_in_the_same_order(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """However a batch cuts the digits: whole ones, a part of one, or a single schedule."""
    space = space_of(POLICIES["no-gate"], Model(2, 1, 3, arrivals=2))
    whole = [Kernel(space.policy).run(n.batch).tolist() for n in every(space, CPU)]
    monkeypatch.setattr(batches, "CPU_BATCH", most)
    monkeypatch.setattr(batches, "CPU_BYTES", 1 << 30)
    parts = [(n.start, n.count, Kernel(space.policy).run(n.batch).tolist()) for n in every(space, CPU)]
    assert max(count for _, count, _ in parts) <= most
    assert [start for start, _, _ in parts] == list(
        itertools.accumulate((count for _, count, _ in parts[:-1]), initial=0)
    )
    assert list(itertools.chain(*(p for *_, p in parts))) == list(itertools.chain(*whole))


def test_a_sample_is_the_same_in_any_batch_and_differs_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(POLICIES["gate-zero-unzeroed"], Model(4, 6, 5))

    def draw(seed: int) -> torch.Tensor:
        return torch.cat([n.batch.first.clone() for n in sample(space, CPU, seed, 5000)], dim=2)

    one, other = draw(7), draw(8)
    monkeypatch.setattr(batches, "CPU_BATCH", 333)
    assert torch.equal(draw(7), one)
    assert (one != other).float().mean() > 0.5


def test_a_sample_draws_every_choice_about_equally_often() -> None:
    space = space_of(POLICIES["no-gate"], Model(2, 2, 3))
    [numbered] = sample(space, CPU, 3, 64_000)
    options = choices(space.policy, 3)
    batch = numbered.batch
    for rank, request in itertools.product(range(2), range(2)):
        rows = zip(*(t[rank, request].tolist() for t in (batch.first, batch.second, batch.flag)), strict=True)
        counts = dict.fromkeys(options, 0)
        for cell in rows:
            counts[cell] += 1  # type: ignore[index]  # a Cell is a tuple
        assert all(3600 < count < 4400 for count in counts.values()), counts  # 4000 ± 6.5 standard deviations
    pairs = torch.stack([batch.first[0, 0].float(), batch.first[1, 0].float()])
    assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.03


def test_choices_that_no_rank_can_tell_apart_are_one() -> None:
    """16 choices with slots that may be stale, 10 without: every (Success, landing) pair of 3 rounds falls into one."""
    assert len(choices(POLICIES["no-gate"], 3)) == 16
    assert len(choices(POLICIES["gate-zero"], 3)) == 10
    assert len(set(choices(POLICIES["gate-expected"], 5))) == 36


def test_polls_are_counted_as_the_plain_rule_does_them() -> None:
    for policy in POLICIES.values():
        space = space_of(policy, Model(2, 1, 3, arrivals=2))
        kernel = Kernel(policy, count_polls=True)
        for numbered in every(space, CPU):
            kernel.run(numbered.batch)
        outcomes = [run(policy, space.schedule(space.digits(n))) for n in range(space.size)]
        assert kernel.polls == sum(len(entries) for o in outcomes for r in o.rounds for entries in r.lists), policy
