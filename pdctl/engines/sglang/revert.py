"""Takes a fix out of a rank at its start, so that a drill can show on one version what the fix prevents.

``PDCTL_REVERT=gate``, on armed ranks only: a test's ranks, never those that serve.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pdctl.engines.base import Hooks, Site
from pdctl.engines.sglang import seams
from pdctl.protocol.model import Seam

VARIABLE = "PDCTL_REVERT"


def parse_reverts() -> tuple[tuple[str, ...], str]:
    """Return the fixes to take out of this rank, and what is wrong with the variable, "" if nothing is."""
    asked = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    if not asked:
        return (), ""
    if os.environ.get("PDCTL_ARM", "").strip().lower() not in ("1", "on", "yes", "true"):
        return (), f"{VARIABLE} is for armed ranks: PDCTL_ARM=1 is not set"
    unknown = [name for name in asked if name != "gate"]
    if unknown:
        return (), f"{VARIABLE}={','.join(unknown)}: only gate can be taken out"
    utils = seams.module(seams.UTILS)
    if utils is None or not hasattr(utils, seams.GATE):
        return (), f"{VARIABLE}=gate: this version has none"
    return ("gate",), ""


def revert(hooks: Hooks) -> list[Seam]:
    """Take the requested fixes out, before any other hook is installed. Return a seam with the result, if any is requested."""
    names, wrong = parse_reverts()
    if wrong:
        return [Seam("revert", False, wrong)]
    if not names:
        return []
    hooks.wrap(seams.module(seams.UTILS), seams.GATE, "revert", _open)
    return [Seam("revert", True, f"{seams.GATE} lets every poll pass ({VARIABLE}=gate)")]


def _open(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
    del original, site

    def open_gate(*_: Any, **__: Any) -> None:
        """Hold nothing: polls go into the collective unchanged."""

    return open_gate
