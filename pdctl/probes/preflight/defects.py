"""Known defects that a deployment can meet, by the versions that the catalogue of findings has for them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from pdctl.probes.preflight.checks import line
from pdctl.probes.preflight.model import ERROR, INFO, OK, UNKNOWN, WARNING, Line, Pair, Side
from pdctl.probes.routing.facts import CONFLICTING, FOLLOW, forces_query
from pdctl.protocol import versions
from pdctl.protocol.requests import FORCE_QUERY
from pdctl.report.findings import catalogue

SGLANG = "sglang"
_TOLD = ("gate", "aborts")
"""Protections that an SGLang rank tells of; for others its version counts."""
_POOL, _POOL_NAME = "SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "INTRA_NODE_NVLINK"


class Defect(NamedTuple):
    """A defect that the catalogue knows. code: of the finding that it becomes. on: the side whose version counts.

    lacks: the protection whose absence is this defect, as ranks may tell it. met: whether a pair
    has what the defect needs. found: what happens then. cure: the catalogue's advice is for when it has happened.
    """

    code: str
    on: str
    verdict: str
    met: Callable[[Pair], bool]
    found: str
    cure: str
    lacks: str


def _dp_follows(pair: Pair) -> bool:
    values = pair.prefill.values
    return pair.prefill.number("dp_size", 1) > 1 and values.get("load_balance_method") == FOLLOW


DEFECTS = (
    Defect(
        "PD101", "decode", WARNING,
        lambda pair: pair.decode.group > 1 and not _over_nixl(pair.decode),
        "no gate waits for metadata: where it lands on one rank of a group before another, the group hangs",
        "Upgrade decode to 0.5.13 or newer.",
        "gate",
    ),
    Defect(
        "PD130", "decode", WARNING,
        lambda pair: pair.decode.group > 1 and _POOL_NAME in _pools(pair.decode),
        "metadata is written over NVLink asynchronously, and nothing waits for it",
        "Upgrade decode to 0.5.13 or newer, or set SGLANG_MOONCAKE_SEND_AUX_TCP=1 on prefill until then.",
        "metadata-sync",
    ),
    Defect(
        "PD152", "prefill", WARNING,
        lambda pair: pair.prefill.number("pp_size", 1) > 1,
        "a later stage keeps a request for ever that fails on the first stage one round earlier",
        "Upgrade prefill to 0.5.13 or newer.",
        "orphan-drain",
    ),
    Defect(
        "PD106", "decode", WARNING,
        lambda pair: pair.prefill.number("dp_size", 1) > 1 and pair.prefill.values.get("load_balance_method", FOLLOW) != FOLLOW,
        "each rank asks for a room's dp rank by itself, and ranks part where one hears it later",
        "Upgrade decode to 0.5.10.post1 or newer, or use follow_bootstrap_room on prefill.",
        "receiver",
    ),
    Defect(
        "PD124", "prefill", ERROR,
        lambda pair: _dp_follows(pair) and forces_query(pair.prefill.env) and forces_query(pair.decode.env),
        f"with {FORCE_QUERY} decode asks for every room, and this prefill registers only those that conflict",
        f"Unset {FORCE_QUERY} on both sides, or upgrade prefill to a version that registers every room.",
        "register-every-room",
    ),
    Defect(
        "PD120", "prefill", INFO,
        _dp_follows,
        "a room that the router sends to another dp rank than room % dp_size waits for ever, without an error",
        "Let the router choose dp rank room % dp_size, or upgrade prefill to 0.5.11 or newer.",
        "dp-registration",
    ),
    Defect(
        "PD117", "prefill", WARNING,
        lambda pair: _over_nixl(pair.prefill),
        "an abort or a time-out on decode ends prefill's bootstrap thread",
        "Upgrade prefill to 0.5.18 or newer.",
        "aborts",
    ),
    Defect(
        "PD131", "decode", INFO,
        lambda pair: pair.decode.group == 1,
        "slots are not zeroed: a row that comes late reads as another request's, and that request is aborted",
        "Upgrade decode to 0.5.13 or newer.",
        "zero-on-free",
    ),
)  # fmt: skip


def defects(pair: Pair) -> Iterator[Line]:
    """Yield a line for each known defect that a pair can meet; one where there is none."""
    sides = {"prefill": pair.prefill, "decode": pair.decode}
    untold = []
    seen = False
    for defect in DEFECTS:
        if not defect.met(pair):
            continue
        side = sides[defect.on]
        has = _has(defect, side)
        if defect.code == "PD124" and side.registers:
            has = side.registers == CONFLICTING
        if has is None:
            untold.append(defect.code)
        elif has:
            seen = True
            version = f" {side.version}" if side.engine == SGLANG else ""
            found = f"{defect.code} is known for {defect.on}{version}: {defect.found}"
            yield line("defects", defect.verdict, found, about=pair.name, code="PD172", cure=defect.cure)
    if untold:
        said = f"{', '.join(untold)}: whether this version has the defect is not known"
        yield line("defects", UNKNOWN, said, about=pair.name)
    elif not seen and (unsaid := [role for role, side in sides.items() if not _told_of(side)]):
        said = f"version or settings of {' and '.join(unsaid)} are not told"
        yield line("defects", UNKNOWN, said, about=pair.name)
    elif not seen:
        told = " and ".join(dict.fromkeys(side.version for side in sides.values() if side.version))
        yield line("defects", OK, f"none of the known ones fits {told or 'these versions'} set up so", about=pair.name)


def _told_of(side: Side) -> bool:
    """Return whether a side is known well enough to have no known defect."""
    return not side.silence and (bool(side.version) or side.lacks is not None)


def _has(defect: Defect, side: Side) -> bool | None:
    """Return whether the code of a side has a defect, None unknown. Loaded code knows better than its number."""
    if side.lacks is not None and (side.engine != SGLANG or defect.lacks in _TOLD):
        return defect.lacks in side.lacks
    return versions.within(side.version, catalogue()[defect.code].affects) if side.engine == SGLANG else None


def _pools(side: Side) -> tuple[str, ...]:
    return ((side.env or {}).get(_POOL, ""), side.values.get("custom_mem_pool_type", ""))


def _over_nixl(side: Side) -> bool:
    return side.values.get("disaggregation_transfer_backend") == "nixl"
