"""What is said of a request id that stands for several rooms at once, by whatever tells of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pdctl.report.findings import Finding, finding

_SHOWN, _EVIDENCE = 5, 20


def some(rooms: Sequence[int]) -> str:
    """Return the first of these rooms in words."""
    return ", ".join(map(str, rooms[:_SHOWN])) + (" …" if len(rooms) > _SHOWN else "")


def several_rooms(
    rid: str, rooms: Sequence[int], evidence: Sequence[str], *, group: str = "", units: Sequence[str] = ()
) -> Finding:
    """Return that ``rid`` has these rooms at the same time. evidence: a line for each."""
    return finding(
        "PD147",
        f"rid {rid} has {len(rooms)} rooms at the same time: {some(rooms)}.",
        group=group,
        rooms=tuple(rooms),
        evidence=tuple(evidence[:_EVIDENCE]),
        units=units,
    )
