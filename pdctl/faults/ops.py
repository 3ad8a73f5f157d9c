"""The ops ``inject renew heal faults`` inside a rank, on the agent's thread. None of them waits.

The rank checks all arguments itself: a client may be old, wrong or hostile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from pdctl.faults.capabilities import check_site
from pdctl.faults.fault import Fault
from pdctl.faults.kinds import KINDS, SEAM_PREFIX, Parameter, names
from pdctl.faults.limits import MAX_TTL_S
from pdctl.faults.messages import FaultsBody, HealArgs, HealBody, InjectArgs, InjectBody, RenewArgs, RenewBody
from pdctl.faults.table import FaultTable
from pdctl.protocol import structs
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import FaultStatus, Seam

MAX_LEASE_S = 60.0
MAX_FAULTS = 16
MAX_AT_ONCE = 1024
MAX_TARGETS = 1024
MAX_TEXT = 200

_Args = TypeVar("_Args")


class HasSeams(Protocol):
    """The part of an adapter that faults need; ``transfer_address`` is asked where it exists."""

    def seams(self) -> tuple[Seam, ...]:
        """Return the seams that were looked for in the engine's code, found or not."""


def handle(
    op: str, args: dict[str, Any], table: FaultTable, adapter: HasSeams
) -> InjectBody | RenewBody | HealBody | FaultsBody:
    """Return the body of the reply to ``inject``, ``renew``, ``heal`` or ``faults``.

    Raises PdctlError: REFUSED with the reason where a safety rule says no, USAGE where the arguments make no sense.
    """
    if op == "inject":
        return _inject(_parse(args, InjectArgs), table, adapter)
    if op == "renew":
        return _renew(_parse(args, RenewArgs), table)
    if op == "heal":
        wanted = _parse(args, HealArgs)
        ended = table.heal(wanted.id or None, wanted.why[:MAX_TEXT] or "heal")
        left = [fault for fault in table.status() if wanted.id in ("", fault.id)]
        owners = {fault.id: fault.owner for fault in table.history()}
        return HealBody(tuple(ended), tuple(left), tuple(owners.get(one, "") for one in ended))
    if op == "faults":
        sites = tuple(seam for seam in adapter.seams() if seam.name.startswith(SEAM_PREFIX))
        return FaultsBody(table.armed, table.status(), table.history(), sites, _address(adapter))
    raise PdctlError(f"no such operation: {op}", code=Exit.USAGE)


def _parse(args: dict[str, Any], kind: type[_Args]) -> _Args:
    try:
        return structs.convert(args, kind)
    except msgspec.ValidationError as error:
        raise PdctlError(f"arguments not understood: {error}", code=Exit.USAGE) from None


def _address(adapter: HasSeams) -> str:
    ask: Callable[[], str] | None = getattr(adapter, "transfer_address", None)
    return ask() if ask is not None else ""


def _inject(args: InjectArgs, table: FaultTable, adapter: HasSeams) -> InjectBody:
    _check_numbers(args)
    if not table.armed:
        raise PdctlError(
            "this rank was not armed when it started",
            "faults are possible only on a rank started with PDCTL_ARM=1",
            Exit.REFUSED,
        )
    check_site(args.kind, adapter.seams())
    now = time.monotonic()
    fault = Fault(
        id=args.id,
        kind=args.kind,
        delay_s=args.delay_s,
        placed=now,
        expires=now + args.ttl_s,
        lease_expires=now + args.lease_s,
        target=args.target[:MAX_TEXT],
        targets=args.targets,
        room=args.room,
        rid=args.rid,
        hits=args.hits,
        seed=args.seed,
        share=args.share,
        value=args.value,
        at_once=args.at_once,
        stop_failed=args.stop_failed,
        owner=args.owner[:MAX_TEXT],
    )
    try:
        refused = table.arm(fault, limit=args.limit)
    except RuntimeError as error:
        refused = f"the rank can start no thread to end a fault with ({error})"
    if refused:
        raise PdctlError(refused, "pdctl faults shows it, pdctl heal ends it", Exit.REFUSED)
    return InjectBody(fault.status(now, 0))


def _renew(args: RenewArgs, table: FaultTable) -> RenewBody:
    if args.lease_s:
        _within("lease", args.lease_s, MAX_LEASE_S)
    renewed = table.renew(args.id, args.lease_s)
    return RenewBody(renewed, _find(args.id, (*table.status(), *reversed(table.history()))))


def _find(fault_id: str, among: tuple[FaultStatus, ...]) -> FaultStatus | None:
    return next((fault for fault in among if fault.id == fault_id), None)


def _check_numbers(args: InjectArgs) -> None:
    if args.kind not in KINDS:
        raise PdctlError(f"unknown fault {args.kind[:MAX_TEXT]}; this rank knows {names()}", code=Exit.REFUSED)
    if not args.id or len(args.id) > 64 or not args.id.isprintable():
        raise PdctlError("a fault needs an id of 1 to 64 printable characters", code=Exit.USAGE)
    if not 1 <= len(args.targets) <= MAX_TARGETS:
        raise PdctlError(f"{len(args.targets)} targets: a fault needs 1 to {MAX_TARGETS}", code=Exit.USAGE)
    _check_parameter(args)
    _within("time to live", args.ttl_s, MAX_TTL_S)
    _within("lease", args.lease_s, MAX_LEASE_S)
    if not 0 <= args.room < 1 << 64 or not 0 <= args.hits < 1 << 31 or not 1 <= args.limit <= MAX_FAULTS:
        raise PdctlError("room, hits or limit is out of range", code=Exit.USAGE)
    if not KINDS[args.kind].per_room and (args.room or args.rid):
        raise PdctlError(f"{args.kind} is about no single room", code=Exit.USAGE)
    if not 0 < args.share <= 1 or not 0 <= args.seed < 1 << 64 or not 1 <= args.at_once <= MAX_AT_ONCE:
        raise PdctlError("share, seed or rooms at once is out of range", code=Exit.USAGE)
    if not 0 <= args.stop_failed < 1 << 31:
        raise PdctlError("the number of failed rooms to stop at is out of range", code=Exit.USAGE)
    if len(args.rid) > MAX_TEXT or (args.rid and not args.rid.isprintable()):
        raise PdctlError(f"a rid has at most {MAX_TEXT} printable characters", code=Exit.USAGE)


def _check_parameter(args: InjectArgs) -> None:
    kind = KINDS[args.kind]
    if kind.parameter is Parameter.DURATION:
        _within("duration", args.delay_s, kind.most_s)
    elif args.delay_s != 0:
        raise PdctlError(f"{kind.name} takes no duration", code=Exit.USAGE)
    if not 0 <= args.value <= kind.parameter.most:
        raise PdctlError(f"{kind.name}: {args.value} is no {kind.parameter.noun} it can take", code=Exit.USAGE)


def _within(name: str, seconds: float, most: float) -> None:
    if not 0 < seconds <= most:  # false for NaN as well
        raise PdctlError(f"{name} of {seconds:g} s: it must be over 0 and at most {most:g} s", code=Exit.REFUSED)
