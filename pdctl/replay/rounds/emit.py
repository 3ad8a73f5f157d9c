"""Writes a finding as a self-contained test of the engine's own transfer queue, fit for a public bug report. Pure."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pdctl
from pdctl.replay.rounds.plan import HAS_ROWS, Plan
from pdctl.replay.rounds.simulate import parting

AFTER = 3
"""Turns after the one in which the last metadata lands."""
MOST = 8
"""Requests in a test, at most."""


class NothingToShow(ValueError):  # noqa: N818  # nothing is wrong
    """Why there is no test to write, in words."""


def source(plan: Plan) -> str:
    """Return the test's source. Raises NothingToShow where the ranks stay in step even without a gate."""
    assert plan.queue == HAS_ROWS
    parted = parting(plan, gate=False)
    if parted is None:
        raise NothingToShow("the ranks' lists stay equal in all its rounds, and only lists that differ make a test")
    script = _script(plan, parted.round, parted.lists)
    template = files("pdctl.replay.rounds").joinpath("emitted_test.txt").read_text()
    where = f"{plan.title}, rounds {plan.ordinals[0]} to {plan.ordinals[-1]}"
    return (
        template.replace("@VERSION@", pdctl.__version__)
        .replace("@ENGINE@", plan.engine or "an engine")
        .replace("@WHERE@", where)
        .replace('"@SCRIPT@"', _literal(script))
    )


def _script(plan: Plan, number: int, lists: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    """Return what each rank's requests do, turn by turn: those that are there when the ranks part."""
    odd = set().union(*map(set, lists)) - set(lists[0]).intersection(*map(set, lists[1:]))
    others = [r for of in lists for r in of if r not in odd]
    chosen = dict.fromkeys([*sorted(odd), *others][:MOST])
    size = len(plan.ranks)
    events: list[set[int]] = [
        {
            n
            for n, s in rank.steps.items()
            if chosen.keys() & {*s.arrive, *(r for r, _ in s.polls), *(r for r, _ in s.rows)}
        }
        for rank in plan.ranks
    ]
    turns = {n: turn for turn, n in enumerate(sorted({*set().union(*events), number}))}
    requests = []
    for request in chosen:
        of: dict[str, Any] = {"room": plan.requests[request].room, "arrives": [], "polls": [], "rows": []}
        for place in range(size):
            steps = plan.ranks[place].steps
            of["arrives"].append(next((turns[n] for n, s in sorted(steps.items()) if request in s.arrive), 0))
            of["polls"].append([[turns[n], v] for n, s in sorted(steps.items()) for r, v in s.polls if r == request])
            of["rows"].append([[turns[n], v] for n, s in sorted(steps.items()) for r, v in s.rows if r == request])
            landed = of["rows"][place][-1][1] if of["rows"][place] else of["room"]
            if not landed:  # the trace ends before; here it comes late, and no more than that
                of["rows"][place].append([len(turns) + 1, of["room"]])
        requests.append(of)
    return {"ranks": size, "turns": len(turns) + AFTER, "requests": requests}


def _literal(script: dict[str, Any]) -> str:
    """Return the script as Python, a line for each field of a request."""
    lines = ["{", f'    "ranks": {script["ranks"]},', f'    "turns": {script["turns"]},', '    "requests": [']
    for request in script["requests"]:
        lines += [
            "        {",
            *(f'            "{name}": {json.dumps(value)},' for name, value in request.items()),
            "        },",
        ]
    return "\n".join([*lines, "    ],", "}"])
