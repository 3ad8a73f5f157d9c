"""End faults and verify it: ask again until nothing is left, and report the ranks that remain uncertain.

A rank answers without its scheduler thread. A silent rank may still hold a fault, unless its process has ended or it was never
armed. Its lease or TTL ends the fault then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from pdctl.faults.messages import FaultsBody, HealArgs, HealBody
from pdctl.inject.recorded import describe_last_fault
from pdctl.protocol.errors import Exit
from pdctl.protocol.model import FaultStatus, Status
from pdctl.protocol.processes import look
from pdctl.targets.client import Answer, Client, Silence
from pdctl.targets.find import FoundRank
from pdctl.targets.recordings import recording_file

AGAIN_S = 0.1
"""Pause between two looks at a rank that still writes what it held."""


@dataclass
class Healed:
    """The result of healing on one rank.

    ended: the faults that this call ended, each with its owner ("" from an agent of an older pdctl). left: faults still there.
    others: other faults in place. unsure: why the state is unknown, "" if the rank answered. gone: whether its process has
    ended, and its faults with it. knew: whether it has, or had, the named fault. fired: whether one that was meant has acted
    there. placed: when the oldest of the ended faults was, on this process's monotonic clock: infinity without one, minus
    infinity where its rank does not tell.
    """

    rank: FoundRank
    ended: dict[str, str] = field(default_factory=dict)
    left: tuple[FaultStatus, ...] = ()
    others: tuple[FaultStatus, ...] = ()
    unsure: str = ""
    gone: bool = False
    knew: bool = False
    fired: bool = False
    placed: float = math.inf

    @property
    def clean(self) -> bool:
        """Whether it certainly holds no such fault."""
        return not self.left and not self.unsure


def heal(client: Client, ranks: Sequence[FoundRank], fault_id: str = "", why: str = "heal") -> list[Healed]:
    """End ``fault_id`` (every fault if empty) on ``ranks``. Return the results in their order.

    Returns when every rank is clean or known to be silent, at the latest at the client's deadline. Never raises for a rank.
    """
    results = [Healed(rank) for rank in ranks]
    args = msgspec.to_builtins(HealArgs(fault_id, why))
    for result, answer in zip(results, client.ask(ranks, "heal", HealBody, args), strict=True):
        if answer.body is None:
            result.unsure = may_hold(answer)
            result.gone = not result.unsure and (answer.silence is Silence.DEAD or _gone(answer))
        else:
            owners = (*answer.body.owners, *[""] * len(answer.body.ended))
            result.ended.update(zip(answer.body.ended, owners, strict=False))
            result.left = answer.body.left
            result.knew = bool(answer.body.ended)
    _verify(client, results, fault_id)
    return results


def _verify(client: Client, results: list[Healed], fault_id: str) -> None:
    """Ask the ranks that answered once more, and those that still write until they are done."""
    asked = [result for result in results if not result.unsure and result.rank.live]
    while asked:
        answers = client.ask([result.rank for result in asked], "faults", FaultsBody)
        for result, answer in zip(asked, answers, strict=True):
            if answer.body is None:
                result.unsure = may_hold(answer)
                result.left = () if not result.unsure else result.left
            else:
                result.left = tuple(fault for fault in answer.body.left if fault_id in ("", fault.id))
                meant = (fault_id,) if fault_id else result.ended
                result.fired |= any(fault.fired for fault in answer.body.past if fault.id in meant)
                result.knew |= any(fault.id == fault_id for fault in (*answer.body.left, *answer.body.past))
                result.others = tuple(fault for fault in answer.body.left if fault_id not in ("", fault.id))
                result.placed = min(result.placed, _placed(result.ended, (*answer.body.left, *answer.body.past)))
        asked = [result for result in asked if result.left and not result.unsure]
        if not asked or not client.deadline.left(1.0):
            return
        time.sleep(client.deadline.left(AGAIN_S))


def _placed(ended: Collection[str], known: Sequence[FaultStatus]) -> float:
    """Return when the oldest of the faults ``ended`` was placed, as Healed.placed is. known: of their rank, now."""
    ages = {fault.id: fault.age_s for fault in known if fault.age_s >= 0}
    return min((time.monotonic() - ages.get(fault_id, math.inf) for fault_id in ended), default=math.inf)


def may_hold(answer: Answer[HealBody] | Answer[FaultsBody]) -> str:
    """Return why a silent rank may hold a fault, with the faults in its recording, "" if it certainly holds none.

    A recording gives no certainty: a request may still wait in the rank's socket.
    """
    if answer.silence in (Silence.DEAD, Silence.NO_AGENT):
        return ""  # what it held ended with it, or it never could
    known = answer.rank.identity
    if _gone(answer):
        return ""
    if known.role != "unknown" and not answer.rank.remembered and not known.armed:
        return ""
    why = answer.reason or answer.silence.value
    seen = _recorded(answer.rank)
    return f"{why}; {seen}" if seen else why


def _recorded(rank: FoundRank) -> str:
    recording = recording_file(rank).body
    return describe_last_fault(recording.events(), time.monotonic_ns()) if recording is not None else ""


def _gone(answer: Answer[HealBody] | Answer[FaultsBody]) -> bool:
    """Return whether the rank's process has ended since it was found."""
    if answer.rank.access is not None:
        return False  # on another host: only its agent could tell
    process = look(answer.rank.identity.pid)
    if process.state:
        return not process.runs_since(answer.rank.identity.proc_start)
    # No such process here. One in another pid namespace was never seen either: then only its socket tells.
    return bool(answer.rank.process.state) or answer.silence is Silence.REFUSED


