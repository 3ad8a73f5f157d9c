"""What is drawn is never cut at the edge of a terminal; a line that is wrapped keeps its indentation."""

from __future__ import annotations

import io

from pdctl.report import drawing
from pdctl.report.drawing import Sheet


def drawn(*parts: object, width: int = 40) -> list[str]:
    text = io.StringIO()
    sheet = Sheet(file=text, width=width, highlight=False, emoji=False, markup=False)
    for part in parts:
        sheet.print(part)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_what_must_not_be_wrapped_makes_longer_lines_instead() -> None:
    table = drawing.table("name", "key", "why", wraps=("why",))
    table.add_row("alice", "k" * 60, "it is not used since its file has another mode")
    head, *lines = drawn(table)
    assert head.startswith("name")
    assert f"alice  {'k' * 60}  it is not" in lines[0]
    assert "…" not in "".join(lines)
    assert " ".join(" ".join(line[69:] for line in lines).split()) == "it is not used since its file has another mode"


def test_a_table_that_fits_is_as_it_was() -> None:
    table = drawing.table("name", "age", right=("age",))
    table.add_row("a", "1.0 s")
    assert drawn(table) == ["name    age", "a     1.0 s"]


def test_a_wrapped_line_keeps_its_indentation() -> None:
    lines = drawn(
        "    one two three four five six seven eight nine ten", drawing.dim("  eleven twelve thirteen fourteen fifteen")
    )
    assert lines == [
        "    one two three four five six seven",
        "    eight nine ten",
        "  eleven twelve thirteen fourteen",
        "  fifteen",
    ]


def test_text_of_several_lines_and_what_must_stay_one_line_are_left_alone() -> None:
    assert drawn("  a\n b") == ["  a", " b"]
    text = io.StringIO()
    Sheet(file=text, width=10).print(f"  {'x' * 30}", soft_wrap=True)
    assert text.getvalue() == f"  {'x' * 30}\n"
