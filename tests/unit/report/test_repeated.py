"""Output of a command that looks again and again: in place on a terminal, below each other elsewhere."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import struct
import termios
from collections.abc import Iterator
from typing import TextIO

import msgspec
import pytest
from rich.console import Console

from pdctl.protocol.documents import Document, Rows
from pdctl.report.output import Format
from pdctl.report.repeated import RepeatedOutput, fitting, terminal_size


class Row(msgspec.Struct, frozen=True):
    name: str


class Named(Document, frozen=True, kw_only=True, tag="test.repeated"):
    rows: tuple[Row, ...] = ()


def look(out: RepeatedOutput, *names: str, note: str = "", code: int = 0) -> None:
    document = Named(rows=tuple(map(Row, names)))

    def draw(shown: Named, console: Console) -> None:
        for row in shown.rows:
            console.print(row.name)

    out.begin()
    out.document(document, Rows(Row, document.rows), draw, code=code)
    if note:
        out.note(note)
    out.end(code)


class Terminal:
    """A terminal of a size that can change. out: what a command writes to."""

    def __init__(self) -> None:
        self._leader, follower = pty.openpty()
        self.out: TextIO = os.fdopen(follower, "w", encoding="utf-8")

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> list[str]:
        """Return the lines of the last page that was written."""
        text = os.read(self._leader, 1 << 16).decode()
        return text.rpartition("\x1b[H\x1b[J")[2].splitlines()

    def close(self) -> None:
        self.out.close()
        os.close(self._leader)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    made.resize(60, 8)
    yield made
    made.close()


def on(terminal: Terminal, every_s: float = 0.001, **env: str) -> RepeatedOutput:
    return RepeatedOutput(Format.TABLE, every_s, out=terminal.out, err=terminal.out, env=env)


def test_a_look_takes_the_place_of_the_one_before_and_has_its_notes_below(terminal: Terminal) -> None:
    out = on(terminal)
    look(out, "tp0", "tp1", note="not seen: tp2", code=3)
    head, *body = terminal.read()
    assert "exit code 3, again after 1ms" in head
    assert body == ["tp0", "tp1", "not seen: tp2"]
    look(out, "tp0")
    assert terminal.read()[1:] == ["tp0"]


def test_a_look_that_gave_nothing_is_not_the_one_before(terminal: Terminal) -> None:
    out = on(terminal)
    look(out, "tp0")
    terminal.read()
    out.begin()
    out.error("there are no ranks", "start some")
    out.end(4)
    assert terminal.read()[1:] == ["pdctl: there are no ranks", "  Next: Start some"]


def test_another_size_of_the_terminal_is_heeded(terminal: Terminal) -> None:
    out = on(terminal, every_s=0.5)
    look(out, *(f"rank {n}" for n in range(20)))
    assert terminal.read()[-1] == "… 15 more lines than the terminal has place for"
    terminal.resize(60, 40)
    out.wait()
    assert terminal.read()[-1] == "rank 19"


def test_a_terminal_without_control_characters_gets_none(terminal: Terminal) -> None:
    out = on(terminal, TERM="dumb")
    look(out, "tp0")
    assert terminal.read()[1:] == ["tp0", ""]


@pytest.mark.parametrize(
    ("lines", "rows", "shown"),
    [
        ([], 3, []),
        (["a", "b", "c"], 3, ["a", "b", "c"]),
        (["a", "b", "c", "d"], 3, ["a", "b", "… 2 more lines than"]),
        (["x" * 41, "b"], 4, ["x" * 41, "b"]),
        (["x" * 41, "b"], 3, ["… 2 more lines than"]),
        (["\x1b[1m" + "x" * 20 + "\x1b[0m", "b"], 2, ["\x1b[1m" + "x" * 20 + "\x1b[0m", "b"]),
        (["漢" * 11, "b"], 2, ["… 2 more lines than"]),
    ],
)
def test_lines_are_counted_as_the_terminal_wraps_them(lines: list[str], rows: int, shown: list[str]) -> None:
    fit = fitting(lines, 20, rows)
    assert [line.partition(" the")[0].rstrip() if line.startswith("…") else line for line in fit] == shown


def test_elsewhere_looks_stand_below_each_other_with_their_time() -> None:
    out, err = io.StringIO(), io.StringIO()
    looks = RepeatedOutput(Format.TABLE, 1, out=out, err=err, env={})
    for note in ("tp1 is silent", "tp1 is silent", "", "tp1 is silent"):
        look(looks, "tp0", note=note)
    lines = out.getvalue().splitlines()
    assert lines[1::3] == ["tp0"] * 4
    assert all(line[10] == "T" for line in lines[::3])
    assert err.getvalue() == "tp1 is silent\ntp1 is silent\n", "what is new, or new again, is said once"


def test_each_line_of_jsonl_has_the_time_of_its_look() -> None:
    out = io.StringIO()
    looks = RepeatedOutput(Format.JSONL, 1, out=out, err=io.StringIO(), env={})
    look(looks, "a", "b")
    look(looks, "a")
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(row["schema"], row["name"]) for row in rows] == [("test.repeated", name) for name in "aba"]
    times = [row["at_wall_ns"] for row in rows]
    assert times[0] == times[1] <= times[2]


def test_a_reader_that_is_gone_is_noted() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", encoding="utf-8") as pipe:
        looks = RepeatedOutput(Format.TABLE, 1, out=pipe, err=io.StringIO(), env={})
        look(looks, "a")
        assert looks.gone


def test_what_is_no_terminal_has_a_usual_size() -> None:
    assert terminal_size(io.StringIO()) == (80, 24)
