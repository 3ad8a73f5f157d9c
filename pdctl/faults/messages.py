"""What goes over a control socket for faults: arguments and bodies of the ops ``inject renew heal faults``.

One definition for both sides. Seconds everywhere; a rank turns them into moments of its own clock when they arrive.
"""

from __future__ import annotations

import msgspec

from pdctl.faults.fault import Target
from pdctl.faults.limits import DEFAULT_TTL_S, LEASE_S
from pdctl.protocol.model import FaultStatus, Seam


class InjectArgs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Place one fault. target names the ranks it is for to people, targets to the rank.

    delay_s is the duration of a kind that has one, value the state, dp rank or room of one that has such; seed and
    share say which visits (:mod:`pdctl.faults.choose`), at_once how many rooms at a time.
    Every fault starts with a lease, so that one which arrives late, at a rank that was stopped, ends by itself soon;
    a detached fault gives it up once all ranks have it (:class:`RenewArgs`).
    stop_failed: end it when so many rooms have failed on the rank that carries it, 0 for never.
    limit: faults that may be in place on the rank with this one, 1 unless the operator widened it by name.
    """

    id: str
    kind: str
    target: str
    targets: tuple[Target, ...]
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
    """Extend a lease, and ask how the fault is doing. A lease_s of 0 gives the lease up: only the TTL is left."""

    id: str
    lease_s: float


class RenewBody(msgspec.Struct, frozen=True):
    """renewed: it was in place. fault: how it is doing or how it ended, None for an id this rank does not know."""

    renewed: bool
    fault: FaultStatus | None


class HealArgs(msgspec.Struct, frozen=True):
    """End one fault, all of them where id is empty. why goes into the recording."""

    id: str = ""
    why: str = "heal"


class HealBody(msgspec.Struct, frozen=True):
    """ended: ids ended by this call. left: what is in place or still holds a write after it. owners: of those ended."""

    ended: tuple[str, ...]
    left: tuple[FaultStatus, ...]
    owners: tuple[str, ...] = ()


class FaultsBody(msgspec.Struct, frozen=True):
    """left: in place or still holding a write. past: the last that ended. sites: Seams ``fault.…`` of this rank.

    address: this rank's own as transfers know it, "" where unknown.
    """

    armed: bool
    left: tuple[FaultStatus, ...]
    past: tuple[FaultStatus, ...]
    sites: tuple[Seam, ...]
    address: str = ""
