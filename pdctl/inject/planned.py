"""What ``pdctl inject`` says of a fault: the document of a plan, and how a dry run draws it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pdctl.faults.kinds import KINDS
from pdctl.faults.limits import LEASE_S
from pdctl.inject.parameter import format_fault
from pdctl.protocol import durations
from pdctl.protocol.documents import Document

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.inject.plan import Plan
    from pdctl.inject.wish import Wish


class OtherFault(msgspec.Struct, frozen=True):
    """A fault that is in place in the same cluster already, and a rank that holds it."""

    fault: str
    kind: str
    owner: str
    target: str
    rank: str


class Planned(Document, frozen=True, kw_only=True, tag="pdctl.inject"):
    """A planned or placed fault. Times in seconds. value: state, dp rank or room, for a kind with one, else 0.

    targets: ranks that are hit. on: ranks that carry the fault. share: 0 to 1. changed: False for a dry run. others: faults in
    place in the cluster before this one.
    """

    fault: str
    kind: str
    targets: list[str]
    on: list[str]
    delay_s: float
    ttl_s: float
    lease_s: float
    room: int
    hits: int
    value: int
    rid: str
    seed: int
    share: float
    changed: bool
    others: list[OtherFault]


def document_of(plan: Plan, wish: Wish, *, placed: bool) -> Planned:
    """Return the document of a placed fault that outlives its command, and so has no lease; or that of a dry run."""
    return Planned(
        fault=wish.fault_id,
        kind=wish.kind,
        targets=[target.label for target in plan.targets],
        on=[f"{identity.label} on {identity.host}, pid {identity.pid}" for identity in plan.on],
        delay_s=wish.delay_s,
        ttl_s=wish.ttl_s,
        lease_s=0.0 if placed else LEASE_S,
        room=plan.args.room,
        hits=plan.args.hits,
        value=wish.value,
        rid=wish.rid,
        seed=wish.seed,
        share=wish.share,
        changed=placed,
        others=[
            OtherFault(fault.id, fault.kind, fault.owner, fault.target, identity.label)
            for identity, fault in plan.others
        ],
    )


def draw(planned: Planned, console: Console, *, at_once: int) -> None:
    """Draw a dry run. at_once: how many rooms the fault may hold at a time."""
    kind = KINDS[planned.kind]
    if not kind.per_room:
        room = "any: it is about no single one"
    elif planned.room:
        room = str(planned.room)
    elif planned.rid:
        room = f"of request {planned.rid}"
    else:
        room = "one at a time, the next that comes" if at_once == 1 else f"{at_once} at a time, the next that come"
    most = f", at most {planned.hits}" if planned.hits else ""
    share = "" if planned.share == 1 else f", {planned.share:.4%} of visits by seed {planned.seed}"
    lease = durations.show(planned.lease_s)
    for name, value in (
        ("fault", format_fault(planned.kind, planned.delay_s, planned.value)),
        ("site", kind.seam),
        ("aims at", ", ".join(planned.targets)),
        ("placed on", "; ".join(planned.on)),
        ("room", f"{room}{most}{share}"),
        ("ends", f"after {durations.show(planned.ttl_s)}, or {lease} after the last beat of this command"),
    ):
        console.print(f"{name:<10} {value}")
    console.print("dry run: nothing was changed")
