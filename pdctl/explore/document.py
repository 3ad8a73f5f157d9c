"""The document of ``pdctl explore``: a verdict for each policy, its evidence, the smallest counterexamples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from pdctl.explore.policies import Policy, Split
from pdctl.explore.rules import run
from pdctl.explore.shrink import shrink
from pdctl.explore.space import Cell, Schedule, Space
from pdctl.protocol.documents import Document

if TYPE_CHECKING:
    from pdctl.explore.search import SearchResult

Written = Callable[[Policy, Schedule, str], str]

_EXACT = 2**63 - 1


class Part(msgspec.Struct, frozen=True):
    """One rank's part in one request. rounds: when each thing happens to it, as :mod:`.space` names them, None: later.

    stale: its slot holds a former owner's room until its own metadata lands. text: the same in words.
    """

    rank: str
    room: int
    rounds: dict[str, int | None]
    stale: bool
    text: str


class Counterexample(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule whose ranks part, made as small as it gets. round: in which, as recordings count rounds.

    way, says: how they part. schedule: number of the one it was shrunk from. schedules: how many part in that way. rooms: of
    the requests they part on. recordings: the directory they were written to, "" when they were not.
    """

    way: str
    says: str
    round: int
    ranks: int
    requests: int
    rounds: int
    rooms: tuple[int, ...]
    parts: tuple[Part, ...]
    schedule: int
    schedules: int
    recordings: str = ""


class Explored(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. verdict: BROKEN (its ranks part in some schedule), HOLDS (in none of all within the bound), INCONCLUSIVE.

    covered: exhaustive, sampled, or cut short (the time limit came first). schedules: how many were stepped, of ``of`` (None:
    more than fit 63 bits). parted: in how many of them the ranks part. engine: versions with this rule, "" for none.
    as_recorded: whether the ranks part in the schedule that the recordings tell, None without recordings.
    """

    policy: str
    says: str
    engine: str
    read_from: str
    verdict: str
    covered: str
    schedules: int
    of: int | None
    parted: int
    seconds: float
    counterexamples: tuple[Counterexample, ...] = ()
    as_recorded: bool | None = None


class ExploreDocument(Document, frozen=True, kw_only=True, tag="pdctl.explore"):
    """Answer of ``pdctl explore``. verdict: the worst of the policies'.

    bound: the bound of the search, in words. source: the recordings that it started from, "" for a model. assumes: aspects that
    the model leaves out.
    """

    verdict: str
    bound: str
    device: str
    seed: int
    results: tuple[Explored, ...]
    assumes: tuple[str, ...] = ()
    source: str = ""
    problems: tuple[str, ...] = ()


ASSUMES = {
    "transfer": (
        "A request's poll goes from Transferring to Success once per rank; failures, which MIN spreads to all, are left out.",
        "A slot gets its own request's row once; a row that lands after its request has gone is left out.",
    ),
    "receiver": ("An answer that has come stays; the handshake completes after it.",),
    "pipeline": (
        "A request is Bootstrapping until its stage sees it fail; requests whose handshake completes are left out.",
    ),
}
"""What the models leave out, per machine."""


def explored(space: Space, found: SearchResult, written: Written) -> Explored:
    """Return the result of a search, with the smallest counterexample for each way to part.

    written: function that writes a schedule, given the name of its way to part, and returns the directory or "".
    """
    policy = space.policy
    smallest = []
    for split, (number, example) in found.examples.items():
        small = shrink(policy, example, split)
        folder = written(policy, small, split.name.lower())
        smallest.append(_told(policy, split, small, number, found.by_split[split], folder))
    verdict = "BROKEN" if found.parted else "HOLDS" if found.exhaustive else "INCONCLUSIVE"
    return Explored(
        policy=policy.name,
        says=policy.says,
        engine=policy.engine,
        read_from=policy.read_from,
        verdict=verdict,
        covered="cut short" if found.ran_out else "exhaustive" if found.exhaustive else "sampled",
        schedules=found.stepped,
        of=space.size if space.size <= _EXACT else None,
        parted=found.parted,
        seconds=round(found.seconds, 3),
        counterexamples=tuple(smallest),
    )


def _told(policy: Policy, split: Split, small: Schedule, number: int, count: int, folder: str) -> Counterexample:
    outcome = run(policy, small)
    return Counterexample(
        way=split.name.lower(),
        says=split.value,
        round=outcome.diverged,
        ranks=small.ranks,
        requests=small.requests,
        rounds=small.rounds,
        rooms=tuple(small.rooms[request] for request in outcome.splits[split]),
        parts=tuple(
            part(policy, small, rank, request) for request in range(small.requests) for rank in range(small.ranks)
        ),
        schedule=number,
        schedules=count,
        recordings=folder,
    )


def worst(results: tuple[Explored, ...]) -> str:
    """Return the verdict of all of them together."""
    verdicts = {result.verdict for result in results}
    return next(verdict for verdict in ("BROKEN", "INCONCLUSIVE", "HOLDS") if verdict in verdicts)


def part(policy: Policy, schedule: Schedule, rank: int, request: int) -> Part:
    """Return what one rank's part in one request is, in numbers and words."""
    cell = schedule.cells[rank][request]
    names = {"transfer": ("success", "metadata"), "receiver": ("answer", "handshake"), "pipeline": ("failed",)}
    rounds = {
        name: at if at < schedule.rounds else None
        for name, at in zip(names[policy.machine], (cell.first, cell.second), strict=False)
    }
    place = f"pp{rank}" if policy.machine == "pipeline" else f"tp{rank}"
    late = f", arrives in round {schedule.arrivals[request]}" if schedule.arrivals[request] else ""
    stale = bool(cell.flag)
    return Part(place, schedule.rooms[request], rounds, stale, _words(policy, schedule.rounds, cell) + late)


def _words(policy: Policy, rounds: int, cell: Cell) -> str:
    def at(when: int) -> str:
        return f"in round {when}" if when < rounds else f"after round {rounds - 1}"

    if policy.machine == "pipeline":
        return f"sees it fail {at(cell.first)}"
    if policy.machine == "receiver":
        done = "at once" if cell.second == cell.first else at(cell.second)
        return f"query answered {at(cell.first)}" + (f", handshake done {done}" if cell.first < rounds else "")
    if cell.second <= cell.first:
        lands = "metadata there" if cell.first < rounds else ""
    else:
        lands = f"metadata lands {at(cell.second)}"
    stale = "the slot holds a former owner's room" if cell.flag else ""
    return ", ".join(filter(None, (f"Success {at(cell.first)}", lands, stale)))
