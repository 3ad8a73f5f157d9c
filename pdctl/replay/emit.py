"""Writes a finding as a self-contained test of the engine's own transfer queue, fit for a public bug report. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import pdctl
from pdctl.replay.plan import HAS_ROWS, Plan, Step
from pdctl.replay.simulate import parting
from pdctl.report.escaping import in_source

AFTER = 3
"""Turns after the one in which the last metadata lands."""
MOST = 8
"""Requests in a test, at most."""


class NothingToShow(ValueError):  # noqa: N818  # nothing is wrong
    """Why there is no test to write, in words."""


def source(plan: Plan) -> str:
    """Return the test's source. Raises NothingToShow if the ranks stay in step even without a gate."""
    assert plan.queue == HAS_ROWS
    parted = parting(plan, gate=False)
    if parted is not None:
        lists = parted.lists
        odd = set().union(*map(set, lists)) - set(lists[0]).intersection(*map(set, lists[1:]))
        others = [r for of in lists for r in of if r not in odd]
        script = _script(plan, parted.round, list(dict.fromkeys([*sorted(odd), *others][:MOST])))
    else:
        script = _of_one_slot(plan)
    template = files("pdctl.replay").joinpath("emitted_test.txt").read_text()
    where = f"{plan.title}, rounds {plan.ordinals[0]} to {plan.ordinals[-1]}"
    values = {
        "@VERSION@": in_source(pdctl.__version__),
        "@ENGINE@": in_source(plan.engine or "an engine"),
        "@WHERE@": in_source(where),
        '"@SCRIPT@"': _literal(script),
    }
    return re.sub('"@SCRIPT@"|@[A-Z]+@', lambda found: values[found[0]], template)


class Reuse(NamedTuple):
    """A round in which ranks decided differently of ``request``, whose slot held the room of ``former`` on one of them."""

    round: int
    request: int
    former: int


def _of_one_slot(plan: Plan) -> dict[str, Any]:
    """Return the script of a slot that still held its former owner's room. Raises NothingToShow where there is none."""
    found = _reuse(plan)
    former, room = plan.requests[found.former].room, plan.requests[found.request].room
    script = _script(plan, found.round, [found.former, found.request])
    script["slots"] = 1
    for request in script["requests"]:
        # Whether the former owner's room is still there when the slot is taken anew is the engine's doing.
        late = script["turns"] - AFTER + 1
        of = [[row for row in rows if request["room"] != room or row[1] != former] for rows in request["rows"]]
        request["rows"] = [rows or [[late, request["room"]]] for rows in of]
    return script


def _reuse(plan: Plan) -> Reuse:
    for number in sorted({n for rank in plan.ranks for n in rank.steps}):
        steps = [rank.steps.get(number, Step()) for rank in plan.ranks]
        for request in dict.fromkeys(r for step in steps for r, _ in step.acts):
            if len({action for step in steps for r, action in step.acts if r == request}) < 2:
                continue
            for place, rank in enumerate(plan.ranks):
                held = [v for n, s in sorted(rank.steps.items()) if n <= number for r, v in s.rows if r == request]
                former = _owner(plan, held[-1] if held else 0, place, request)
                if former is not None:
                    return Reuse(number, request, former)
    raise NothingToShow(
        "the ranks' lists stay equal in all its rounds, and none of them found the room of a former owner in a slot, whose"
        " request is in the trace as well"
    )


def _owner(plan: Plan, room: int, place: int, request: int) -> int | None:
    """Return the request with ``room`` that had the slot of ``request`` on a rank, None where there is none."""
    mine = plan.requests[request]
    for number, other in enumerate(plan.requests):
        if room and number != request and other.room == room and other.slots[place] == mine.slots[place]:
            return number
    return None


def _script(plan: Plan, number: int, chosen: Sequence[int]) -> dict[str, Any]:
    """Return what each rank's ``chosen`` requests do, turn by turn, up to round ``number``, in which the ranks part."""
    size = len(plan.ranks)
    events: list[set[int]] = [
        {
            n
            for n, s in rank.steps.items()
            if set(chosen) & {*s.arrive, *(r for r, _ in s.polls), *(r for r, _ in s.rows)}
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
    return {"ranks": size, "turns": len(turns) + AFTER, "slots": len(requests) + 1, "requests": requests}


def _literal(script: dict[str, Any]) -> str:
    """Return the script as Python, a line for each field of a request."""
    lines = ["{", *(f'    "{name}": {script[name]},' for name in ("ranks", "turns", "slots")), '    "requests": [']
    for request in script["requests"]:
        lines += [
            "        {",
            *(f'            "{name}": {value!r},' for name, value in request.items()),
            "        },",
        ]
    return "\n".join([*lines, "    ],", "}"])
