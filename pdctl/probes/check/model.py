"""What ``check`` gives: a line for each stage, and the findings of all of them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from pdctl.protocol.documents import Document
from pdctl.report.findings import Finding

OK, INFO, WARNING, ERROR, UNKNOWN = "ok", "info", "warning", "error", "unknown"


@dataclass(frozen=True)
class Outcome:
    """What a probe comes to as a stage of ``check``. said: a line for when nothing was found, "" where nothing was judged.
    problems: what could not be looked at. untold: what recordings do not tell, where they are all there is."""

    name: str
    said: str
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    untold: str = ""


class StageRow(msgspec.Struct, frozen=True):
    """One stage. level: ``ok``, ``info``, ``warning``, ``error``, or ``unknown`` where it could not look at everything
    and what it saw is good. codes: of its findings. suppressed: findings left out on request."""

    stage: str
    level: str
    summary: str
    codes: tuple[str, ...] = ()
    suppressed: int = 0
    seconds: float = 0.0


class CheckDocument(Document, frozen=True, kw_only=True, tag="pdctl.check"):
    """Answer of ``pdctl check``. level: the worst of the stages. failed: it is at or above what was asked for.

    others: what belongs to other users and was left alone; it makes nothing partial. not_recorded: stages that were not run
    since recordings do not tell of what they look at.
    """

    level: str
    failed: bool
    stages: tuple[StageRow, ...]
    findings: tuple[Finding, ...] = ()
    suppressed: int = 0
    partial: bool = False
    problems: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    not_recorded: tuple[str, ...] = ()
