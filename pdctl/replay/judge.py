"""Judge an execution: as recorded, different, or diverged; and the effect on the collective. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from pdctl.probes.queues.formatting import ACTIONS, names
from pdctl.replay.model import Difference, End, ReplayRun, Worked
from pdctl.replay.plan import Plan
from pdctl.replay.position import Where
from pdctl.replay.worker_log import Line, Options


def judge(plan: Plan, options: Options, worked: Sequence[Worked]) -> ReplayRun:
    """Return the verdict of one execution of ``plan``; ``worked`` in the order of its ranks."""
    ends = tuple(_end(plan, place, work) for place, work in enumerate(worked))
    parted = _parted(plan, worked)
    verdict, at = "AS RECORDED", -1
    rooms: tuple[int, ...] = ()
    sides: tuple[Difference, ...] = ()
    if parted is not None:
        number, sides = parted
        verdict, at = "DIVERGES", ordinal(plan, number)
        rooms = tuple(dict.fromkeys(side.room for side in sides))
        text = f"{_said(sides)}. {_outcome(ends)}"
    elif any(end.how != "done" for end in ends):
        verdict = "FAILED"  # a worker was ended, or stalled, and the ranks were in step until then
        at = min(end.round for end in ends if end.how != "done")
        text = _outcome(ends)
    else:
        changed = _first_change(plan, worked)
        if changed is not None:
            number, sides = changed
            verdict, at = "DIFFERS", ordinal(plan, number)
            rooms = tuple(dict.fromkeys(side.room for side in sides))
            text = f"{_against(sides)}; the ranks stay in step"
        else:
            text = "every request left in the round and the way it did"
    held = tuple(dict.fromkeys(plan.requests[n].room for work in worked for line in work.lines for n in line.held))
    last = [line for work in worked for line in work.lines if line.what == "end"]
    differs = tuple(
        dict.fromkeys(
            f"{plan.ranks[place].place}, round {ordinal(plan, line.round)}: {line.text}"
            for place, work in enumerate(worked)
            for line in work.lines
            if line.what == "differs"
        )
    )
    return ReplayRun(
        gate="on" if options.gate else "off",
        verdict=verdict,
        text=text,
        round=at,
        rooms=rooms,
        sides=sides,
        ends=ends,
        held=held,
        engine=options.engine,
        engine_differs=differs[:20],
        rounds=max(
            (line.round for line in last),
            default=max((end.polls >= 0) * work.position.round + 1 for end, work in zip(ends, worked, strict=True)),
        ),
        seconds=max((line.seconds for line in last), default=0.0),
    )


def ordinal(plan: Plan, number: int) -> int:
    """Return the recorded number of a round of the replay; those of the tail count on from the last."""
    if number < plan.rounds:
        return plan.ordinals[max(0, number)]
    return plan.ordinals[-1] + 1 + number - plan.rounds


def _end(plan: Plan, place: int, work: Worked) -> End:
    rank, at = plan.ranks[place].place, ordinal(plan, work.position.round)
    for line in reversed(work.lines):
        if line.what == "hung":
            return End(rank, "hung", ordinal(plan, line.round), work.position.polls)
        if line.what == "failed":
            return End(rank, "failed", ordinal(plan, line.round), work.position.polls, line.text)
    if work.position.where is Where.DONE:
        return End(rank, "done", at, 0)
    how = f"by {signal.Signals(-work.exit).name}" if work.exit < 0 else f"with exit status {work.exit}"
    return End(rank, "died", at, work.position.polls, how)


def _changes(work: Worked) -> dict[int, Line]:
    return {line.round: line for line in work.lines if line.what == "changed"}


def _moments(work: Worked) -> dict[tuple[int, bool], Line]:
    """Return the lines at which the queue changed, by round and by before or after the collective."""
    return {(line.round, line.what == "changed"): line for line in work.lines if line.what in ("came", "changed")}


def _reached(work: Worked) -> tuple[int, bool]:
    """Return the last moment, as _moments has them, that a worker surely got past."""
    at = work.position
    if at.where is Where.DONE:
        return 1 << 60, True
    return (at.round, True) if at.where is Where.BETWEEN and work.exit >= 0 else (at.round, False)


def _parted(plan: Plan, worked: Sequence[Worked]) -> tuple[int, tuple[Difference, ...]] | None:
    """Return the first round in which the ranks' queues differ, and who did what with the requests in which they do."""
    moments = [_moments(work) for work in worked]
    lists: list[tuple[int, ...]] = [() for _ in worked]
    reached = min(map(_reached, worked))
    for moment in sorted({at for of in moments for at in of}):
        for place, of in enumerate(moments):
            if moment in of:
                lists[place] = of[moment].list
        if moment > reached:
            continue
        left = [dict(of[moment].left) if moment in of else {} for of in moments]
        odd = set().union(*map(set, lists)) - set(lists[0]).intersection(*map(set, lists[1:]))
        odd |= {request for of in left for request in of if len({each.get(request) for each in left}) > 1}
        if not odd and len(set(lists)) > 1:  # the same requests in another order
            odd = set(lists[0])
        if odd:
            kept = "kept" if moment[1] else "has"

            def had(place: int, request: int, until: tuple[int, int] = moment) -> bool:
                return any(request in now.list for at, now in moments[place].items() if at < until)

            sides = [
                Difference(
                    plan.ranks[place].place,
                    plan.requests[request].room,
                    ACTIONS.get(left[place].get(request, -1))
                    or (kept if request in lists[place] else "no longer has" if had(place, request) else "never had"),
                )
                for place in range(len(moments))
                for request in sorted(odd)
            ]
            return moment[0], tuple(sides)
    return None


