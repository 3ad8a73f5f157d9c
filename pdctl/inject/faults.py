"""What a fault is and which metadata write it may take: plain data, pure decisions. Standard library, msgspec."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import msgspec

from pdctl.model import FaultStatus

MAX_TTL_S = 900.0
DEFAULT_TTL_S = 60.0
MAX_DELAY_S = MAX_TTL_S
LEASE_S = 3.0
"""A client's lease: it renews about once a second, so three missed beats end its fault."""

DELAY_METADATA = "delay-metadata"
SEAM_PREFIX = "fault."
"""A rank that carries the site of a fault kind has a present Seam ``fault.<kind>``; its detail names the function."""


class Target(msgspec.Struct, frozen=True):
    """A decode rank that a fault aims at.

    address is its address as transfers know it (Mooncake: the session id), which alone tells two decode servers apart
    and wins where both sides know it. Otherwise dp and tp decide: -1 for any, tp NOBODY where only the address may.
    """

    dp: int = -1
    tp: int = -1
    address: str = ""

    def is_at(self, dp: int, tp: int, address: str) -> bool:
        """Return whether a write goes to it. The site says dp -1 and address "" where it can't tell them.

        A site that can't tell dp is taken to mean dp 0: the plan aims at another dp by address only.
        """
        if self.address and address:
            return self.address == address
        return self.tp in (-1, tp) and self.dp in (-1, max(dp, 0))


NOBODY = -2


@dataclass
class Fault:
    """One fault in one rank. Times are seconds of the rank's monotonic clock.

    target names the decode ranks aimed at. room: this room only, 0 for any. hits: rooms to take, 0 for no limit.
    visits: writes the site saw; eligible: those that matched; fired: those held back; rooms: rooms among these.
    released: held writes done; dropped: held writes never done because nobody waited for them any more; failed: held
    writes that the engine could not do. ended: why it is no longer in place, "" while it is.
    """

    id: str
    kind: str
    delay_s: float
    expires: float
    lease_expires: float | None
    target: str
    targets: tuple[Target, ...]
    room: int = 0
    hits: int = 0
    owner: str = ""
    visits: int = 0
    eligible: int = 0
    fired: int = 0
    rooms: int = 0
    released: int = 0
    dropped: int = 0
    failed: int = 0
    last_room: int = 0
    number: int = 0
    ended: str = ""

    @property
    def target_tp(self) -> int:
        """tp of the decode rank aimed at, -1 where there are several or only the address tells."""
        return max(-1, self.targets[0].tp) if len(self.targets) == 1 else -1

    @property
    def ends(self) -> float:
        """When it ends by itself, in seconds of the monotonic clock: TTL or lease, whichever is first."""
        return self.expires if self.lease_expires is None else min(self.expires, self.lease_expires)

    def aims_at(self, room: int, dp: int, tp: int, address: str) -> bool:
        """Return whether a write of ``room`` to that decode rank is one this fault is meant for."""
        return self.room in (0, room) and any(target.is_at(dp, tp, address) for target in self.targets)

    def status(self, now: float, pending: int) -> FaultStatus:
        """Return it as the client sees it; ``pending`` writes are held back or being done at this moment."""
        return FaultStatus(
            id=self.id, kind=self.kind, target=self.target, delay_s=self.delay_s,
            left_s=0.0 if self.ended else max(0.0, self.ends - now), visits=self.visits, eligible=self.eligible,
            fired=self.fired, pending=pending, owner=self.owner, room=self.room, hits=self.hits, released=self.released,
            dropped=self.dropped, failed=self.failed, last_room=self.last_room, ended=self.ended,
            leased=self.lease_expires is not None,
        )  # fmt: skip


@dataclass
class Held:
    """A write held back: ``place`` is where it goes (session and slot), equal for two writes to the same row."""

    due: float
    fault: Fault
    room: int
    release: Callable[[], object]
    still_wanted: Callable[[], bool] | None = None
    place: Hashable = None
    why_dropped: str = field(default="")
