"""The operator's request, and the facts known about the ranks: plain data, the input of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdctl.faults.kinds import DELAY_METADATA
from pdctl.faults.messages import FaultsBody
from pdctl.protocol.model import Identity
from pdctl.targets import selectors


@dataclass(frozen=True)
class Known:
    """A rank, from discovery and its answer to one question.

    state: ``live``, ``dead`` or ``no agent`` (:class:`pdctl.targets.find.FoundRank`). faults: its answer, None with
    ``silent`` saying why there is none.
    """

    identity: Identity
    state: str = "live"
    faults: FaultsBody | None = None
    silent: str = ""


@dataclass(frozen=True)
class Wish:
    """What the operator asked for, in seconds. allow_ranks, allow_rooms: blast radius, 1 unless widened by name.

    delay_s and value: the parameter of the kind (:class:`pdctl.faults.kinds.Parameter`), 0 for one without.
    """

    patterns: tuple[selectors.Selector, ...]
    ttl_s: float
    fault_id: str
    owner: str
    delay_s: float = 0.0
    kind: str = DELAY_METADATA
    value: int = 0
    room: int = 0
    rid: str = ""
    hits: int = 0
    seed: int = 0
    share: float = 1.0
    stop_failed: int = 0
    allow_ranks: int = 1
    allow_rooms: int = 1


def name(identity: Identity, among: Sequence[Known]) -> str:
    """Return a name that distinguishes the rank among ``among``."""
    twins = sum(rank.identity.label == identity.label for rank in among)
    return identity.label if twins == 1 else f"{identity.label} ({identity.service}, pid {identity.pid})"