def unproven(fault_id: str) -> str:
    """Return what is not known after a fault that acted has ended."""
    return f"Whether requests go through now is not known: pdctl heal {fault_id or '--all'} --prove sends one."


class Aftermath(NamedTuple):
    """What outlives every fault: threads of the engine that have ended, one sentence each.

    harm: since the fault was placed. before: those that had ended by then.
    """

    harm: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


def aftermath(client: Client, ranks: Sequence[FoundRank], placed: float) -> Aftermath:
    """Return what outlives faults on these ranks. Ranks that do not answer say nothing of it.

    placed: when the faults were placed, on this process's monotonic clock.
    """
    harm: list[str] = []
    before: list[str] = []
    for answer in client.ask([rank for rank in ranks if rank.live], "status", Status):
        for thread in answer.body.threads if answer.body is not None else ():
            if thread.ended and answer.body is not None:
                ended = time.monotonic() - max(0.0, (answer.body.mono_ns - thread.ended_mono_ns) / 1e9)
                why = f" by {thread.error}" if thread.error else ""
                found = before if ended < placed else harm
                had = "had ended before" if ended < placed else "has ended"
                found.append(
                    f"{answer.rank.identity.who}: its {thread.function} {had}{why}, and only a restart starts it again"
                )
    return Aftermath(tuple(harm), tuple(before))


def exit_code(results: Sequence[Healed], harm: Sequence[str] = ()) -> Exit:
    """Return the exit code of a healing command: FAULT_ACTIVE if a fault may remain, FINDING if it left ``harm``.

    PARTIAL if no rank knows the named fault and another is in place: the name was probably mistyped.
    """
    if not all(result.clean for result in results):
        return Exit.FAULT_ACTIVE
    mistyped = any(result.others for result in results) and not any(result.knew for result in results)
    return Exit.PARTIAL if mistyped else Exit.FINDING if harm else Exit.CLEAN


def lines(results: Sequence[Healed]) -> list[str]:
    """Return one sentence a rank that is not clean."""
    said = []
    for result in results:
        name = result.rank.identity.who
        if result.unsure:
            said.append(
                f"{name} may hold a fault: {result.unsure}. It ends by itself when its lease (3 s) or its TTL (at most "
                "15 min) is over and the process runs"
            )
        for fault in result.left:
            doing = f"still writes {fault.pending} held row(s)" if fault.ended else "is still in place"
            said.append(f"{name}: fault {fault.id} {doing}")
    return said
