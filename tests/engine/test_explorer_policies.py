"""The explorer's policies against the engine's own functions: same schedules, same polls sent, same MIN, same actions."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pdctl.explore.policies import POLICIES, Policy
from pdctl.explore.rules import run
from pdctl.explore.space import Model, Schedule, space_of
from pdctl.protocol.model import Action
from tests.engine.light.host import LightHost

pytestmark = pytest.mark.engine

PROGRAM = Path(__file__).parent / "light" / "explored.py"

RULES = [
    ("0.5.10.post1", "no-gate"),
    ("0.5.12.post1", "no-gate"),
    ("0.5.13.post1", "gate-zero"),
    ("0.5.23", "gate-zero"),
    # Schedules with former owners' rooms in slots: what the engine's gate does with those, whoever put them there.
    ("0.5.13.post1", "gate-zero-unzeroed"),
    ("0.5.12.post1", "pp-filter-old"),
    ("0.5.13.post1", "pp-filter-new"),
]


def schedules(policy: Policy) -> list[Schedule]:
    """All with one request on two ranks, and some larger ones of all kinds."""
    small = space_of(policy, Model(2, 1, 2, arrivals=2))
    chosen = [small.schedule(small.digits(n)) for n in range(small.size)]
    pick = random.Random(26394)
    for model in (Model(2, 3, 3, arrivals=2), Model(3, 2, 4, arrivals=1)):
        space = space_of(policy, model)
        chosen += [space.schedule(space.digits(pick.randrange(space.size))) for _ in range(60)]
    if policy.machine == "transfer":  # most random ones part at once: these go on for longer
        late = [s for s in chosen if run(policy, s).diverged != 0]
        assert len(late) > 50
    return chosen


@pytest.mark.parametrize(("version", "name"), RULES)
def test_the_engine_does_what_the_policy_says(name: str, host: LightHost, tmp_path: Path) -> None:
    policy = POLICIES[name]
    chosen = schedules(policy)
    order = {
        "machine": policy.machine,
        "schedules": [{"rounds": s.rounds, "arrivals": s.arrivals, "cells": s.cells} for s in chosen],
    }
    done = host.program(tmp_path, PROGRAM, stdin=json.dumps(order))
    assert done.returncode == 0, done.stderr[-4000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    parted = 0
    for schedule, engines in zip(chosen, answers, strict=True):
        outcome = run(policy, schedule)
        ours = [
            [[[e.request, e.gated, e.reduced, int(e.action)] for e in entries] for entries in done.lists]
            for done in outcome.rounds
        ]
        assert engines[: len(ours)] == ours, schedule
        parted += bool(outcome.splits)
        if policy.machine == "transfer":
            assert len(engines) == len(ours), schedule  # the engine's ranks part in the same round, or neither does
    assert bool(parted) == (name in ("no-gate", "gate-zero-unzeroed", "pp-filter-old"))
    assert {int(action) for action in Action} >= {a for rounds in answers for r in rounds for ls in r for *_, a in ls}