def _first_change(plan: Plan, worked: Sequence[Worked]) -> tuple[int, tuple[Difference, ...]] | None:
    """Return the first round in which a request left in another way than recorded, within the recorded rounds."""
    found: list[tuple[int, Difference]] = []
    for place, work in enumerate(worked):
        steps = plan.ranks[place].steps
        recorded = {(n, r): action for n, step in steps.items() if n < plan.rounds for r, action in step.acts}
        replayed = {(n, r): action for n, line in _changes(work).items() if n < plan.rounds for r, action in line.left}
        for key in sorted(recorded.keys() | replayed.keys()):
            if recorded.get(key) != replayed.get(key):
                did, had = ACTIONS.get(replayed.get(key, -1), "kept"), ACTIONS.get(recorded.get(key, -1), "kept")
                found.append((key[0], Difference(plan.ranks[place].place, plan.requests[key[1]].room, did, had)))
    if not found:
        return None
    first = min(number for number, _ in found)
    return first, tuple(difference for number, difference in found if number == first)


def _said(sides: Sequence[Difference]) -> str:
    """Return the action of each rank: ``tp0 committed room 7, tp1 kept it``."""
    room = sides[0].room
    did: dict[str, list[str]] = {}
    for side in sides:
        if side.room == room:
            did.setdefault(side.action, []).append(side.rank)
    words = [
        f"{names(ranks)} {action} {f'room {room}' if not n else 'it'}" for n, (action, ranks) in enumerate(did.items())
    ]
    more = len({side.room for side in sides}) - 1
    return ", ".join(words) + (f" (and {more} more room{'s'[: more != 1]})" if more else "")


def _against(sides: Sequence[Difference]) -> str:
    one = sides[0]
    return f"{one.rank} {one.action} room {one.room}, which it had {one.recorded}"


def _outcome(ends: Sequence[End]) -> str:
    """Return the end of the collective: the round of each rank, and whether it hung, died or mixed requests up."""
    bad = [end for end in ends if end.how != "done"]
    if not bad:
        return "No collective failed"
    hung = any(end.how == "hung" for end in bad)
    at = ", ".join(_place(end, hung=hung) for end in ends)
    kinds = {end.how for end in bad}
    if "hung" in kinds:
        what = "The collective hung"
    elif "died" in kinds:
        dead = [end for end in bad if end.how == "died"]
        what = f"{names(end.rank for end in dead)} died {dead[0].text}"
    else:
        what = f"The collective failed: {bad[0].text}"
    return f"{what}: {at}"


def _place(end: End, *, hung: bool) -> str:
    if end.how == "done":
        return f"{end.rank} done"
    killed = ", which did not notice and was ended" if hung and end.how == "died" else ""
    return f"{end.rank} in round {end.round} with {end.polls} poll{'s'[: end.polls != 1]}{killed}"
