"""The probe ``metadata``: ``pdctl dump metadata``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pdctl.probes.base import Option, Probe
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, PdctlError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.metadata.model import MetadataDocument, RankRows
    from pdctl.probes.view import View


@dataclass(frozen=True)
class MetadataOptions:
    """What ``dump metadata`` takes. sums: with checksums of the rows."""

    slot: Annotated[tuple[int, ...], Option("--slot", "Show only this slot; repeatable.", "SLOT", least=0)] = ()
    room: Annotated[tuple[int, ...], Option("--room", "Show only this room; repeatable.", "ROOM", least=1)] = ()
    all_slots: Annotated[bool, Option("--all-slots", "Show free slots without a room, too.")] = False
    sums: bool = True


@dataclass(frozen=True)
class Seen:
    """Every rank's rows and past, and when they were read, in seconds on the wall clock."""

    ranks: list[RankRows]
    now_s: float


class MetadataSlots(Probe["MetadataOptions", "Seen", "MetadataDocument"]):
    """Show each metadata slot: room, owner, and when it landed.

    It also says whether metadata can land late on a rank. pdctl reads the rows without stopping the rank. It shows rooms
    and checksums (-o wide, json), and never the rows. For dead ranks, and with --from, recordings show the requests that
    were committed or aborted while another room was in their slot.
    """

    name = "metadata"
    about = "slots hold their owners' rooms"
    cost = "reads slots twice, and recordings"
    examples = ("pdctl dump metadata --rank decode --all-slots", "pdctl dump metadata --from incident.pdtrace")
    offline = True
    untold = "what is in the slots"
    selects = True
    options = MetadataOptions

    def in_check(self, pause_s: float) -> MetadataOptions:
        """Return the options without checksums."""
        return MetadataOptions(sums=False)

    def collect(self, view: View, options: MetadataOptions) -> Seen:
        """Return the rows of every rank, and what recordings tell of earlier ones."""
        from pdctl.probes.metadata.collect import collect

        rows = collect(view, slots=options.slot, rooms=options.room, every=options.all_slots, sums=options.sums)
        return Seen(rows, time.time())

    def judge(self, evidence: Seen, options: MetadataOptions) -> MetadataDocument:
        """Return every slot with whose it is. Raises PdctlError for a room or a slot that no rank has."""
        from pdctl.probes.metadata.judge import judge

        document = judge(evidence.ranks, now_s=evidence.now_s, every=options.sums)
        _known(evidence.ranks, document, options)
        return document

    def render(self, document: MetadataDocument, *, wide: bool) -> Iterable[RenderableType]:
        """Yield rank by rank."""
        from pdctl.probes.metadata.render import render

        return render(document, wide=wide)

    def rows(self, document: MetadataDocument) -> Rows:
        """Return the slots."""
        from pdctl.probes.metadata.model import SlotReport

        return Rows(SlotReport, document.slots)

    def summary(self, document: MetadataDocument) -> str:
        """Return how many slots are in use, on the ranks that answered."""
        if all(rank.silence for rank in document.ranks):
            return ""
        taken = sum(rank.taken for rank in document.ranks)
        return f"{taken} slot{'s'[: taken != 1]} in use, each its owner's"


def _known(ranks: Sequence[RankRows], document: MetadataDocument, options: MetadataOptions) -> None:
    sizes = [one.body.slots for one in ranks if one.body is not None]
    beyond = [slot for slot in options.slot if sizes and slot >= max(sizes)]
    if beyond:
        raise PdctlError(f"there is no slot {beyond[0]}", f"these ranks have slots 0 to {max(sizes) - 1}", Exit.USAGE)
    if options.room:
        from pdctl.probes.unknown import check_known

        here = {room for slot in document.slots for room in (slot.expected, slot.found) if room}
        past = {room for one in ranks if one.history is not None for room in one.history.rooms}
        live = {h.room for one in ranks if one.body is not None for h in one.body.holders}
        check_known(set(options.room) - here, past | live, "no metadata slot of these ranks")


PROBE = MetadataSlots()
