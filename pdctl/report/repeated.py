"""The output of a command that looks again and again: in place on a terminal, below each other elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TextIO

import msgspec

from pdctl.protocol.durations import show
from pdctl.report import progress
from pdctl.report.output import Format, Output

SIZE_S = 0.2
"""How often it is seen whether the terminal has another size."""
_HOME = "\x1b[H\x1b[J"


class RepeatedOutput(Output):
    """Output of look after look, ``every_s`` seconds apart. gone: nobody reads any more.

    On a terminal each look takes the place of the one before, and its notes stand below it. What the screen showed before
    stays in the scrollback. Elsewhere a line with the time stands above each look, jsonl has it in each line, and a note is
    said once as long as it stays the same.
    """

    def __init__(self, form: Format, every_s: float, **streams: Any) -> None:
        super().__init__(form, **streams)
        self.gone = False
        self._every_s = every_s
        self._in_place = form.drawn and self.out.isatty() and self.env.get("TERM") != "dumb"
        self._at = datetime.now().astimezone()
        self._code = 0
        self._notes: list[str] = []
        self._said: list[str] = []
        self._page = ""
        self._draw: Callable[[], None] = _nothing
        self._size: tuple[int, int] | None = None

    def begin(self) -> None:
        """Begin a look."""
        self._at = datetime.now().astimezone()
        self._said, self._notes = self._notes, []
        self._page, self._draw = "", _nothing

    def end(self, code: int) -> None:
        """End a look that the command would exit with ``code`` for. Raises PdctlError as :meth:`Output.document`."""
        progress.begin("")  # from now on there is something to read
        self._code = code
        if self._in_place:
            self._show()

    def wait(self) -> None:
        """Wait for the next look, and heed a terminal that gets another size."""
        end = time.monotonic() + self._every_s
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, SIZE_S))
            if self._in_place and terminal_size(self.out) != self._size:
                self._draw()
                self._show()

    def document(self, *given: Any, **named: Any) -> None:
        """Write a document as :meth:`Output.document`; on a terminal when the look has ended."""
        self._draw = partial(super().document, *given, **named)
        self._draw()

    def hang_up(self) -> None:
        """Note that nobody reads any more."""
        self.gone = True
        super().hang_up()

    def _line(self, line: Any) -> Any:
        at = {"at_wall_ns": int(self._at.timestamp() * 1e9)}
        return {**at, **(line if isinstance(line, dict) else msgspec.to_builtins(line, str_keys=True))}

    def _write(self, text: str, lost: int) -> None:
        if self._in_place:
            self._page = text
        elif self.format.drawn:
            super()._write(f"{self._at.isoformat(timespec='seconds')}\n{text}\n", lost)
        else:
            super()._write(text, lost)

    def _say(self, text: str) -> None:
        if not self._in_place and text not in self._said:
            super()._say(text)
        self._notes.append(text)

    def _show(self) -> None:
        """Draw what the look gave, as much of it as the terminal has lines for."""
        first = self._size is None
        columns, rows = self._size = terminal_size(self.out)
        head = f"{self._at:%Y-%m-%d %H:%M:%S%z}, exit code {self._code}, again after {show(self._every_s)}"
        lines = [head, *self._page.splitlines(), *"".join(self._notes).splitlines()]
        body = "".join(f"{line}\n" for line in fitting(lines, columns, rows - 1))
        above = "\n" * rows if first else ""
        super()._write(f"{above}{_HOME}{body}", self._code)


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return columns and rows of a terminal, 80 and 24 where it does not say."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return columns or 80, rows or 24


def fitting(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """Return as many of ``lines`` as take ``rows`` rows of ``columns`` each; the last one says how many do not."""
    ends, taken = [], 0
    for line in lines:
        taken += _rows(line, columns)
        ends.append(taken)
    if taken <= rows:
        return list(lines)
    fit = sum(end < rows for end in ends)
    return [*lines[:fit], f"… {len(lines) - fit} more lines than the terminal has place for"[:columns]]


def _rows(line: str, columns: int) -> int:
    from rich.text import Text

    return max(1, -(-Text.from_ansi(line).cell_len // columns))


def _nothing() -> None:
    """Draw nothing: the look gave no document."""
