"""One fault on the client's side: place it on its ranks, renew its lease, watch it, and heal it at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pdctl.faults.fault import USED_UP
from pdctl.faults.messages import FaultsBody, InjectArgs, InjectBody, RenewArgs, RenewBody
from pdctl.inject import healing
from pdctl.inject.audit import Audit
from pdctl.inject.wish import Known
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import FaultStatus, Snapshot
from pdctl.targets.client import Answer, Client, Silence
from pdctl.targets.find import FoundRank

BEAT_S = 1.0


def load_known(client: Client, ranks: Sequence[FoundRank]) -> list[Known]:
    """Ask every rank for its fault sites and faults, the input of a plan."""
    answers = client.ask(ranks, "faults", FaultsBody)
    return [
        Known(answer.rank.identity, answer.rank.state, answer.body, answer.reason or answer.silence.value)
        for answer in answers
    ]


def room_of(client: Client, ranks: Sequence[FoundRank], rid: str) -> int:
    """Return the room of the request ``rid``, as the queues of ``ranks`` have it now.

    Raises PdctlError (PARTIAL) where no rank has it, or ranks have it with different rooms.
    """
    answers = client.ask(ranks, "queues", Snapshot)
    queues = [queue for answer in answers if answer.body is not None for queue in answer.body.queues.values()]
    rooms = {entry.room for queue in queues for entry in queue if entry.rid == rid and entry.room}
    if len(rooms) == 1:
        return rooms.pop()
    if rooms:
        raise PdctlError(f"request {rid} has several rooms: {sorted(rooms)}", "name one with --room", Exit.PARTIAL)
    silent = sum(answer.body is None for answer in answers)
    raise PdctlError(
        f"no rank has a request {rid} in its queues now" + (f" ({silent} did not answer)" if silent else ""),
        "this fault's site sees rooms alone; a request must be there for its room to be known: or give --room",
        Exit.PARTIAL,
    )


@dataclass(frozen=True)
class Counts:
    """Sums over the ranks that answered. ended: the reasons, once each, where no rank holds the fault any more."""

    visits: int = 0
    eligible: int = 0
    fired: int = 0
    passed: int = 0
    pending: int = 0
    released: int = 0
    dropped: int = 0
    failed: int = 0
    ended: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether it has ended everywhere and nothing of it is held."""
        return bool(self.ended) and not self.pending and not self.silent


def count(statuses: Sequence[FaultStatus], silent: Sequence[str] = ()) -> Counts:
    """Return the sums. Statuses of one fault, one a rank."""
    ended = tuple(dict.fromkeys(status.ended for status in statuses))
    names = ("visits", "eligible", "fired", "passed", "pending", "released", "dropped", "failed")
    sums = {name: sum(getattr(status, name) for status in statuses) for name in names}
    return Counts(**sums, ended=() if "" in ended else ended, silent=tuple(silent))


def _in_place(answer: RenewBody) -> bool:
    """Return whether a fault is detached on a rank, or had done there all that it was placed for before it could be."""
    return answer.renewed or (answer.fault is not None and answer.fault.ended == USED_UP)


