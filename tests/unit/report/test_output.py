"""Data on stdout in the format asked for, the rest on stderr, and a reader that goes away is no error."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from rich.console import Console
from rich.table import Table

from pdctl.commands.schema import load_schema
from pdctl.probes.ranks.judge import RankRow, RanksDocument
from pdctl.protocol.documents import Document, Rows
from pdctl.protocol.model import Call, Seam
from pdctl.report.findings import Finding, finding
from pdctl.report.output import Format, Output, sentence


class Row(msgspec.Struct, frozen=True):
    name: str
    count: int | None = None
    ready: bool = False
    parts: tuple[int, ...] = ()


class Rowed(Document, frozen=True, kw_only=True, tag="test.rows"):
    rows: tuple[Row, ...] = ()


DOCUMENT = Rowed(rows=(Row("a, b", 1, True, (1, 2)), Row('quoted "c"')))
ROWS = Rows(Row, DOCUMENT.rows)
FOUND = Rows(Finding, (finding("PD101", "they differ"),))


def rendered(form: Format, env: dict[str, str] | None = None, rows: Rows = ROWS, **more: Any) -> str:
    out = io.StringIO()
    Output(form, out=out, err=io.StringIO(), env=env or {}).document(DOCUMENT, rows, draw, **more)
    return out.getvalue()


def draw(document: Rowed, console: Console) -> None:
    table = Table(box=None)
    table.add_column("name")
    for row in document.rows:
        table.add_row(row.name * 60, style="red")
    console.print(table)


def test_json_names_its_schema_first_and_its_version() -> None:
    data = json.loads(rendered(Format.JSON))
    assert list(data)[:2] == ["schema", "version"]
    assert data == {
        "schema": "test.rows",
        "version": 1,
        "rows": [
            {"name": "a, b", "count": 1, "ready": True, "parts": [1, 2]},
            {"name": 'quoted "c"', "count": None, "ready": False, "parts": []},
        ],
    }


def test_yaml_says_the_same_as_json() -> None:
    assert yaml.safe_load(rendered(Format.YAML)) == json.loads(rendered(Format.JSON))


def test_each_line_of_jsonl_stands_alone() -> None:
    lines = [json.loads(line) for line in rendered(Format.JSONL).splitlines()]
    assert [(line["schema"], line["version"], line["name"]) for line in lines] == [
        ("test.rows", 1, "a, b"),
        ("test.rows", 1, 'quoted "c"'),
    ]


def test_findings_are_lines_of_jsonl_with_a_schema_of_their_own() -> None:
    lines = [json.loads(line) for line in rendered(Format.JSONL, findings=FOUND).splitlines()]
    assert [line["schema"] for line in lines] == ["test.rows", "test.rows", "pdctl.finding"]
    assert (lines[2]["of"], lines[2]["code"], lines[2]["level"]) == ("test.rows", "PD101", "error")
    jsonschema.validate(lines[2], load_schema("pdctl.finding"))
    [only] = rendered(Format.JSONL, findings=FOUND, only_findings=True).splitlines()
    assert json.loads(only) == lines[2]


def test_csv_has_rows_or_findings_never_both() -> None:
    assert rendered(Format.CSV, findings=FOUND) == rendered(Format.CSV)
    [found] = csv.DictReader(io.StringIO(rendered(Format.CSV, findings=FOUND, only_findings=True)))
    assert (found["code"], found["summary"]) == ("PD101", "they differ")


def test_a_list_without_rows_is_a_header_or_nothing() -> None:
    nothing = Rows(Row, ())
    assert rendered(Format.JSONL, rows=nothing) == ""
    assert rendered(Format.CSV, rows=nothing) == rendered(Format.CSV).splitlines(keepends=True)[0]
    header = ",".join(Finding.__struct_encode_fields__)
    assert rendered(Format.CSV, findings=Rows(Finding, ()), only_findings=True) == f"{header}\n"


def test_csv_has_a_column_for_each_field() -> None:
    rows = list(csv.DictReader(io.StringIO(rendered(Format.CSV))))
    assert rows == [
        {"name": "a, b", "count": "1", "ready": "true", "parts": "[1,2]"},
        {"name": 'quoted "c"', "count": "", "ready": "false", "parts": "[]"},
    ]


@pytest.mark.parametrize("form", list(Format))
def test_no_format_uses_colour_or_control_characters_in_a_pipe(form: Format) -> None:
    text = rendered(form, {"TERM": "xterm-256color"})
    assert text.endswith("\n")
    assert all(char.isprintable() or char == "\n" for char in text)


def test_a_pipe_gets_whole_lines_and_columns_are_respected_where_given() -> None:
    assert "a, b" * 60 in rendered(Format.TABLE)
    assert max(map(len, rendered(Format.TABLE, {"COLUMNS": "80"}).splitlines())) <= 80


@pytest.mark.parametrize(("env", "colored"), [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)])
def test_colour_is_for_terminals_that_want_it(env: dict[str, str], colored: bool) -> None:
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal:
        Output(Format.TABLE, out=terminal, env=env).document(DOCUMENT, ROWS, draw)
        text = os.read(master, 65536)
    os.close(master)
    assert (b"\x1b[" in text) is colored


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_a_reader_that_goes_away_changes_no_exit_code_and_leaves_no_traceback(form: str) -> None:
    program = f"""
import sys
from typing import Any
from pdctl.report.findings import Finding, finding
from pdctl.report.output import Format, Output, sentence
from tests.unit.report.test_output import DOCUMENT, ROWS, draw
sys.stdin.read()
Output(Format("{form}")).document(DOCUMENT, ROWS, draw)
print("more")
sys.exit(3)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.close()
    child.stdout = None
    _, errors = child.communicate()
    assert (child.returncode, errors) == (3, b"")


def test_what_is_no_data_goes_to_stderr() -> None:
    out, err = io.StringIO(), io.StringIO()
    output = Output(Format.JSON, out=out, err=err)
    output.note("by the way")
    output.error("it broke", "mend it")
    assert out.getvalue() == ""
    assert err.getvalue() == "by the way\npdctl: it broke\n  Next: Mend it\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("choose one: pdctl --key NAME", "Choose one: pdctl --key NAME"),
        ("pdctl ranks shows all.", "pdctl ranks shows all."),
        ("docs/drills.md shows it", "docs/drills.md shows it"),
        ("lab.control says it", "lab.control says it"),
        ("--help", "--help"),
        ("", ""),
    ],
)
def test_a_next_step_begins_as_a_sentence_or_a_command(text: str, said: str) -> None:
    assert sentence(text) == said


def test_a_ranks_document_follows_its_published_schema() -> None:
    row = RankRow(
        rank="decode dp0 pp0 tp0", state="live", role="decode", dp=0, pp=0, cp=0, tp=0, host="h", pid=1, engine="e",
        engine_version="1", pdctl_version="1", cluster="", service="s", instance="i", started_wall_ns=1, ticks=3,
        tick_age_s=0.5, rounds={"decode.transfer/attn-tp": 4}, call=Call(op="all_reduce"), seams=(Seam("gate", True),),
    )  # fmt: skip
    schema = load_schema("pdctl.ranks")
    jsonschema.Draft202012Validator.check_schema(schema)
    good = json.loads(msgspec.json.encode(RanksDocument(ranks=(row,))))
    jsonschema.validate(good, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**good, "ranks": [{"rank": 5}]}, schema)
