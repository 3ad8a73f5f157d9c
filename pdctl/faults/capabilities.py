"""Which fault sites a rank has. The plan checks this, and the rank checks it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdctl.faults.kinds import KINDS, Kind
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import Seam


@dataclass(frozen=True)
class Capability:
    """Whether one rank can carry one kind of fault. detail: the hooked function, or why the site is missing."""

    kind: Kind
    present: bool
    detail: str


def site_of(kind: Kind, seams: Sequence[Seam], role: str = "") -> Capability:
    """Return whether a rank with these seams can carry ``kind``. ``role``: its role if known, used for the reason."""
    seam = next((seam for seam in seams if seam.name == kind.seam), None)
    if seam is not None:
        return Capability(kind, seam.present, seam.detail or ("" if seam.present else "no reason given"))
    if role and kind.carrier not in ("any", role):
        return Capability(kind, False, f"its site is in {kind.carrier} ranks")
    return Capability(kind, False, "this engine, or this version of pdctl in the rank, has no site for it")


def sites_of(seams: Sequence[Seam], role: str) -> list[Capability]:
    """Return every kind, in the order of KINDS, with whether the rank can carry it."""
    return [site_of(kind, seams, role) for kind in KINDS.values()]


def check_site(kind: str, seams: Sequence[Seam], name: str = "this rank", role: str = "") -> None:
    """Raise PdctlError (REFUSED), with the missing part, unless the rank has the site of ``kind``."""
    site = site_of(KINDS[kind], seams, role)
    if not site.present:
        raise PdctlError(
            f"{name} can't do {kind}: no seam {site.kind.seam} ({site.detail})",
            "pdctl faults --available shows what each rank can do",
            Exit.REFUSED,
        )
