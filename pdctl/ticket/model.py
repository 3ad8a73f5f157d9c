"""What a report is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.report.findings import Finding, Level

if TYPE_CHECKING:
    from pdctl.probes.check.model import CheckDocument
    from pdctl.probes.config.model import ConfigDocument
    from pdctl.probes.queues.model import GroupReport
    from pdctl.probes.ranks.judge import RankRow
    from pdctl.probes.stacks.model import StacksDocument
    from pdctl.probes.story.model import RoomStory
    from pdctl.replay.heat import Heat
    from pdctl.trace.manifest import Manifest

_ORDER = (Level.ERROR, Level.WARNING, Level.INFO)


@dataclass(frozen=True)
class Case:
    """All that is known of a bundle or a trace. name: of the file. check: what was found; live: it is of ranks that were asked.

    ranks: who was there, as a bundle was told or recordings show. heats: maps of rounds × ranks; more_heats: how many more
    there are. stacks, config: of a bundle, None without them.
    unseen: what was not seen, a line each.
    """

    name: str
    manifest: Manifest
    check: CheckDocument
    live: bool
    ranks: tuple[RankRow, ...] = ()
    groups: tuple[GroupReport, ...] = ()
    heats: tuple[Heat, ...] = ()
    more_heats: int = 0
    stories: tuple[RoomStory, ...] = ()
    stacks: StacksDocument | None = None
    config: ConfigDocument | None = None
    unseen: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, causes before what follows from them, the worst first."""
        return tuple(sorted(self.check.findings, key=lambda one: (bool(one.follows), _ORDER.index(one.level))))

    @property
    def worst(self) -> Finding | None:
        """The finding that a report begins with, None where nothing of level warning or above was found."""
        return next((one for one in self.findings if one.level is not Level.INFO), None)

    @property
    def versions(self) -> tuple[str, ...]:
        """The engines and their versions."""
        found = (f"{one.engine} {one.engine_version}" for one in self.ranks)
        return tuple(dict.fromkeys(found))

    @property
    def verdict(self) -> tuple[str, str]:
        """``error``, ``warning``, ``unknown`` or ``ok``, and that in words."""
        if self.worst is not None:
            level = self.worst.level.value
            return level, "Something is wrong." if level == "error" else "Something needs a look."
        if self.check.partial or self.manifest.partial:
            return "unknown", "Nothing was found in what could be seen. Not all could be seen."
        return "ok", "Nothing was found."
