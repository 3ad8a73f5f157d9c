"""The element type of SGLang's reduced polls."""

from __future__ import annotations

import re

UINT8, INT32 = "uint8", "int32"


def poll_type(version: str) -> str:
    """Return the element type of the tensor that ``poll_and_all_reduce`` reduces.

    uint8 up to 0.5.18 (``torch.tensor(polls, dtype=torch.uint8)``), int32 in 0.5.23 (``_all_reduce_polls``). The releases
    between were not examined; pdctl assumes int32.
    """
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return UINT8 if found is None or tuple(map(int, found.groups())) <= (0, 5, 18) else INT32
