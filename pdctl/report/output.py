"""The output of a command: data on stdout in the requested format, everything else on stderr.

A command makes one document (:class:`pdctl.protocol.documents.Document`), its rows for the line formats, and a function that
draws it for people. rich, yaml and csv are imported only when they are needed.

All output passes through this module: it applies an encoder of :mod:`pdctl.report.escaping` to every text of a command.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import msgspec

from pdctl.protocol.documents import Document, Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report import escaping, progress

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 100_000
"""Width of what is drawn into a pipe: nothing is cut or wrapped there, so that grep finds it."""


FINDING = "pdctl.finding"
"""Schema of a finding in a line of jsonl."""
MOST_DETAILS = 20
"""Lines of an error's details that are shown."""
_NOT_PLAIN = re.compile(r"[^\x20-\x7e\n]")
_FIRST_WORD = re.compile(r"[a-z]+(?=[ :'])")
_PROGRAMS = ("pdctl", "pip", "torchrun", "uv", "ssh", "chmod", "kill", "sysctl")
_COLOR = re.compile(r"(\x1b\[[0-9;]*m)")
D = TypeVar("D", bound=Document)
S = TypeVar("S", bound=msgspec.Struct)


class Format(str, Enum):
    """What ``-o`` takes."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    CSV = "csv"

    @property
    def drawn(self) -> bool:
        """Whether it is for people."""
        return self in (Format.TABLE, Format.WIDE)

    @property
    def whole(self) -> bool:
        """Whether it has the whole document, also what could not be seen. Else lines on stderr say that."""
        return self in (Format.JSON, Format.YAML)


class Output:
    """Streams, terminal and format of one run of a command; tests pass their own."""

    def __init__(
        self,
        form: Format = Format.TABLE,
        *,
        out: TextIO | None = None,
        err: TextIO | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.format = form
        self.out = (sys.stdout or _closed()) if out is None else out
        self.err = (sys.stderr or _closed()) if err is None else err
        self.env = os.environ if env is None else env
        self.hung_up = False
        """Whether the reader of stdout is gone: what is written goes nowhere."""

    @property
    def width(self) -> int:
        """Columns to draw into: COLUMNS, else the terminal's, else PIPE_WIDTH."""
        columns = self.env.get("COLUMNS", "")
        if columns.isascii() and columns.isdecimal() and columns.strip("0"):
            return int(columns) if len(columns) <= len(str(PIPE_WIDTH)) else PIPE_WIDTH
        if self.out.isatty():
            try:
                return os.get_terminal_size(self.out.fileno()).columns or 80
            except OSError:
                return 80
        return PIPE_WIDTH

    @property
    def color(self) -> bool:
        """Whether colour may be used: on a terminal, unless NO_COLOR is set or TERM is dumb."""
        return self.out.isatty() and not self.env.get("NO_COLOR") and self.env.get("TERM") != "dumb"

    def document(
        self,
        document: D,
        rows: Rows | None = None,
        draw: Callable[[D, Console], None] | None = None,
        *,
        code: int = Exit.CLEAN,
        findings: Rows | None = None,
        only_findings: bool = False,
    ) -> None:
        """Write ``document`` to stdout. rows: its parts for jsonl and csv; None: it is one row. draw: how people see it.

        jsonl has a line for each row, then one for each of ``findings``. csv has a header, which never depends on how many
        rows there are, and the rows; with only_findings the findings instead. jsonl leaves the rows out then.

        draw gets a copy of the document in which every text is one line of visible characters, and must use only this copy.
        code: exit code of the command after writing.

        If the reader goes away (``| head``), the rest is not written, and the command keeps its exit code: this is no error.
        Raises PdctlError (PARTIAL, or ``code`` if that is worse) if the document can't be written, for instance on a full disk.
        """
        ascii_only = not _unicode(self.out)
        own = Rows(type(document), (document,)) if rows is None else rows
        if self.format.drawn and draw is not None:
            text = self.drawn(document, draw)
        elif self.format is Format.JSONL:
            lines = [] if only_findings else [_row(document, row) for row in own.rows]
            lines += [_finding(document, found) for found in (findings.rows if findings else ())]
            text = "".join(f"{escaping.json_encoded(self._line(line), ascii_only=ascii_only)}\n" for line in lines)
        elif self.format is Format.CSV:
            text = _csv(findings if only_findings and findings is not None else own)
        elif self.format is Format.YAML:
            text = _yaml(document, ascii_only=ascii_only)
        else:
            text = f"{msgspec.json.format(escaping.json_encoded(document, ascii_only=ascii_only), indent=2)}\n"
        self._write(text, max(code, Exit.PARTIAL))

    def lines(self, text: str, *, end: str = "\n") -> None:
        """Write lines to stdout that are no document, as those of a help. Raises PdctlError as :meth:`document`."""
        self._write(f"{escaping.escape_lines(text)}{end}", Exit.PARTIAL)

    def note(self, text: str) -> None:
        """Write one line to stderr: information for the user that is not the result.

        If stderr can't be written (its reader is gone, its disk is full) the command goes on: it may have to heal.
        """
        self._say(f"{escaping.escape(text)}\n")

    def note_lines(self, text: str) -> None:
        """Write lines to stderr, as :meth:`note` one."""
        self._say(f"{escaping.escape_lines(text)}\n")

    def live(self, text: str) -> None:
        """Write a line to stderr, a terminal, in place of the line before. :meth:`note` of "" keeps the last line."""
        self._say(f"\r\x1b[K{escaping.escape(text)}")

    def error(self, text: str, next_step: str = "", details: Sequence[str] = ()) -> None:
        """Write an error, a line for each of its details, and what to do about it to stderr."""
        self.note(f"pdctl: {text}")
        for detail in details[:MOST_DETAILS]:
            self.note(f"  {detail}")
        if len(details) > MOST_DETAILS:
            self.note(f"  … and {len(details) - MOST_DETAILS} more")
        if next_step:
            self.note(f"  Next: {sentence(next_step)}")

    def _line(self, line: Any) -> Any:
        """Return what a line of jsonl has."""
        return line

    def _write(self, text: str, lost: int) -> None:
        progress.erase()
        try:
            self.out.write(_fitting(text, self.out))
            self.out.flush()
        except BrokenPipeError:
            self.hang_up()
        except OSError as error:
            self.hang_up()
            raise PdctlError(
                f"standard output can't be written: {error.strerror}", "Is the disk it goes to full?", lost
            ) from None

    def _say(self, text: str) -> None:
        progress.erase()
        try:
            self.err.write(_fitting(text, self.err))
            self.err.flush()
        except OSError:
            pass

    def hang_up(self) -> None:
        """Give up stdout, whose reader is gone, so that the interpreter's last flush does not complain either."""
        self.hung_up = True
        hang_up(self.out)

    def drawn(self, document: S, draw: Callable[[S, Console], None]) -> str:
        """Return what ``draw`` draws of a document, or of a part of one, without the blanks that rich fills lines with."""
        import io

        from pdctl.report.drawing import Sheet

        wide = self.format is Format.WIDE
        text = io.StringIO()
        console = Sheet(
            file=text,
            width=PIPE_WIDTH if wide else self.width,
            force_terminal=self.color,
            no_color=not self.color,
            color_system="auto" if self.color else None,
            highlight=False,
            emoji=False,
            markup=False,
            legacy_windows=False,
            _environ={name: value for name, value in self.env.items() if name not in ("COLUMNS", "LINES")},
        )
        draw(escaping.escape_copy(document), console)
        lines = text.getvalue().removesuffix("\n").split("\n") if text.getvalue() else []
        return "".join(f"{_harmless(line.rstrip(), color=self.color)}\n" for line in lines)


