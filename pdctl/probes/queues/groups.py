"""The process groups that polls are reduced over, each with what is known of its members. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pdctl.probes.queues.compare import Comparison
from pdctl.probes.queues.model import RankView
from pdctl.protocol.model import GroupInfo
from pdctl.targets.servers import told_apart

KINDS = ("attn-tp", "attn-cp")
"""Kinds of groups that polls are reduced over."""


@dataclass
class Group:
    """One process group of one server start, with the views of its members in group order (None: nothing is known)."""

    info: GroupInfo
    members: list[RankView | None]
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    judged: list[int] = field(default_factory=list)  # members with rounds, by index
    of: str = ""  # its server, where another has a group of the same name

    @property
    def known(self) -> list[RankView]:
        """The members of which something is known."""
        return [view for view in self.members if view is not None]

    def place(self, index: int) -> str:
        """Return how member ``index`` is called in its group: tp1, or its coordinate in a cp group."""
        view = self.members[index]
        if view is None:
            return f"rank {self.info.ranks[index]}"
        return f"cp{view.identity.cp}" if self.info.kind == "attn-cp" else view.place

    @property
    def title(self) -> str:
        """``decode dp0 pp0 · attention-TP group of 2``."""
        one = self.known[0].identity
        kind = {"attn-tp": "attention-TP", "attn-cp": "attention-CP"}.get(self.info.kind, self.info.kind)
        more = f" tp{one.tp}" if self.info.kind == "attn-cp" else f" cp{one.cp}" if one.cp_size > 1 else ""
        server = f" · {self.of}" if self.of else ""
        return f"{one.role} dp{one.dp} pp{one.pp}{more} · {kind} group of {self.info.size}{server}"


def groups_of(views: Iterable[RankView]) -> list[Group]:
    """Return the groups polls are reduced over, each once; groups of one rank only where its server has no larger."""
    found: dict[str, Group] = {}
    for view in views:
        for info in view.identity.groups:
            if info.kind not in KINDS or (info.kind != "attn-tp" and info.size == 1):
                continue
            group = found.setdefault(info.key, Group(info, [None] * info.size))
            if view.identity.world_rank in info.ranks:
                group.members[info.ranks.index(view.identity.world_rank)] = view
    groups = [group for group in found.values() if group.known]
    apart = told_apart([group.known[0].identity for group in groups], [group.title for group in groups])
    for group, server in zip(groups, apart, strict=True):
        group.of = server
    return groups
