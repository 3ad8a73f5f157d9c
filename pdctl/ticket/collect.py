"""Makes a bundle: each of its parts by a command of pdctl in a process of its own, with limits."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.recording.source import FileSource
from pdctl.report import escaping, progress
from pdctl.ticket.hide import LEFT_OUT, Hider, HidingError, field_names, without_secrets
from pdctl.ticket.logs import LOG_BYTES, MOST_LOGS, open_log, tail
from pdctl.trace.folder import private_folder
from pdctl.trace.manifest import Collector, Manifest, new, new_salt
from pdctl.trace.reader import MAX_DOCUMENT, MAX_DOCUMENTS, open_trace
from pdctl.trace.writer import Member, write_trace
from pdctl.watch.parts import Part

KEPT, PARTIAL, MISSING = "kept", "partial", "missing"
EACH_S = 60.0
"""How long one part may take."""
HIDE_S, HIDE_SHARE = 30.0, 0.25
"""How much of the time is kept for taking names and keys out of the parts."""
MOST_ROOMS = 12
"""Rooms in findings whose stories are told."""
TRACE = "trace"
NOT_RECORDED = "recordings do not tell of it"
LATE = "names and keys could not be taken out of it in time (--timeout)"


@dataclass(frozen=True)
class Wanted:
    """A part: its name, the command that makes it, and whether recordings alone can answer that."""

    name: str
    command: tuple[str, ...]
    offline: bool = True

    @property
    def member(self) -> str:
        """The file that has it."""
        return f"{'stories' if self.command[0] == 'story' else 'documents'}/{self.name}.json"


STEPS: tuple[tuple[Wanted, Wanted], ...] = (
    (Wanted(TRACE, ("record",)), Wanted("stacks", ("stacks",))),
    (Wanted("check", ("check",)), Wanted("ranks", ("ranks",))),
    (Wanted("diff-queues", ("diff-queues",)), Wanted("config", ("dump", "config"), offline=False)),
    (Wanted("metadata", ("dump", "metadata")), Wanted("queues", ("dump", "queues"), offline=False)),
    (Wanted("groups", ("dump", "groups")), Wanted("stuck", ("stuck",))),
)
"""What is taken, two at a time: what changes first comes first. The stories of the rooms in findings follow."""


@dataclass(frozen=True)
class Asked:
    """What a bundle is to have. env: of the commands. hosts: names of hosts that texts may hold.

    source: recordings that are all there is. every_start: ``--all``.

    names: names stay. over: says why it must end now, "" while it need not. spent_s: the part of timeout_s used before.
    """

    env: Mapping[str, str]
    hosts: tuple[str, ...] = ()
    source: Path | None = None
    every_start: bool = False
    logs: tuple[Path, ...] = ()
    names: bool = False
    timeout_s: float = 120.0
    spent_s: float = 0.0
    rank_timeout_s: float = 2.0
    over: Callable[[], str] = lambda: ""


@dataclass
class _Bundle:
    """What there is so far. end: when all is over, on the monotonic clock. logs: member → what it has, without keys."""

    asked: Asked
    folder: Path
    end: float
    rows: list[Collector] = field(default_factory=list)
    made: dict[str, Path] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)

    def hide_more(self) -> None:
        """Raise HidingError where there is no time left to take names out."""
        if time.monotonic() > self.end:
            raise HidingError(LATE)

    def ending(self) -> str:
        """Return why no more is done, "" while there is time."""
        if why := self.asked.over():
            return why
        return f"no time left of {self.asked.timeout_s:g} s (--timeout)" if self.left_s < 0 else ""

    @property
    def left_s(self) -> float:
        """How long parts may still be made, below 0 where hiding has what is left."""
        return self.end - min(HIDE_S, HIDE_SHARE * self.asked.timeout_s) - time.monotonic()

    def step(self, wanted: Sequence[Wanted], source: Path | None) -> None:
        """Make these parts at the same time."""
        started: list[tuple[Wanted, Part]] = []
        for one in wanted:
            if source is not None and not one.offline:
                self.missing(one, NOT_RECORDED)
            elif why := self.ending():
                self.missing(one, f"not run: {why}")
            else:
                progress.doing(one.name)
                try:
                    started.append((one, Part(self.file(one), self.arguments(one, source), self.asked.env)))
                except OSError as error:
                    self.missing(one, error.strerror or str(error))
        try:
            for one, part in started:
                self.ended(one, part)
        except BaseException:  # a second Ctrl-C: nothing is left behind
            for _, part in started:
                part.stop()
            raise

    def arguments(self, one: Wanted, source: Path | None) -> list[str]:
        """Return the arguments of pdctl that make a part."""
        words = list(one.command)
        if one.name == TRACE:
            words += ["--keep-names"] * self.asked.names
        else:
            words += ["-o", "json"]
        if source is not None:
            words += ["--from", str(source.absolute())]
        if self.asked.every_start and one.command[0] in ("record", "ranks", "diff-queues", "story"):
            words.append("--all")
        within = min(EACH_S, max(1.0, self.left_s)) / 2
        return [*words, "--timeout", f"{within:.1f}", "--rank-timeout", f"{min(within, self.asked.rank_timeout_s):g}"]

    def ended(self, one: Wanted, part: Part) -> None:
        """Wait for a part, and keep what it made."""
        why = part.ended(EACH_S, self.ending)
        size = 0 if why else part.file.stat().st_size
        if size > MAX_DOCUMENT and one.name != TRACE:
            why = f"it has {size} bytes, at most {MAX_DOCUMENT} are kept"
        if why:
            self.missing(one, why, part.seconds)
            return
        self.made[one.name] = part.file
        status = PARTIAL if part.code == Exit.PARTIAL else KEPT
        problems = (_json(part.file) or {}).get("problems") or () if status == PARTIAL and one.name != TRACE else ()
        said = part.said or "; ".join(problems[:3]) or "it could not look at everything"
        member = "" if one.name == TRACE else one.member
        self.row(one.name, one.command, status, said if status == PARTIAL else "", part.seconds, member)

    def missing(self, one: Wanted, why: str, seconds: float = 0.0) -> None:
        """Note that a part could not be had."""
        self.row(one.name, one.command, MISSING, why, seconds)

    def row(
        self, name: str, command: Sequence[str], status: str, reason: str = "", seconds: float = 0.0, member: str = ""
    ) -> None:
        """Note what became of a part."""
        words = "pdctl " + " ".join(command) if command else ""
        self.rows.append(
            Collector(name=name, command=words, status=status, reason=reason[:500], seconds=seconds, member=member)
        )

    def file(self, one: Wanted) -> Path:
        """Return the file that a part is made in."""
        return self.folder / (f"{one.name}.pdtrace" if one.name == TRACE else f"{one.name}.json")


def bundle(path: Path, asked: Asked, *, force: bool = False) -> Manifest:
    """Make the bundle ``path`` and return its manifest. What could not be had is in that, with the reason.

    The file appears complete or not at all. Raises PdctlError as :func:`pdctl.trace.writer.write_trace`.
    """
    started = time.time_ns()
    with private_folder() as folder:
        made = _Bundle(asked, folder, time.monotonic() + asked.timeout_s - asked.spent_s)
        if asked.source is None:
            for step in STEPS:
                made.step(step, None)
        else:
            made.step(STEPS[0][:1], asked.source)
            there = made.made.get(TRACE, asked.source)  # without names, where they are taken out
            made.step(STEPS[0][1:], there)
            for step in STEPS[1:]:
                made.step(step, there)
        if TRACE in made.made:
            for rooms in _pairs(_rooms(made.made.get("check"))):
                made.step([Wanted(f"story-{room}", ("story", str(room))) for room in rooms], made.made[TRACE])
        seconds = (time.time_ns() - started) / 1e9
        stopped = f"ended early: {why}" if (why := made.ending()) else "took what there was"
        return _written(path, made, new(stopped, started_wall_ns=started, seconds=seconds), force=force)


def _pairs(rooms: Sequence[int]) -> list[Sequence[int]]:
    return [rooms[at : at + 2] for at in range(0, len(rooms), 2)]


def _rooms(check: Path | None) -> list[int]:
    """Return the rooms in the findings of a check, those of the first findings first."""
    found: dict[int, None] = {}
    for one in (_json(check) or {}).get("findings", []) if check is not None else []:
        found.update(dict.fromkeys(one.get("rooms", [])))
    return list(found)[:MOST_ROOMS]


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None


def _written(path: Path, made: _Bundle, base: Manifest, *, force: bool) -> Manifest:
    """Put all that was made into one file."""
    _logs(made)
    if TRACE not in made.made:
        return _packed(path, made, base, (), force=force)
    try:
        with open_trace(made.made[TRACE]) as trace:
            head = msgspec.structs.replace(
                trace.manifest, started_wall_ns=base.started_wall_ns, seconds=base.seconds, stopped=base.stopped
            )
            members = (  # one open file at a time
                Member(rank, FileSource(trace.folder / Path(rank.member).name) if rank.member else None)
                for rank in trace.manifest.ranks
            )
            return _packed(path, made, head, members, force=force)
    except PdctlError as error:
        if path.exists() or not made.made.pop(TRACE, None):
            raise
        made.rows = [
            msgspec.structs.replace(row, status=MISSING, reason=error.message) if row.name == TRACE else row
            for row in made.rows
        ]
        return _packed(path, made, base, (), force=force)


def _packed(path: Path, made: _Bundle, base: Manifest, members: Iterable[Member], *, force: bool) -> Manifest:
    hider, teller = (None, None) if made.asked.names else _hiders(made, base)
    if hider is not None and not base.salt:
        base = msgspec.structs.replace(
            base,
            redacted=True,
            salt=hider.salt,
            clock=msgspec.structs.replace(base.clock, host=hider.names.host(base.clock.host)),
        )
    documents = _documents(made, hider)
    rows = []
    for row in made.rows:
        size = len(documents.get(row.member, b""))
        said = hider.text(row.reason) if hider is not None else row.reason
        rows.append(msgspec.structs.replace(row, size=size, reason=said))
    manifest = msgspec.structs.replace(base, collectors=tuple(rows))
    if hider is not None:
        manifest = msgspec.structs.replace(manifest, problems=tuple(_told(one, teller) for one in base.problems))
        members = (_without_names(one, teller) for one in members)
    return write_trace(path, members, manifest, force=force, documents=documents)


def _hiders(made: _Bundle, base: Manifest) -> tuple[Hider, Hider | None]:
    """Return what takes names out, a name by one hash in the whole bundle; and that, or None, for what the manifest says.

    It knows all names before it takes out the first. What it could not learn from is not told; the manifest has half the time.
    """
    hider = Hider(base.salt or new_salt(), [socket.gethostname(), *made.asked.hosts], fields=field_names())
    hider.learn([row.reason for row in made.rows])
    hider.check = made.hide_more
    end, made.end = made.end, (time.monotonic() + made.end) / 2
    try:
        hider.learn(msgspec.to_builtins(base))
        teller: Hider | None = hider
    except HidingError:
        teller = None
    made.end = end
    for number, row in enumerate(made.rows):
        if row.member:
            try:
                log = made.logs.get(row.member)
                hider.learn(_json(made.made[row.name]) if log is None else log.split("\n"))
            except HidingError as error:
                made.rows[number] = _lost(row, error.message)
    return hider, teller


def _lost(row: Collector, why: str) -> Collector:
    return msgspec.structs.replace(row, status=MISSING, reason=why, member="")


def _without_names(one: Member, hider: Hider | None) -> Member:
    """Return a recording whose reasons tell no name that other parts of the bundle tell."""
    rank = one.rank
    said = msgspec.structs.replace(
        rank, reason=_told(rank.reason, hider), problems=tuple(_told(each, hider) for each in rank.problems)
    )
    return replace(one, rank=said)


def _told(text: str, hider: Hider | None) -> str:
    try:
        return (LEFT_OUT if hider is None else hider.said(text)) if text else ""
    except HidingError:
        return LEFT_OUT


def _documents(made: _Bundle, hider: Hider | None) -> dict[str, bytes]:
    """Return the files of the bundle beside recordings; rows of those that can't be in it say why."""
    found: dict[str, bytes] = {}
    left = MAX_DOCUMENTS
    for number, row in enumerate(made.rows):
        if not row.member:
            continue
        try:
            text = (
                _log(made.logs[row.member], hider) if row.member in made.logs else _document(made.made[row.name], hider)
            )
        except HidingError as error:
            made.rows[number] = _lost(row, error.message)
            continue
        data = text.encode("utf-8", "replace")
        if len(data) > min(left, MAX_DOCUMENT):
            made.rows[number] = _lost(row, f"it has {len(data)} bytes, too many for a bundle")
            continue
        found[row.member] = data
        left -= len(data)
    return found


