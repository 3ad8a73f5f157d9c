"""Servers most of whose requests end badly: by an abort, or by a failure. Recordings tell. :func:`judge` is pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pdctl.probes.check.model import Outcome
from pdctl.probes.processes import now_ns
from pdctl.protocol.model import QUEUES, EventKind, Identity
from pdctl.report.findings import Finding, finding

if TYPE_CHECKING:
    from pdctl.probes.view import View
    from pdctl.recording.reader import Recording

STAGE = "aborts"
WITHIN_S = 60.0
"""How far back requests are counted."""
LEAST, SHARE = 30, 0.5
"""A storm: so many requests that ended badly within WITHIN_S, and so many of those that came."""
_FIRST = ("prefill.bootstrap", "decode.pending", "decode.prealloc")


@dataclass(frozen=True)
class Counted:
    """Requests of one rank within WITHIN_S: how many came, were aborted by somebody, and failed."""

    identity: Identity
    came: int
    aborted: int
    failed: int


def look(view: View) -> Outcome:
    """Count in the recordings of one rank of each data-parallel rank; the others of it have the same requests."""
    first: dict[str, Counted] = {}
    for rank in view.ranks:
        if rank.live and rank.recording is not None and rank.access is None and rank.identity.unit not in first:
            recording = view.recording(rank, sockets=False).body
            now = now_ns(rank, recording.start_wall_ns, recording.start_mono_ns) if recording is not None else None
            if recording is not None and now is not None:
                first[rank.identity.unit] = count(rank.identity, recording, now)
    return Outcome(STAGE, "", tuple(judge(first.values())))


def count(identity: Identity, recording: Recording, now_ns: int) -> Counted:
    """Count the requests in a recording that came and went within WITHIN_S before ``now_ns``, on its clock."""
    table = recording.event_table()
    late = table[table["mono_ns"] >= now_ns - int(WITHIN_S * 1e9)]

    def rooms(kind: EventKind, queues: Sequence[str] = ()) -> int:
        meant = late["kind"] == int(kind)
        if queues:
            meant &= np.isin(late["queue"], [QUEUES.index(queue) for queue in queues])
        return len(np.unique(late["room"][meant]))

    aborts = late["text"][late["kind"] == int(EventKind.ABORT)]
    return Counted(identity, rooms(EventKind.ENQUEUE, _FIRST), len(np.unique(aborts)), rooms(EventKind.FAILURE))


def judge(counted: Iterable[Counted]) -> list[Finding]:
    """Return a finding for each data-parallel rank in a storm."""
    found = []
    for one in counted:
        bad = max(one.aborted, one.failed)
        if bad < LEAST or bad < SHARE * one.came:
            continue
        label = one.identity.label
        summary = (
            f"{label}: of {one.came} requests that came within {WITHIN_S:.0f} s, {one.failed} failed, "
            f"and {one.aborted} aborts came."
        )
        evidence = (f"{one.came} rooms enqueued first, {one.failed} with a failure, {one.aborted} request ids aborted",)
        found.append(finding("PD154", summary, ranks=(label,), evidence=evidence, units=(one.identity.unit,)))
    return found
