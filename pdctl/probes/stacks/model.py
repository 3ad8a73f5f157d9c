"""What ``stacks`` takes and gives: looks at ranks in; a tree, outliers, collectives and findings out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pdctl.protocol.documents import Document
from pdctl.protocol.model import Call, FlightEntry, Frame, Identity, Status
from pdctl.report.findings import Finding

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording


@dataclass(frozen=True)
class RankLooks:
    """All looks at one rank, oldest first. silence: why it gave no (more) answer, "" when it gave all.

    flight: its flight recorder where it was asked; flight_off: why there is none. outside: its stack as another process
    read it, innermost frame first. in_kernel: "in an uninterruptible wait in the kernel (…)" where its process was in one.
    """

    identity: Identity
    state: str
    silence: str = ""
    looks: tuple[Status, ...] = ()
    recording: Recording | None = None
    flight: tuple[FlightEntry, ...] = ()
    flight_off: str = ""
    outside: tuple[Frame, ...] = ()
    in_kernel: str = ""

    @property
    def last(self) -> Status | None:
        """The newest look, None without one."""
        return self.looks[-1] if self.looks else None


class RankStack(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's row.

    state: ``live`` (it answered), ``silent`` (its process runs, it did not), ``dead``, ``recorded``, ``no agent``; reason
    says more. source: where the stack is from: ``agent``, ``outside`` (another process read it) or "" without one.
    moves: ``stuck`` (the same stack and turn in every look), ``moving``, ``idle`` (its whole group waits for requests), ""
    with fewer than two looks.
    stood_s: for how long it was seen stuck. where: its main thread, in words. stack: innermost frame first.
    last_round: how far its recording says it got, for ranks that do not answer. outlier: it stands elsewhere than its group.
    """

    rank: str
    state: str
    reason: str = ""
    source: str = ""
    moves: str = ""
    stood_s: float = 0.0
    outlier: bool = False
    where: str = ""
    last_round: str = ""
    ticks: int | None = None
    call: Call | None = None
    stack: tuple[Frame, ...] = ()
    pid: int = 0
    host: str = ""


class Standing(msgspec.Struct, frozen=True):
    """Ranks of a group that are at the same place. ranks: folded, without what the group has in common.

    moves: as of the ranks, ``mixed`` where they differ.
    """

    ranks: str
    members: tuple[str, ...]
    where: str
    moves: str = ""
    outlier: bool = False


class GroupStacks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of one server that work on the same requests, by where they are, outliers first.

    reason: in words who is elsewhere than the others, "" when nobody is or all move. size: ranks it should have.
    """

    title: str
    size: int
    places: tuple[Standing, ...]
    reason: str = ""


class TreeFrame(msgspec.Struct, frozen=True, array_like=True):
    """A frame that ranks have in common: function, file, lines (folded), and whether it stayed.

    moves: ``stuck`` where each rank had it in all looks without a turn in between, ``idle``, else ``moving``; ``mixed``
    where ranks differ, "" with one look only.
    """

    function: str
    file: str
    lines: str
    moves: str = ""


class TreeNode(msgspec.Struct, frozen=True):
    """A part of the merged stacks in which no rank branches off. frames: outermost first. ranks: folded.

    ends: those of them whose innermost frame is the last one here, folded.
    """

    ranks: str
    count: int
    frames: tuple[TreeFrame, ...]
    children: tuple[TreeNode, ...] = ()
    ends: str = ""


class Collective(msgspec.Struct, frozen=True):
    """One collective of a group as a rank knows it.

    seq: its number in the group, -1 unknown. size: elements (``7``) or shapes (``2x16``), "" unknown.
    state: ``in it`` (the main thread is), ``not over`` or ``over`` (the flight recorder), ``entered`` (only its number is
    known). source: ``stack``, ``flight recorder`` or ``count``. inside: the engine's step around it.
    """

    seq: int
    op: str = ""
    size: str = ""
    state: str = ""
    source: str = ""
    inside: str = ""


class CollectiveRow(msgspec.Struct, frozen=True):
    """Ranks of a group with the same current and last collective. ranks: folded. current: None outside of any."""

    ranks: str
    members: tuple[str, ...]
    current: Collective | None
    last: Collective | None


class GroupCollectives(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one torch process group.

    title: what its ranks have in common. kind: ``attn-tp``, ``tp``, …, "" unknown; pg: torch's name of it.
    size: members; seen: those that said where they are. in_step: all have the same number; None where some were not
    seen, or numbers can't be compared. mispaired: in words, ranks that do different things under one number.
    """

    title: str
    kind: str
    pg: str
    size: int
    rows: tuple[CollectiveRow, ...]
    seen: int
    in_step: bool | None = None
    mispaired: tuple[str, ...] = ()


class StacksDocument(Document, frozen=True, kw_only=True, tag="pdctl.stacks"):
    """Answer of ``pdctl stacks``. looks: how often ranks were looked at; span_s: seconds from the first to the last.

    partial: not every rank answered; problems say why. notes: what is less than it could be.
    """

    looks: int
    span_s: float
    groups: tuple[GroupStacks, ...]
    tree: tuple[TreeNode, ...]
    ranks: tuple[RankStack, ...]
    collectives: tuple[GroupCollectives, ...] = ()
    findings: tuple[Finding, ...] = ()
    partial: bool = False
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
