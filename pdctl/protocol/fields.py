"""Types of fields. What comes from a file or a socket is checked against them as it is decoded."""

from __future__ import annotations

from typing import Annotated

import msgspec

Name = Annotated[str, msgspec.Meta(max_length=1024, pattern=r"^(?![\s\S]*[\x00-\x1f\x7f-\x9f\u2028\u2029])")]
"""A name: in one line, without control characters."""
Coordinate = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 20)]
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
Member = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
ProcessId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""A number that counts up, or a time in ns: two of them can be added in 64 bits."""
MonoNs = Annotated[int, msgspec.Meta(ge=0, lt=1 << 60)]


def why_not(error: Exception) -> str:
    """Return a readable reason why a value could not be decoded: a regular expression is not one."""
    said, at, place = str(error).rpartition(" - at ")
    if not said.startswith("Expected `str` matching regex"):
        return str(error)
    return f"characters that may not be there{at}{place}"
