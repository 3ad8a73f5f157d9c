"""Whatever a text holds, its encoder makes it harmless where it goes; what is visible stays, and programs lose nothing."""

from __future__ import annotations

import ast
import csv
import io
import json
import shlex

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pdctl.protocol.documents import Document, Rows
from pdctl.report import escaping
from pdctl.report.output import Format, Output


class Part(msgspec.Struct, frozen=True):
    name: str
    counts: dict[str, int] = {}
    number: int = 0


class Whole(Document, frozen=True, kw_only=True, tag="test.whole"):
    title: str
    parts: tuple[Part, ...] = ()


def whole(*texts: str) -> Whole:
    return Whole(title=texts[0], parts=tuple(Part(text, {text: 1}, -1) for text in texts))


def harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" or char in "\u00a0\u3000" for char in text)


def written(form: Format, document: Whole, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    Output(form, out=out, err=io.StringIO(), env={}).document(document, Rows(Part, document.parts), draw)
    return raw.getvalue().decode(encoding)


def draw(document: Whole, console: Console) -> None:
    console.print(document.title)
    for part in document.parts:
        console.print(f"  {part.name} [red]{', '.join(part.counts)}[/red]")


HOSTILE = st.text(
    st.sampled_from(
        "ab \n\r\t\x00\x07\x1b\x7f\x85\x9b\u200b\u2028\u202e\u2066\ufeff\ud800\U000e0041\u3164\ufe0f[]{}'\"`\\$=é漢…"
    )
)


@pytest.mark.parametrize(
    "text", ["plain", "größer ± 3 × 10⁶ …", "日本語", "עברית", "عربي", "emoji 🎉", "a\\b", "[red]x[/red]"]
)
def test_ordinary_text_of_all_scripts_stays(text: str) -> None:
    assert escaping.escape(text) == text


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202eabc\u2066", r"\u202eabc\u2066"),
        ("a\u200bb\ufeff\u00ad\u3164", r"a\u200bb\ufeff\xad\u3164"),
        ("r\ufe0e1\ufe0f\U000e0100\U000e01ef", r"r\ufe0e1\ufe0f\U000e0100\U000e01ef"),
        ("\u180b\u180d\u180e\u180f\u034f\u115f\uffa0", r"\u180b\u180d\u180e\u180f\u034f\u115f\uffa0"),
        ("a\u2800\U0001d159", r"a\u2800\U0001d159"),
        ("\x85\x9b\x7f", r"\x85\x9b\x7f"),
        ("\udc80", r"\udc80"),
        ("\U000e0041", r"\U000e0041"),
        ("x" * 5000, "x" * (escaping.MOST_SHOWN - 1) + "…"),
    ],
)
def test_what_is_not_visible_is_shown_as_an_escape(text: str, seen: str) -> None:
    assert escaping.escape(text) == seen


@pytest.mark.parametrize("form", list(Format))
def test_two_ids_that_differ_in_what_takes_no_ink_do_not_look_alike(form: Format) -> None:
    assert r"r1\ufe0f" in written(form, whole("r1", "r1\ufe0f")).lower()


@settings(deadline=None)
@given(HOSTILE)
def test_one_line_that_does_nothing(text: str) -> None:
    assert harmless(escaping.escape(text))
    assert "\n" not in escaping.escape(text)
    assert escaping.escape_lines(text).count("\n") == text.count("\n")


@settings(deadline=None)
@given(HOSTILE)
def test_source_code_keeps_its_shape(text: str) -> None:
    said = escaping.in_source(text)
    assert len(said) <= escaping.MOST_IN_SOURCE
    module = ast.parse(f'"""{said}"""\n# {said}\nx = 1\n')
    assert [type(node) for node in module.body] == [ast.Expr, ast.Assign]


@settings(deadline=None)
@given(HOSTILE)
def test_a_shell_sees_one_word(text: str) -> None:
    assert shlex.split(escaping.argument(text)) == [escaping.escape(text)]


@settings(deadline=None, max_examples=50)
@given(st.lists(HOSTILE, min_size=1, max_size=3))
def test_every_format_is_harmless_and_programs_get_the_text_itself(texts: list[str]) -> None:
    document = whole(*texts)
    for form in Format:
        assert harmless(written(form, document)), form
    exact = [text.encode("utf-8", "backslashreplace").decode() for text in texts]  # JSON has no half characters
    assert [part["name"] for part in json.loads(written(Format.JSON, document))["parts"]] == exact
    assert [part["name"] for part in yaml.safe_load(written(Format.YAML, whole(*exact)))["parts"]] == exact
    assert [json.loads(line)["name"] for line in written(Format.JSONL, document).splitlines()] == exact
    assert written(Format.TABLE, document).count("\n") == 1 + len(texts)
    assert "[red]" in written(Format.TABLE, document)


@pytest.mark.parametrize("form", list(Format))
def test_a_small_character_set_changes_no_data(form: Format) -> None:
    text = written(form, whole("größer … 漢\u202e"), "ascii")
    assert text.isascii()
    if form is Format.JSON:
        assert json.loads(text)["title"] == "größer … 漢\u202e"
    if form is Format.YAML:
        assert yaml.safe_load(text)["title"] == "größer … 漢\u202e"
    if form is Format.TABLE:
        assert text.splitlines()[0] == r"gr\xf6\xdfer ... \u6f22\u202e"


@pytest.mark.parametrize("form", ["x;=1+1;y", "x;@SUM(A1)", 'x;"=1+1"', "x;-", "x;＝1"])
def test_no_cell_is_a_formula_where_semicolons_part_cells_and_json_is_read_back(form: str) -> None:
    text = written(Format.CSV, Whole(title="", parts=(Part(form, {form: 1}),)))
    [row] = csv.DictReader(io.StringIO(text))
    assert row["name"] == f"x;'{form[2:]}"
    assert json.loads(row["counts"]) == {form: 1}
    pieces = [piece for line in csv.reader(io.StringIO(text), delimiter=";") for piece in line]
    assert len(pieces) >= 3
    assert not [piece for piece in pieces if piece[:1] in set("=+-@＝")]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "＝1", "-"])
def test_no_cell_of_a_spreadsheet_is_a_formula_and_numbers_stay_numbers(text: str) -> None:
    [row] = csv.DictReader(io.StringIO(written(Format.CSV, whole(text))))
    assert row["name"] == (text if text == "-" else rf"\t{text[1:]}" if text[0] == "\t" else f"'{text}")
    assert row["number"] == "-1"


def test_notes_and_errors_are_a_line_each() -> None:
    err = io.StringIO()
    out = Output(out=io.StringIO(), err=err, env={})
    out.note("a\nPD000 forged\x1b[2J")
    out.error("b\rc", "d\u202e", details=["e\nf", *"0123456789" * 3])
    lines = err.getvalue().splitlines()
    assert lines[:3] == [r"a\nPD000 forged\x1b[2J", r"pdctl: b\rc", r"  e\nf"]
    assert lines[-2:] == ["  … and 11 more", r"  Next: d\u202e"]
    assert harmless(err.getvalue())


def test_a_command_that_draws_past_its_document_is_harmless_all_the_same() -> None:
    out = io.StringIO()
    Output(out=out, env={}).document(whole("x"), None, lambda _, console: console.print("\x1b]0;owned\x07\u202e"))
    assert harmless(out.getvalue())
