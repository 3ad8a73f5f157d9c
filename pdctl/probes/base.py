"""The contract of a probe: what it asks, what that means, how it looks. :mod:`pdctl.probes.run` does the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pdctl.protocol.documents import Document, Rows

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.check.model import Outcome
    from pdctl.probes.view import View
    from pdctl.report.findings import Finding

TIMEOUT_S = 10.0
RANK_TIMEOUT_S = 2.0
PAUSE_S = 2.0
"""Pause between two looks, of probes that look twice."""
SECONDS, TARGET = "seconds", "target"
"""What an option's text is read as, where its type does not say: a duration, a file to write."""

O = TypeVar("O")  # noqa: E741  # a probe's options
E = TypeVar("E")
D = TypeVar("D", bound=Document)


class WrongOptionError(ValueError):
    """A value that an option can't have. option: what people call it, as ``--by``."""

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message)
        self.option = option


def fits(pause_s: float, timeout_s: float, option: str = "--pause") -> None:
    """Return where there is time for ``option``, ``pause_s`` seconds. Raises WrongOptionError where there is not."""
    if pause_s >= timeout_s:
        raise WrongOptionError(
            f"{pause_s:g} s do not fit into --timeout, {timeout_s:g} s for the whole command", option
        )


@dataclass(frozen=True)
class Option:
    """How a field of a probe's options looks on a command line: metadata of its annotation. A field without is none.

    name: ``--by``, or "" for an argument. kind: SECONDS, TARGET, or "" where the type tells. least, most: of numbers.
    values: what a shell completes it with, a kind of :mod:`pdctl.commands.completing`, "" for nothing.
    """

    name: str
    help: str
    metavar: str | None = None
    kind: str = ""
    least: int | None = None
    most: int | None = None
    values: str = ""


@dataclass(frozen=True)
class NoOptions:
    """Of a probe that has no options of its own."""


@dataclass(frozen=True)
class NewFile:
    """A file that a probe's result is written to, besides what it prints."""

    path: Path
    data: bytes
    force: bool = False


class Probe(Generic[O, E, D]):
    """One thing to find out about ranks. The docstring of a subclass is the help of its command.

    name: of the stage in ``check``. about: what is so where all is well. cost: what asking does to the ranks.
    offline: recordings alone can answer it (``--from``). untold: what of it they do not tell, "" nothing.
    bundled: what a bundle calls its document, which is then shown as live ranks told it; "" where recordings tell as much.
    live_stage: not well enough for ``check``, which needs live ranks.
    pauses: it looks twice: ``check`` makes the pause a short one where that settles it.
    selects: ranks can be chosen (``--rank``). starts: ranks of earlier starts can be asked for (``--all``).
    examples: two command lines that its help ends with.
    repeats: it can look again and again (``--watch``).
    timeout_s: of the whole command, where none is given. waits_once: a rank that does not answer is not waited for again.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    cost: ClassVar[str]
    examples: ClassVar[tuple[str, str]]
    offline: ClassVar[bool] = False
    untold: ClassVar[str] = ""
    bundled: ClassVar[str] = ""
    live_stage: ClassVar[bool] = False
    pauses: ClassVar[bool] = False
    selects: ClassVar[bool] = False
    starts: ClassVar[bool] = False
    repeats: ClassVar[bool] = False
    timeout_s: ClassVar[float] = TIMEOUT_S
    waits_once: ClassVar[bool] = False
    options: type[O]

    # ---- what every probe has ----------------------------------------------------------------------------------------

    def collect(self, view: View, options: O) -> E:
        """Return what can be seen of the ranks. Asks the view, and nobody else."""
        raise NotImplementedError

    def judge(self, evidence: E, options: O) -> D:
        """Return what that means. Pure. Raises PdctlError where what was asked for is not there."""
        raise NotImplementedError

    def render(self, document: D, *, wide: bool) -> Iterable[RenderableType]:
        """Yield what people see of it, line by line or table by table."""
        raise NotImplementedError

    def rows(self, document: D) -> Rows:
        """Return the parts of the document that jsonl and csv have a line for, and what they are of."""
        raise NotImplementedError

    def summary(self, document: D) -> str:
        """Return a line for ``check`` where there is nothing to say."""
        return ""

    # ---- what some probes have ---------------------------------------------------------------------------------------

    def refuse(self, options: O, *, timeout_s: float, recorded: bool) -> None:
        """Raise WrongOptionError, or PdctlError (USAGE), for options that do not fit together; before anybody is asked."""

    def document(self) -> type[D]:
        """Return the type of its document, where a bundle has that."""
        raise NotImplementedError

    def asks(self, options: O) -> bool:
        """Return whether ranks are asked: where they are not, none has to be read from outside in its agent's place."""
        return True

    def rests_on_loops(self, options: O) -> bool:
        """Return whether what it says rests on scheduler loops that turn: its document then tells of those that don't."""
        return False

    def held_up(self, document: D) -> Collection[int]:
        """Return the rooms that wait for the other side: its document then tells what is wrong with the way there."""
        return ()

    def deepen(self, view: View, evidence: E, document: D) -> E | None:
        """Return more evidence where the first judgement calls for it: it is judged again. None: it stands."""
        return None

    def in_check(self, pause_s: float) -> O:
        """Return the options with which ``check`` runs it. pause_s: the pause of probes that look twice."""
        return self.options()

    def settled(self, evidence: E, document: D) -> bool:
        """Return whether a longer pause would tell nothing more; asked of a probe that looks twice, after a short one."""
        return not (self.findings(document) or self.problems(document) or self.partial(document))

    def findings(self, document: D) -> Sequence[Finding]:
        """Return the findings, for the exit code."""
        found: Sequence[Finding] = getattr(document, "findings", ())
        return found

    def problems(self, document: D) -> Sequence[str]:
        """Return what was not seen, or in part, a line each."""
        said: Sequence[str] = getattr(document, "problems", ())
        return said

    def partial(self, document: D) -> bool:
        """Return whether something could not be judged."""
        return bool(getattr(document, "partial", False))

    def seen(self, document: D, view: View) -> bool:
        """Return whether anything could be looked at at all."""
        return view.seen

    def fails_on(self, options: O) -> str:
        """Return the lowest level of a finding that makes the exit code 1."""
        return "warning"

    def fails_alone(self, options: O) -> bool:
        """Return whether a finding alone may fail the command: what could not be judged is said, and exits with 0."""
        return False

    def notes(self, document: D) -> Iterable[str]:
        """Yield what else people should know, a line each, on standard error."""
        notes: Iterable[str] = getattr(document, "notes", ())
        return notes

    def files(self, document: D, options: O) -> Iterable[NewFile]:
        """Yield files to write."""
        return ()

    def outcome(self, document: D) -> Outcome:
        """Return what it comes to as a stage of ``check``."""
        from pdctl.probes.check.model import Outcome

        return Outcome(
            self.name, self.summary(document), tuple(self.findings(document)), tuple(self.problems(document))
        )


AnyProbe = Probe[Any, Any, Any]
