"""The probes ``dump queues`` and ``dump groups``: what ranks say of themselves, as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec

from pdctl.probes.base import NoOptions, Option, Probe
from pdctl.protocol.documents import Rows

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.dump.model import GroupsDump, QueuesDump
    from pdctl.probes.view import View
    from pdctl.protocol.rank import Answer, FoundRank
    from pdctl.protocol.requests import Rooms


@dataclass(frozen=True)
class QueuesOptions:
    """What ``dump queues`` takes."""

    room: Annotated[tuple[int, ...], Option("--room", "Show only this room; repeatable.", "ROOM", least=1)] = ()


class Queues(Probe["QueuesOptions", "list[Answer[Rooms]]", "QueuesDump"]):
    """Show every request in every queue of every rank.

    It shows room, rid, slot, state and age.
    """

    name = "dump.queues"
    about = "every request of every queue"
    cost = "one question to each rank"
    examples = ("pdctl dump queues", "pdctl dump queues --rank prefill -o jsonl")
    bundled = "queues"
    selects = True
    options = QueuesOptions

    def document(self) -> type[QueuesDump]:
        """Return its type."""
        from pdctl.probes.dump.model import QueuesDump

        return QueuesDump

    def collect(self, view: View, options: QueuesOptions) -> list[Answer[Rooms]]:
        """Return the requests of every rank."""
        return view.rooms()

    def judge(self, evidence: list[Answer[Rooms]], options: QueuesOptions) -> QueuesDump:
        """Return the requests asked for. Raises PdctlError for a room that no rank has."""
        from pdctl.probes.dump.judge import queues_of
        from pdctl.probes.unknown import check_known

        document = queues_of(evidence)
        if options.room:
            known = {request.room for request in document.requests}
            silent = sum(1 for rank in document.ranks if rank.silence)
            those = f"the {len(document.ranks) - silent} of {len(document.ranks)} ranks that answered"
            check_known(set(options.room) - known, known, f"no queue of {those if silent else 'these ranks'}")
            wanted = tuple(request for request in document.requests if request.room in options.room)
            document = msgspec.structs.replace(document, requests=wanted)
        return document

    def render(self, document: QueuesDump, *, wide: bool) -> Iterable[RenderableType]:
        """Yield rank by rank."""
        from pdctl.probes.dump.render import queues

        return queues(document)

    def rows(self, document: QueuesDump) -> Rows:
        """Return the requests."""
        from pdctl.probes.dump.model import QueuedRequest

        return Rows(QueuedRequest, document.requests)

    def notes(self, document: QueuesDump) -> Iterable[str]:
        """Yield that nothing is there, where that is so on every rank."""
        if document.ranks and not document.requests and not document.partial:
            yield "no rank has a request; if a gauge shows some, it is stale"

    def problems(self, document: QueuesDump) -> Sequence[str]:
        """Return which ranks are silent."""
        return [f"{row.rank}: {row.silence}" for row in document.ranks if row.silence]


@dataclass(frozen=True)
class Registered:
    """The ranks that are meant, and every rank: it lends its name to the numbers in groups."""

    ranks: Sequence[FoundRank]
    every: Sequence[FoundRank]


class Groups(Probe["NoOptions", "Registered", "GroupsDump"]):
    """Show the process groups of every rank.

    It shows kind, members, and the number in PyTorch's flight recorder. Ranks register their groups when
    they start, so the list has hung and dead ranks, too.
    """

    name = "dump.groups"
    about = "the process groups of every rank"
    cost = "nothing: reads registrations"
    examples = ("pdctl dump groups", "pdctl dump groups --from incident.pdtrace")
    offline = True
    selects = True
    options = NoOptions

    def asks(self, options: NoOptions) -> bool:
        """Nobody is asked."""
        return False

    def collect(self, view: View, options: NoOptions) -> Registered:
        """Return the ranks as they registered."""
        return Registered(view.ranks, (*view.ranks, *view.others))

    def judge(self, evidence: Registered, options: NoOptions) -> GroupsDump:
        """Return the groups."""
        from pdctl.probes.dump.judge import groups_of

        return groups_of(evidence.ranks, evidence.every)

    def render(self, document: GroupsDump, *, wide: bool) -> Iterable[RenderableType]:
        """Yield them as a table."""
        from pdctl.probes.dump.render import groups

        return groups(document)

    def rows(self, document: GroupsDump) -> Rows:
        """Return the groups."""
        from pdctl.probes.dump.model import GroupRow

        return Rows(GroupRow, document.groups)

    def problems(self, document: GroupsDump) -> Sequence[str]:
        """Return of which ranks no group is known."""
        return [f"{label}: {why}" for label, why in document.silent.items()]

    def seen(self, document: GroupsDump, view: View) -> bool:
        """Return whether a rank registered any."""
        return bool(document.groups)


QUEUES = Queues()
GROUPS = Groups()