class Session:
    """The fault of one command. everyone: all ranks that it may harm, by default its own.

    ``beats`` is a client of its own: a slow rank must not cost the others their lease.
    """

    def __init__(
        self,
        client: Client,
        beats: Client,
        audit: Audit,
        ranks: Sequence[FoundRank],
        args: InjectArgs,
        everyone: Sequence[FoundRank] = (),
    ) -> None:
        self._client = client
        self._beats = beats
        self._audit = audit
        self.ranks = tuple(ranks)
        self._everyone = everyone or self.ranks
        self.args = args
        self._last: dict[int, FaultStatus] = {}
        self._heard: dict[int, float] = {}
        self._placed = math.inf
        self.lost: tuple[str, ...] = ()
        """Ranks that have answered no beat for as long as the lease, so that it has run out there; as of the last beat."""

    def place(self, *, detach: bool = False) -> Counts:
        """Place the fault on every rank, or on none. Return its counts as it was placed.

        detach: without a lease, once it is everywhere.

        Raises PdctlError with what the rank says; FAULT_ACTIVE when taking it back from the others is not certain.
        """
        args = msgspec.to_builtins(self.args)
        self._log("inject", args=args, detach=detach)
        self._placed = time.monotonic()
        answers = self._client.ask(self.ranks, "inject", InjectBody, args)
        refused: list[Answer[Any]] = [answer for answer in answers if answer.body is None]
        if not refused and detach:
            without = msgspec.to_builtins(RenewArgs(self.args.id, 0.0))
            renewed = self._client.ask(self.ranks, "renew", RenewBody, without)
            refused = [answer for answer in renewed if answer.body is None or not _in_place(answer.body)]
        if not refused:
            return count([answer.body.fault for answer in answers if answer.body is not None])
        # A rank that refused because of who asks has not looked at the fault, and would not let it be healed either.
        barred = {id(a.rank) for a in answers if a.silence is Silence.NOT_AUTHORISED and a.code}
        healed = self.heal("not placed on every rank", [rank for rank in self.ranks if id(rank) not in barred])
        said = "; ".join(
            f"{answer.rank.identity.label}: {answer.reason or 'its lease had run out'}" for answer in refused
        )
        if healing.exit_code(healed) is not Exit.CLEAN:
            left = "; ".join(healing.lines(healed))
            raise PdctlError(f"not placed: {said}. {left}", "pdctl heal --all", Exit.FAULT_ACTIVE)
        raise PdctlError(f"not placed: {said}", refused[0].next_step, refused[0].code or Exit.UNREACHABLE)

    def beat(self) -> Counts:
        """Renew the lease on every rank. Return the fault's counts; those of a rank that is silent are its last."""
        self._beats.restart()
        args = msgspec.to_builtins(RenewArgs(self.args.id, self.args.lease_s))
        return self._note(self._beats.ask(self.ranks, "renew", RenewBody, args))

    def _note(self, answers: Sequence[Answer[RenewBody]]) -> Counts:
        silent, lost = [], []
        now = time.monotonic()
        for index, answer in enumerate(answers):
            if answer.body is not None or index not in self._heard:
                self._heard[index] = now
            if answer.body is None:
                silent.append(f"{answer.rank.identity.label}: {answer.reason}")
                if now - self._heard[index] >= self.args.lease_s:
                    lost.append(answer.rank.identity.label)
            elif answer.body.fault is not None:
                self._last[index] = answer.body.fault
            elif index in self._last:  # a rank that has forgotten it: restarted tables hold nothing
                self._last[index] = msgspec.structs.replace(self._last[index], pending=0, ended="not known there")
        self.lost = tuple(lost)
        return count(list(self._last.values()), silent)

    @property
    def last_rooms(self) -> tuple[int, ...]:
        """The room that each rank's fault acted on last, as of the last beat; ranks where it has not fired left out."""
        return tuple(dict.fromkeys(status.last_room for status in list(self._last.values()) if status.last_room))

    def heal(self, why: str, ranks: Sequence[FoundRank] | None = None) -> list[healing.Healed]:
        """End the fault on every rank (or on ``ranks``, if given), and verify it."""
        self._client.restart()
        healed = healing.heal(self._client, self.ranks if ranks is None else ranks, self.args.id, why)
        self._log("heal", why=why, left=healing.lines(healed))
        return healed

    def aftermath(self) -> healing.Aftermath:
        """Return what outlives the fault, on any rank that was found when it was planned."""
        return healing.aftermath(self._client, self._everyone, self._placed)

    def over(self, counts: Counts, why: str) -> None:
        """Write the end of it into the audit log."""
        self._log("over", why=why, visits=counts.visits, eligible=counts.eligible, fired=counts.fired)

    def _log(self, what: str, **fields: Any) -> None:
        on = [f"{rank.identity.host} {rank.identity.pid} {rank.identity.selector}" for rank in self.ranks]
        self._audit.write(what, fault=self.args.id, on=on, **fields)
