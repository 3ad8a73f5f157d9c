"""What the drill commands show: a list of drills, a drill, a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.inject.drill.records import BROKEN, HOLDS, Manifest, Problem, Record, Verdict
from pdctl.inject.drill.schema import Drill
from pdctl.protocol.documents import Document
from pdctl.protocol.errors import Exit
from pdctl.report.output import Output, sentence

if TYPE_CHECKING:
    from rich.console import Console

EXPECTED = {"holds": HOLDS, "broken": BROKEN}


_STYLE = {HOLDS: "bold green", BROKEN: "bold red"}


class DrillVerdict(Document, frozen=True, kw_only=True, tag="pdctl.drill"):
    """How a drill came out. evidence: what the verdict rests on, one statement a line. journal: its file.

    recorded: the verdict that the journal itself carries, "" where it has none.
    """

    drill: str
    verdict: str
    reason: str
    evidence: list[str]
    control: bool
    seed: int
    journal: str
    recorded: str


class DrillRow(Document, frozen=True, kw_only=True, tag="pdctl.drill.row"):
    """One drill. fault: kind, or what else is the cause. needs: seam that the target's ranks must have, "" for none.

    lab, control: the embedded cluster that --lab starts, and what --control leaves out or sets.
    """

    name: str
    about: str
    fault: str
    needs: str
    lab: str
    control: str
    reference: str


class DrillList(Document, frozen=True, kw_only=True, tag="pdctl.drill.list"):
    """The drills that come with pdctl."""

    drills: list[DrillRow]


class DrillShow(Document, frozen=True, kw_only=True, tag="pdctl.drill.show"):
    """A drill file as pdctl understands it."""

    path: str
    drill: Drill


def exit_code(verdict: Verdict, records: list[Record], expect: str = "") -> Exit:
    """Return what the command exits with; a fault that may still be active goes before everything.

    expect: of EXPECTED, the verdict that is a success; "" for HOLDS.
    """
    if any(isinstance(record, Problem) and record.code == Exit.FAULT_ACTIVE for record in records):
        return Exit.FAULT_ACTIVE
    if verdict.verdict not in (HOLDS, BROKEN):
        return Exit.PARTIAL
    return Exit.CLEAN if verdict.verdict == EXPECTED.get(expect, HOLDS) else Exit.FINDING


def show_verdict(
    out: Output, records: list[Record], verdict: Verdict, path: Path, *, recorded: str, expect: str = ""
) -> int:
    """Print how a drill came out, and return what the command exits with. expect: as for :func:`exit_code`."""
    manifest = records[0]
    assert isinstance(manifest, Manifest)
    document = DrillVerdict(
        drill=manifest.drill.name,
        verdict=verdict.verdict,
        reason=verdict.reason,
        evidence=list(verdict.evidence),
        control=manifest.control,
        seed=manifest.seed,
        journal=str(path),
        recorded=recorded,
    )
    code = exit_code(verdict, records, expect)
    out.document(document, draw=_draw_verdict, code=code)
    for problem in records:
        if isinstance(problem, Problem) and problem.next_step and not out.format.whole:
            out.note(f"  Next: {sentence(problem.next_step)}")
    return int(code)


def row_of(drill: Drill) -> DrillRow:
    """Return the row of a drill in the list."""
    from pdctl.faults.kinds import SEAM_PREFIX

    lab, control = drill.lab, drill.lab.control if drill.lab is not None else None
    told = {} if control is None else {n: getattr(control, n) for n in control.__struct_fields__ if getattr(control, n)}
    words = [
        f"without {', '.join(value)}" if key == "without" else f"{key} {value}".replace("_", " ")
        for key, value in told.items()
    ]
    shapes = (
        [] if lab is None else [f"{side} {getattr(lab, side)}" for side in ("prefill", "decode") if getattr(lab, side)]
    )
    return DrillRow(
        name=drill.name,
        about=drill.about,
        fault=drill.fault.kind if drill.fault is not None else "the load",
        needs=SEAM_PREFIX + drill.fault.kind if drill.fault is not None else "",
        lab=" ".join(shapes),
        control=", ".join(words),
        reference=drill.reference,
    )


def draw_list(document: DrillList, console: Console) -> None:
    """Draw the list as a table."""
    from pdctl.report import drawing

    table = drawing.table("drill", "fault", "control", "what it shows", wraps=("control", "what it shows"))
    for row in document.drills:
        table.add_row(row.name, row.fault, row.control or "-", row.about)
    console.print(table)


def _draw_verdict(document: DrillVerdict, console: Console) -> None:
    from rich.text import Text

    style = _STYLE.get(document.verdict, "bold yellow")
    title = Text.assemble((document.verdict, style), f"  {document.drill}{' (control)' if document.control else ''}: ")
    console.print(title + Text(document.reason))
    for line in document.evidence:
        console.print(Text(f"  {line}"))
    if document.journal:
        console.print(Text(f"  journal: {document.journal}", style="dim"))
