"""Whether a rank carries the site of a fault; asked by the plan, and again by the rank itself."""

from __future__ import annotations

from pdctl.errors import Exit, PdctlError
from pdctl.inject.faults import SEAM_PREFIX
from pdctl.model import Seam


def check_site(kind: str, seams: tuple[Seam, ...], name: str = "this rank") -> None:
    """Return when the rank carries the site of ``kind``; raises PdctlError (REFUSED) naming what it lacks otherwise."""
    seam = next((seam for seam in seams if seam.name == SEAM_PREFIX + kind), None)
    if seam is None:
        raise PdctlError(
            f"{name} has no site for {kind}", "metadata is written by prefill ranks: delay it there", Exit.REFUSED
        )
    if not seam.present:
        raise PdctlError(
            f"{name} can't do {kind}, seam {seam.name} is missing: {seam.detail or 'no reason given'}",
            "pdctl ranks -o wide shows what pdctl found in each rank",
            Exit.REFUSED,
        )
