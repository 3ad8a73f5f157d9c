"""Messages about faults: arguments and reply bodies of the ops ``inject renew heal faults``.

Both sides use these definitions. All times are durations in seconds; a rank converts them to its own clock on arrival.
"""

from __future__ import annotations

import msgspec

from pdctl.faults.fault import AimedRank
from pdctl.faults.limits import DEFAULT_TTL_S, LEASE_S
from pdctl.protocol.model import FaultStatus, Seam


class InjectArgs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Place one fault. target: the ranks aimed at, as text for people; targets: the same for the rank.

    delay_s: duration, for a kind with one. value: state, dp rank or room, for a kind with one. seed, share: which visits
    (:mod:`pdctl.faults.choose`). at_once: rooms at a time.
    Every fault starts with a lease. So a fault that arrives late, at a rank that was stopped, soon ends by itself. A detached
    fault gives up its lease once all ranks have it (:class:`RenewArgs`).
    stop_failed: end the fault when this many rooms have failed on its rank, 0 for never.
    limit: maximum number of faults on the rank, this one included; 1 unless the operator raised it by name.
    """

    id: str
    kind: str
    target: str
    targets: tuple[AimedRank, ...]
    delay_s: float = 0.0
    value: int = 0
    ttl_s: float = DEFAULT_TTL_S
    lease_s: float = LEASE_S
    room: int = 0
    rid: str = ""
    hits: int = 0
    seed: int = 0
    share: float = 1.0
    at_once: int = 1
    owner: str = ""
    stop_failed: int = 0
    limit: int = 1


class InjectBody(msgspec.Struct, frozen=True):
    """The fault as it was placed."""

    fault: FaultStatus


class RenewArgs(msgspec.Struct, frozen=True):
    """Extend a lease, and ask for the fault's status. lease_s 0 gives the lease up: only the TTL is left."""

    id: str
    lease_s: float


class RenewBody(msgspec.Struct, frozen=True):
    """renewed: whether the fault was in place. fault: its status, also if it has ended; None for an unknown id."""

    renewed: bool
    fault: FaultStatus | None


class HealArgs(msgspec.Struct, frozen=True):
    """End one fault, or all faults if id is empty. why: reason for the recording."""

    id: str = ""
    why: str = "heal"


class HealBody(msgspec.Struct, frozen=True):
    """ended: ids ended by this call. left: faults still in place or still holding a write. owners: owners of the ended ones."""

    ended: tuple[str, ...]
    left: tuple[FaultStatus, ...]
    owners: tuple[str, ...] = ()


class FaultsBody(msgspec.Struct, frozen=True):
    """left: faults in place or still holding a write. past: the last ended faults. sites: Seams ``fault.…`` of this rank.

    address: this rank's address for transfers, "" if unknown.
    """

    armed: bool
    left: tuple[FaultStatus, ...]
    past: tuple[FaultStatus, ...]
    sites: tuple[Seam, ...]
    address: str = ""
