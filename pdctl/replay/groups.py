"""The rounds of a trace that can be executed again: the queues of every group of several ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdctl.probes.queues.groups import groups_of
from pdctl.probes.queues.model import RankView
from pdctl.protocol.model import POLLED_QUEUES
from pdctl.recording.reader import Recording


@dataclass(frozen=True)
class GroupQueue:
    """A queue of a group. recordings: of its ranks, in group order, of which some has rounds. missing: ranks without one.

    A rank that has a recording and no rounds of the queue has always found it empty.
    """

    queue: str
    title: str
    recordings: tuple[Recording, ...]
    missing: tuple[str, ...]


def targets(views: Sequence[RankView], queues: Sequence[str] = ()) -> list[GroupQueue]:
    """Return the targets that can be replayed, for ``queues`` or for all. Groups of one rank have nothing to compare."""
    found = []
    for group in groups_of(views):
        if group.info.size < 2:
            continue
        for queue in queues or POLLED_QUEUES:
            there: list[Recording] = []
            missing: list[str] = []
            for index, view in enumerate(group.members):
                recording = view.recording if view is not None else None
                if recording is None:
                    missing.append(group.place(index))
                else:
                    there.append(recording)
            if any(recording.stream(queue, group.info.kind) is not None for recording in there):
                found.append(GroupQueue(queue, group.title, tuple(there), tuple(missing)))
    return found