def sentence(text: str) -> str:
    """Return a next step with a capital letter at its begin, unless that is the name of a command."""
    word = _FIRST_WORD.match(text)
    return text if word is None or word[0] in _PROGRAMS else f"{text[0].upper()}{text[1:]}"


def hang_up(stream: TextIO) -> None:
    """Redirect ``stream`` to nowhere, so that the interpreter's last flush does not report an error."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass


def settle_streams() -> None:
    """Make stdin, stdout and stderr usable, even if the caller closed them or chose a small character set.

    A closed stream is redirected to nowhere. So no file or socket that is opened later gets its descriptor number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, so this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+" if number else "r", encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=escaping.ASCII)


def _unicode(stream: TextIO) -> bool:
    encoding = getattr(stream, "encoding", None)
    return not encoding or codecs.lookup(encoding).name.startswith("utf")


def _fitting(text: str, stream: TextIO) -> str:
    """Return ``text`` with what the stream's character set lacks in ASCII."""
    if _unicode(stream):
        return text
    return text.encode(stream.encoding, escaping.ASCII).decode(stream.encoding)


def _harmless(line: str, *, color: bool) -> str:
    """Remove control characters from a drawn line, except for rich's colours on a terminal. Commands should leave none."""
    if not _NOT_PLAIN.search(line):
        return line
    if not color:
        return escaping.escape(line, most=len(line))
    parts = _COLOR.split(line)
    return "".join(part if n % 2 else escaping.escape(part, most=max(1, len(part))) for n, part in enumerate(parts))


def _closed() -> TextIO:
    """Stand for a standard stream that the caller has closed: what is written goes nowhere."""
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  # as long-lived as the process's own


def _yaml(document: Document, *, ascii_only: bool) -> str:
    """Return YAML with one line a value, also for long values. If a text has invisible characters, all non-ASCII is escaped."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')

    Dumper.add_representer(str, represent)
    seen = escaping.all_visible(document) and not ascii_only
    return str(yaml.dump(_plain(document), Dumper=Dumper, sort_keys=False, allow_unicode=seen, width=1 << 30))


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True)


def _row(document: Document, row: msgspec.Struct) -> Any:
    """Return a self-describing row: the document's schema and version come first."""
    if row is document:
        return document
    tag = document.__struct_config__.tag
    return {"schema": tag, "version": document.version, **_plain(row)}


def _finding(document: Document, found: msgspec.Struct) -> Any:
    """Return the line of a finding: ``of`` is the schema of the document that it is in."""
    return {"schema": FINDING, "version": 1, "of": document.__struct_config__.tag, **_plain(found)}


def _csv(rows: Rows) -> str:
    import csv
    import io

    names = rows.kind.__struct_encode_fields__
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in map(_plain, rows.rows):
        writer.writerow([_cell(row.get(name)) for name in names])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return escaping.cell(value)
    return escaping.json_cell(value) if isinstance(value, (dict, list, tuple)) else value


__all__ = ["Document", "Format", "Output", "hang_up", "settle_streams"]
