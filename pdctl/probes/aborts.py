"""Warns where a next step advises an abort on decode, and the engine's prefill does not survive one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from pdctl.protocol.model import Identity
from pdctl.report.findings import Finding

_ADVISED = re.compile(r"\bAbort (?:(?:it )?on (?:the )?decode\b|the (?:request|room)\b(?! on prefill))")
_GONE = frozenset(("PD113",))
"""Where the server that would get the message has ended."""
WARNING = (
    "But in this version an abort on decode, and decode's time-out, ends prefill's bootstrap thread, and no request goes"
    " through until prefill is restarted (sgl-project/sglang PR 30352): do that then, and upgrade prefill to 0.5.18 or newer."
)


def with_warnings(findings: Sequence[Finding], ranks: Iterable[Identity]) -> tuple[Finding, ...]:
    """Return the findings, with a warning where the next step is an abort that ends a thread of prefill.

    ranks: all that were found.
    """
    known = list(ranks)
    deadly = {one.cluster for one in known if one.role == "prefill" and "aborts" in one.lacks}
    if not deadly:
        return tuple(findings)
    clusters = {one.unit: one.cluster for one in known}

    def warned(found: Finding) -> Finding:
        of = {clusters[unit] for unit in found.units if unit in clusters} or deadly
        if found.code in _GONE or of.isdisjoint(deadly) or not _ADVISED.search(found.next_step):
            return found
        return msgspec.structs.replace(found, next_step=f"{found.next_step} {WARNING}")

    return tuple(map(warned, findings))
