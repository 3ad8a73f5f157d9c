"""Step one schedule with real lists, as the engine does: slow and simple. Tests compare the kernels with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pdctl.explore.policies import Policy, Split
from pdctl.explore.space import Schedule
from pdctl.protocol.model import Action, KVPoll

OWN, EMPTY, FOREIGN = 1, 0, -1
"""What a slot holds: its request's room, nothing, a former owner's room."""

_FAILED, _BOOTSTRAPPING, _WAITING = int(KVPoll.FAILED), int(KVPoll.BOOTSTRAPPING), int(KVPoll.WAITING_FOR_INPUT)
_TRANSFERRING, _SUCCESS = int(KVPoll.TRANSFERRING), int(KVPoll.SUCCESS)


@dataclass
class Entry:
    """A request on a rank's list in one round. found: what its slot holds, where that is looked at."""

    request: int
    local: int
    gated: int
    reduced: int = _FAILED
    action: Action = Action.KEPT
    found: int | None = None


@dataclass
class Round:
    """One round: each rank's list, empty where the rank skipped it. split: how the ranks part in it, on these requests."""

    lists: list[list[Entry]]
    splits: dict[Split, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The rounds until the ranks part, or all of them."""

    rounds: tuple[Round, ...]

    @property
    def splits(self) -> dict[Split, list[int]]:
        """How the ranks part, and on which requests: empty where they never do."""
        return self.rounds[-1].splits if self.rounds else {}

    @property
    def diverged(self) -> int:
        """The ordinal of the round in which the ranks part, as recordings count it, -1 where they never do.

        A turn in which every rank's list is empty is no round.
        """
        return sum(any(done.lists) for done in self.rounds[:-1]) if self.splits else -1


def run(policy: Policy, schedule: Schedule) -> Outcome:
    """Step ``schedule`` under ``policy`` until the ranks part or the bound is reached."""
    machines: dict[str, type[_Queues]] = {"transfer": _Transfer, "receiver": _Receiver, "pipeline": _Pipeline}
    step = machines[policy.machine](policy, schedule).step
    rounds = []
    for now in range(schedule.rounds):
        rounds.append(step(now))
        if rounds[-1].splits:
            break
    return Outcome(tuple(rounds))


class _Queues:
    """Each rank's list of requests, and the positional MIN."""

    def __init__(self, policy: Policy, schedule: Schedule) -> None:
        self.policy, self.schedule = policy, schedule
        self.queues: list[list[int]] = [[] for _ in range(schedule.ranks)]

    def step(self, now: int) -> Round:
        raise NotImplementedError

    def arriving(self, now: int) -> list[int]:
        return [request for request, at in enumerate(self.schedule.arrivals) if at == now]

    def lists(self, make: Callable[[int, int], Entry]) -> list[list[Entry]]:
        return [[make(rank, request) for request in queue] for rank, queue in enumerate(self.queues)]

    def reduce(self, lists: list[list[Entry]]) -> None:
        for column in zip(*lists, strict=True):
            least = min(entry.gated for entry in column)
            for entry in column:
                entry.reduced = least

    def keep(self, lists: list[list[Entry]]) -> None:
        self.queues = [[entry.request for entry in entries if entry.action is Action.KEPT] for entries in lists]


class _Transfer(_Queues):
    def step(self, now: int) -> Round:
        for queue in self.queues:
            queue.extend(self.arriving(now))
        lists = self.lists(lambda rank, request: self._poll(rank, request, now))
        self.reduce(lists)
        for entries in lists:
            for entry in entries:
                if entry.reduced == _SUCCESS:
                    entry.action = self._commit(entry.found)
        done = Round(lists)
        for column in zip(*lists, strict=True):
            actions = {entry.action for entry in column}
            if len(actions) > 1:
                done.splits.setdefault(_parted(actions), []).append(column[0].request)
        self.keep(lists)
        return done

    def _poll(self, rank: int, request: int, now: int) -> Entry:
        cell = self.schedule.cells[rank][request]
        if cell.first > now:
            return Entry(request, _TRANSFERRING, _TRANSFERRING)
        found = OWN if cell.second <= now else FOREIGN if cell.flag else EMPTY
        waits = {"none": False, "zero": found == EMPTY, "expected": found != OWN}[self.policy.gate]
        return Entry(request, _SUCCESS, _TRANSFERRING if waits else _SUCCESS, found=found)

    def _commit(self, found: int | None) -> Action:
        if found == OWN:
            return Action.COMMITTED
        # With a gate a slot that reads 0 here is an error; without one it means "not yet".
        return Action.KEPT if found == EMPTY and self.policy.gate == "none" else Action.ABORTED


def _parted(actions: set[Action]) -> Split:
    if Action.KEPT not in actions:
        return Split.MIXED
    return Split.KEPT if Action.COMMITTED in actions else Split.ABORTED


class _Receiver(_Queues):
    def __init__(self, policy: Policy, schedule: Schedule) -> None:
        super().__init__(policy, schedule)
        self.pending: list[list[int]] = [[] for _ in range(schedule.ranks)]

    def step(self, now: int) -> Round:
        for rank, pending in enumerate(self.pending):
            pending.extend(self.arriving(now))
            if self.policy.early:
                self.queues[rank].extend(self.arriving(now))
            else:
                answered = [request for request in pending if self.schedule.cells[rank][request].first <= now]
                self.queues[rank].extend(answered)
            self.pending[rank] = [r for r in pending if self.schedule.cells[rank][r].first > now]
        lists = self.lists(lambda rank, request: self._poll(rank, request, now))
        done = Round(lists)
        if len({tuple(queue) for queue in self.queues}) > 1:
            odd = [r for r in range(self.schedule.requests) if len({r in queue for queue in self.queues}) > 1]
            done.splits[Split.LISTS if all(self.queues) else Split.SKIPPED] = odd
            return done
        self.reduce(lists)
        for entries in lists:
            for entry in entries:
                entry.action = Action.MOVED if entry.reduced == _WAITING else Action.KEPT
        self.keep(lists)
        return done

    def _poll(self, rank: int, request: int, now: int) -> Entry:
        poll = _WAITING if self.schedule.cells[rank][request].second <= now else _BOOTSTRAPPING
        return Entry(request, poll, poll)


class _Pipeline(_Queues):
    """Stages of a prefill server, one microbatch. Each has a list of its own; nothing is reduced between them.

    A request is Bootstrapping until its stage sees it fail: requests whose handshake completes are not modelled.
    """

    def step(self, now: int) -> Round:
        for queue in self.queues:
            queue.extend(self.arriving(now))
        lists = self.lists(lambda stage, request: self._poll(stage, request, now))
        # The stages agree on what any of them has seen fail; the first stage acts on that and passes on what it did.
        told = {entry.request for entries in lists for entry in entries if entry.local == _FAILED}
        done = Round(lists)
        for stage, entries in enumerate(lists):
            for entry in entries:
                entry.reduced = entry.local
                may = entry.request in told or (stage > 0 and self.policy.drained)
                if entry.local == _FAILED and may:
                    entry.action = Action.FAILED
            told = {entry.request for entry in entries if entry.action is Action.FAILED}
        self.keep(lists)
        for before, entries in zip(self.queues, lists[1:], strict=False):
            for entry in entries:
                gone = entry.request not in before
                if gone and entry.local == _FAILED and entry.action is Action.KEPT:
                    done.splits.setdefault(Split.ORPHAN, []).append(entry.request)
        return done

    def _poll(self, stage: int, request: int, now: int) -> Entry:
        poll = _FAILED if self.schedule.cells[stage][request].first <= now else _BOOTSTRAPPING
        return Entry(request, poll, poll)
