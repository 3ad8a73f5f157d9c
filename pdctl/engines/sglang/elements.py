"""The element type of SGLang's reduced polls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pdctl.engines.sglang import seams

UINT8, INT32 = "uint8", "int32"


def reduced_type(modules: Mapping[str, Any] | None = None) -> str:
    """Return the element type that the loaded code reduces polls in, "" where it does not tell.

    modules: the loaded modules of the rank, if it is another process.
    """
    utils = seams.module(seams.UTILS, modules)
    for name in seams.REDUCERS:
        named = seams.names_in(getattr(utils, name, None))
        if "all_reduce" in named:
            return next((kind for kind in (UINT8, INT32) if kind in named), "")
    return ""


def poll_type(version: str) -> str:
    """Return the element type of a recording that does not tell it: int32 from 0.5.23 on, uint8 before."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return UINT8 if found is None or tuple(map(int, found.groups())) < (0, 5, 23) else INT32
