"""How a command's result reaches the user: data on stdout in the format asked for, everything else on stderr.

A command makes one document (:class:`pdctl.documents.Document`), the rows of it for the line formats, and a function
that draws it for people. Nothing here imports rich, yaml or csv before it is needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from pdctl.documents import Document
from pdctl.errors import Exit, PdctlError

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 100_000
"""Width of what is drawn into a pipe: nothing is cut or wrapped there, so that grep finds it."""


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

    @property
    def width(self) -> int:
        """Columns to draw into: COLUMNS, else the terminal's, else PIPE_WIDTH."""
        columns = self.env.get("COLUMNS", "")
        if columns.isdecimal() and int(columns) > 0:
            return int(columns)
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
        document: Document,
        rows: Sequence[msgspec.Struct] = (),
        draw: Callable[[Console], None] | None = None,
        *,
        lost: Exit = Exit.PARTIAL,
        row: type[msgspec.Struct] | None = None,
    ) -> None:
        """Write ``document`` to stdout. rows: its parts for jsonl and csv. draw: how people see it.

        row: what rows are of; where there are none, csv has the header of this instead of the document in one row.

        A reader that goes away (``| head``) is no error: the rest is not written, and the command keeps its exit code.
        Raises PdctlError (``lost``) where it can't be written, as on a full disk.
        """
        try:
            if self.format.drawn and draw is not None:
                text = self._drawn(draw)
            elif self.format is Format.CSV and row is not None and not rows:
                text = _csv([], [row])
            else:
                text = _render(self.format, document, rows or (document,))
            self.out.write(text)
            self.out.flush()
        except BrokenPipeError:
            self.hang_up()
        except OSError as error:
            self.hang_up()
            raise PdctlError(
                f"standard output can't be written: {error.strerror}", "Is the disk it goes to full?", lost
            ) from None

    def note(self, text: str, *, end: str = "\n") -> None:
        """Write one line to stderr: something the user should know that is not the result.

        Where stderr can't be written (its reader is gone, its disk full) the command goes on: it may have to heal.
        """
        try:
            self.err.write(f"{text}{end}")
            self.err.flush()
        except OSError:
            pass

    def error(self, text: str, next_step: str = "") -> None:
        """Write an error and what to do about it to stderr."""
        self.note(f"pdctl: {text}")
        if next_step:
            self.note(f"  Next: {next_step}")

    def hang_up(self) -> None:
        """Give up stdout, whose reader is gone, so that the interpreter's last flush does not complain either."""
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.out.fileno())
        except (OSError, ValueError):
            pass

    def _drawn(self, draw: Callable[[Console], None]) -> str:
        """Return what ``draw`` draws, without the blanks that rich fills lines with."""
        import io

        from rich.console import Console

        wide = self.format is Format.WIDE
        text = io.StringIO()
        console = Console(
            file=text,
            width=PIPE_WIDTH if wide else self.width,
            force_terminal=self.color,
            no_color=not self.color,
            color_system="auto" if self.color else None,
            highlight=False,
            emoji=False,
            markup=False,
            legacy_windows=False,
            _environ=dict(self.env),
        )
        draw(console)
        return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _closed() -> TextIO:
    """Stand for a standard stream that the caller has closed: what is written goes nowhere."""
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  # as long-lived as the process's own


def _render(form: Format, document: Document, rows: Sequence[msgspec.Struct]) -> str:
    if form is Format.JSONL:
        return "".join(f"{msgspec.json.encode(_row(document, row)).decode()}\n" for row in rows)
    if form is Format.YAML:
        import yaml

        return str(yaml.safe_dump(_plain(document), sort_keys=False, allow_unicode=True, width=120))
    if form is Format.CSV:
        return _csv([_plain(row) for row in rows], [type(row) for row in rows])
    return f"{msgspec.json.format(msgspec.json.encode(document), indent=2).decode()}\n"


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True)


def _row(document: Document, row: msgspec.Struct) -> Any:
    """Return a row that says by itself what it is: the document's schema and version come first."""
    if row is document:
        return document
    tag = document.__struct_config__.tag
    return {"schema": tag, "version": document.version, **_plain(row)}


def _csv(rows: list[dict[str, Any]], kinds: list[type[msgspec.Struct]]) -> str:
    import csv
    import io

    names: dict[str, None] = {}
    for kind in kinds:
        names.update(dict.fromkeys(kind.__struct_encode_fields__))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return msgspec.json.encode(value).decode() if isinstance(value, (dict, list, tuple)) else value


__all__ = ["Document", "Format", "Output"]
