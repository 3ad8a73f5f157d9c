"""Every probe, once: its command, the line that ``pdctl --help`` has of it, where it is, and its place in ``check``.

Plain data: a probe is imported when its command is used, or its help is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.probes.base import AnyProbe


@dataclass(frozen=True)
class Entry:
    """One probe. command: as people type it. where: module in ``pdctl.probes``, and name in it.

    stage: its place among the stages of ``check``, from cheap to intrusive; 0: it is none.
    """

    command: str
    where: str
    about: str = ""
    stage: int = 0

    def load(self) -> AnyProbe:
        """Return the probe."""
        module, name = self.where.split(":")
        probe: AnyProbe = getattr(import_module(f"pdctl.probes.{module}"), name)
        return probe


@dataclass(frozen=True)
class Group:
    """A command whose subcommands are probes. about: for ``pdctl --help``. help: its own."""

    about: str
    help: str


GROUPS = {
    "dump": Group(
        "Show slots, queues, groups, settings or leaks, rank by rank.",
        "Show slots, queues, groups, settings or leaks, rank by rank.",
    )
}
PROBES = (
    Entry("check", "check.probe:PROBE", "Run all probes and print a line for each."),
    Entry("ranks", "ranks.probe:PROBE", "Show every rank and what its main thread does now.", stage=1),
    Entry("diff-queues", "queues.probe:PROBE", "Name the first round in which ranks differ, and the cause.", stage=3),
    Entry("stuck", "stuck.probe:PROBE", "Show the waiting requests, and what will end each wait.", stage=6),
    Entry(
        "verify-routing",
        "routing.probe:PROBE",
        "Check that all sides agree where each room is.",
        stage=4,
    ),
    Entry("stacks", "stacks.probe:PROBE", "Show the stacks and collectives of all ranks, merged.", stage=7),
    Entry("dump metadata", "metadata.probe:PROBE", stage=5),
    Entry("dump queues", "dump.probe:QUEUES"),
    Entry("dump groups", "dump.probe:GROUPS"),
    Entry("dump config", "config.probe:PROBE", stage=2),
    Entry("dump leaks", "leaks.probe:PROBE", stage=8),
    Entry("story", "story.probe:PROBE", "Tell what happened to one room on all ranks."),
)
"""In the order of the help."""


def abouts() -> dict[str, str]:
    """Return command → what ``pdctl --help`` says of it; a group stands where its first probe does."""
    found: dict[str, str] = {}
    for entry in PROBES:
        first = entry.command.partition(" ")[0]
        found.setdefault(first, GROUPS[first].about if first in GROUPS else entry.about)
    return found


def entries(command: str) -> tuple[Entry, ...]:
    """Return the probe of a command, those of its subcommands where it is a group, or none."""
    return tuple(entry for entry in PROBES if entry.command.partition(" ")[0] == command)


def stages() -> tuple[AnyProbe, ...]:
    """Return the probes that ``check`` runs, in its order."""
    return tuple(entry.load() for entry in sorted(PROBES, key=lambda entry: entry.stage) if entry.stage)
