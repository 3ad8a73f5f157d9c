"""Select the agentless processes to read from outside, by PDCTL_OUTSIDE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.protocol.errors import PdctlError
from pdctl.protocol.rank import FoundRank
from pdctl.targets.places import Places

if TYPE_CHECKING:
    from pdctl.introspect.find import Candidate


@dataclass(frozen=True)
class Agentless:
    """Agentless processes. selected: the ones to read. left_alone: number of the others.

    named: whether the user named the selected pids.
    """

    selected: tuple[Candidate, ...] = ()
    left_alone: int = 0
    named: bool = False

    @property
    def living(self) -> list[Candidate]:
        """The selected processes that have not ended."""
        return [one for one in self.selected if not one.process.ended]

    @property
    def attach(self) -> str:
        """Arguments of ``pdctl attach`` for the selected processes: ``--all``, or their pids."""
        return " ".join(str(one.pid) for one in self.living) if self.named else "--all"


NONE = Agentless()


def select_processes(places: Places, ranks: Sequence[FoundRank]) -> Agentless:
    """Return the processes without an agent among ``ranks``. Reads /proc only.

    Where a run directory is named, the default is: only processes started by the same servers as ranks with an agent
    there; others are not of this cluster. Named pids are always selected, even if there is no such process. A process that
    has ended and is among ``ranks`` is left out: there is nothing more to read of it.
    """
    asked = places.outside
    if asked.how == "off":
        return NONE
    from pdctl.introspect.find import candidate, candidates

    known = {(rank.identity.pid, rank.identity.proc_start) for rank in ranks if rank.live or rank.process.ended}
    every = candidates()
    parents = {one.parent for one in every if (one.pid, one.process.start) in known}
    agentless = [one for one in every if (one.pid, one.process.start) not in known]
    if asked.how == "pids":
        told = {rank.identity.pid for rank in ranks}
        titled = {one.pid: one for one in every}
        named = [titled.get(pid) or candidate(pid) for pid in asked.pids]
        chosen = [
            one
            for one in named
            if (one.pid, one.process.start) not in known and (one.process.state or one.pid not in told)
        ]
    elif places.run_dir_named and asked.how != "all":
        chosen = [one for one in agentless if one.parent in parents]
    else:
        chosen = agentless
    there = {one.pid for one in chosen}
    return Agentless(tuple(chosen), sum(one.pid not in there for one in agentless), asked.how == "pids")


def attach_hint(whom: str) -> str:
    """Return a sentence on how agentless processes get an agent. whom: arguments of ``pdctl attach``."""
    return f"pdctl attach {whom} --inject-agent --arm puts one in that takes faults."


def unrecorded(ranks: Sequence[FoundRank]) -> PdctlError | None:
    """Return an error (UNREACHABLE) for a command that needs recordings if none of ``ranks`` has an agent, else None."""
    there = sum(rank.state == "outside" for rank in ranks)
    if not there or any(rank.state not in ("outside", "no agent") for rank in ranks):
        return None
    many = "1 rank" if there == 1 else f"{there} ranks"
    return PdctlError(
        f"{many} found, none with pdctl's agent, and only an agent records",
        "Start the engine with it (pdctl run): one that pdctl attach --inject-agent puts in records no rounds.",
    )