def _document(file: Path, hider: Hider | None) -> str:
    document = _json(file)
    if document is None:
        raise HidingError("it can't be read")
    if hider is not None:
        document = hider.document(document)
    return f"{escaping.json_text(json.dumps(document, ensure_ascii=False, indent=1))}\n"


def _log(text: str, hider: Hider | None) -> str:
    lines = text.split("\n") if text else []
    clean = hider.log(lines) if hider is not None else lines
    return "".join(f"{escaping.escape(line, most=max(1, len(line)))}\n" for line in clean)


def _logs(made: _Bundle) -> None:
    """Read the ends of the logs, without keys and what requests say."""
    for number, path in enumerate(made.asked.logs[:MOST_LOGS], start=1):
        name = f"log-{number}"
        began = time.monotonic()
        try:
            clean = []
            for line in tail(path):
                made.hide_more()
                clean.append(without_secrets(line))
        except OSError as error:
            made.row(name, (), MISSING, f"{path.name}: {error.strerror or error}")
            continue
        except HidingError as error:
            made.row(name, (), MISSING, error.message)
            continue
        member = f"logs/{number}.log"
        made.row(name, (), KEPT, f"the end of {path.name}", round(time.monotonic() - began, 3), member)
        made.logs[member] = "\n".join(clean)


def planned(logs: Iterable[Path], *, recorded: bool) -> Iterable[Collector]:
    """Yield what a bundle would have."""
    for one in (one for step in STEPS for one in step):
        there = one.offline or not recorded
        reason = "" if there else NOT_RECORDED
        words = f"pdctl {' '.join(one.command)}"
        yield Collector(name=one.name, command=words, status="would be taken" if there else MISSING, reason=reason)
    yield Collector(
        name="stories", command="pdctl story ROOM", status="would be taken",
        reason=f"of the rooms in findings, {MOST_ROOMS} at most",
    )  # fmt: skip
    for number, path in enumerate(logs, start=1):
        why = f"the end of {path.name}, {LOG_BYTES >> 20} MiB at most"
        try:
            os.close(open_log(path))
        except OSError as error:
            yield Collector(name=f"log-{number}", command="", status=MISSING, reason=f"{path.name}: {error.strerror}")
        else:
            yield Collector(name=f"log-{number}", command="", status="would be taken", reason=why)


def expected(one: Collector) -> bool:
    """Return whether a part could have been had: recordings do not tell of some."""
    return one.reason != NOT_RECORDED
