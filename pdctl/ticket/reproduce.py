"""What a public report of a divergence needs of the recordings: rounds side by side, a test, policies that were searched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.probes.queues.model import RankView
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.model import UNKNOWN, Action, EventKind, KVPoll
from pdctl.recording.streams import Item, Stream
from pdctl.report import progress
from pdctl.targets.client import Client
from pdctl.targets.find import load_source

if TYPE_CHECKING:
    from pdctl.replay.groups import GroupQueue
    from pdctl.targets.find import Found

BEFORE, AFTER = 1, 2
MOST_REQUESTS = 8
MOST_FAULTS = 8
EXPLORE_S = 20.0
_POLLS, _ACTIONS = frozenset(map(int, KVPoll)), frozenset(map(int, Action))


@dataclass(frozen=True)
class Side:
    """A rank's round in words, a line a request, those first that the other rank has otherwise."""

    rank: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Reproduced:
    """rounds: ordinal, and the two ranks' sides. searched: a line a policy. test: source of the test, "" none.

    lacking: what could not be made, and why. faults: what faults that pdctl injected did, a line a kind and rank.
    """

    title: str = ""
    queue: str = ""
    rounds: tuple[tuple[int, Side, Side], ...] = ()
    searched: tuple[str, ...] = ()
    test: str = ""
    lacking: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def reproduce(path: Path, *, timeout_s: float, spent_s: float = 0.0) -> Reproduced:
    """Return what the recordings at ``path`` tell of the first divergence.

    spent_s: the part of ``timeout_s`` that was used before. Raises PdctlError if they can't be read.
    """
    from pdctl.probes.view import View
    from pdctl.replay.groups import targets
    from pdctl.replay.heat import heat

    found = load_source(path, timeout_s=timeout_s, spent_s=spent_s)
    with Client(timeout_s=timeout_s, spent_s=found.took_s) as client:
        view = View.open(found, client, recorded=True)
        views = []
        for rank in view.ranks:
            answer = view.recording(rank, sockets=False)
            views.append(RankView(rank.identity, rank.state, recording=answer.body, recording_off=answer.reason))
        faults = tuple(_faults(views))
        made = [(one, heat(one).parted) for one in targets(views) if len(one.recordings) > 1]
        parted = [(one, at) for one, at in made if at >= 0]
        if not parted:
            return Reproduced(lacking=("the recordings have no round in which ranks differ",), faults=faults)
        target, at = parted[0]
        searched, unsearched = _searched(found, path, client)
        test, untested = _test(target)
        return Reproduced(
            title=target.title,
            queue=target.queue,
            rounds=tuple(_rounds(target, at)),
            searched=searched,
            test=test,
            lacking=tuple(filter(None, (unsearched, untested))),
            faults=faults,
        )


def _faults(views: Sequence[RankView]) -> Iterator[str]:
    """Yield what faults did: one that acts is an event of the rank in which it was placed."""
    acted: Counter[tuple[str, str]] = Counter()
    rooms: dict[tuple[str, str], int] = {}
    for view in views:
        for event in view.recording.events_told((EventKind.FAULT_FIRED,)) if view.recording is not None else ():
            key = (event.text, view.identity.label)
            acted[key] += 1
            rooms[key] = event.room
    for (kind, rank), times in acted.most_common(MOST_FAULTS):
        last = f", the last time on room {rooms[kind, rank]}" if rooms[kind, rank] else ""
        yield f"{kind}, placed in {rank}, acted {times:,} time{'s'[: times != 1]}{last}"
    if len(acted) > MOST_FAULTS:
        yield f"and {len(acted) - MOST_FAULTS:,} more"


def _rounds(target: GroupQueue, at: int) -> list[tuple[int, Side, Side]]:
    """Return the rounds around the one that differs, of the first rank and the first that is not as it."""
    streams = [(f"tp{one.identity.tp}", one.stream(target.queue)) for one in target.recordings]
    known = [(name, stream) for name, stream in streams if stream is not None]
    name, first = known[0]
    other_name, other = next(
        ((n, s) for n, s in known[1:] if _decided(s, at) != _decided(first, at)),
        known[-1],
    )
    rounds = []
    for ordinal in range(max(0, at - BEFORE), at + AFTER + 1):
        here, there = _items(first, ordinal), _items(other, ordinal)
        if here is None and there is None:
            break
        rounds.append((ordinal, Side(name, _told(here, there)), Side(other_name, _told(there, here))))
    return rounds


def _items(stream: Stream, ordinal: int) -> list[Item] | None:
    run = stream.at(ordinal)
    return None if run is None else stream.items(run)


def _decided(stream: Stream, ordinal: int) -> list[tuple[int, int]] | None:
    items = _items(stream, ordinal)
    return None if items is None else [(item.room, item.action) for item in items]


def _told(mine: list[Item] | None, others: list[Item] | None) -> tuple[str, ...]:
    if mine is None:
        return ("(no such round)",)
    theirs = {item.room: _words(item) for item in others or ()}
    lines = [(item.room, _words(item)) for item in mine]
    lines.sort(key=lambda one: theirs.get(one[0]) == one[1])
    told = [f"{room}  {words}" for room, words in lines[:MOST_REQUESTS]]
    return (*told, *([f"and {len(lines) - MOST_REQUESTS} more"] if len(lines) > MOST_REQUESTS else ()))


def _words(item: Item) -> str:
    gated = f", gated to {_poll(item.gated)}" if item.gated not in (item.local, UNKNOWN) else ""
    found = f", slot holds {item.found}" if item.found is not None and item.found != item.room else ""
    return f"{_poll(item.local)}{gated}, reduced {_poll(item.reduced)}{found}: {_action(item.action)}"


def _poll(value: int) -> str:
    return KVPoll(value).name if value in _POLLS else "not known"


def _action(value: int) -> str:
    return Action(value).name.lower() if value in _ACTIONS else "not decided"


def _searched(found: Found, path: Path, client: Client) -> tuple[tuple[str, ...], str]:
    """Return what each policy does with the schedules near the recorded one, and why that could not be searched."""
    if client.over:
        return (), f"no search of schedules: {client.over}"
    try:
        from pdctl.explore.run import Search, search_near, select_policies

        progress.doing("trying schedules")
        document = search_near(Search(select_policies(()), limit_s=client.deadline.left(EXPLORE_S)), found, path.name)
    except PdctlError as error:
        return (), f"no search of schedules: {error.message}"
    except ImportError:
        return (), "no search of schedules: it needs torch (pdctl[replay])"
    lines = [
        f"{one.policy}{f' ({one.engine})' if one.engine else ''}: {one.verdict}, ranks part in {one.parted:,} of"
        f" {one.schedules:,} schedules{', as recorded' if one.as_recorded else ''}"
        for one in document.results
    ]
    return (document.bound, *lines), ""


def _test(target: GroupQueue) -> tuple[str, str]:
    """Return a test of the engine's own queue, and why there is none."""
    from pdctl.replay.emit import NothingToShow, source
    from pdctl.replay.plan import HAS_ROWS, NotReplayable, plan

    if target.queue != HAS_ROWS:
        return "", f"no test: one can be made of rounds of {HAS_ROWS} only"
    try:
        made = plan(target.recordings, target.queue, target.title, repeats=1000, missing=target.missing)
        return source(made), ""
    except (NothingToShow, NotReplayable) as error:
        return "", f"no test: {error}"
