"""``pdctl schema`` knows every document, and ``make check`` sees a shape that changed."""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

import pdctl.commands
import pdctl.explore
import pdctl.probes
import pdctl.replay
import pdctl.trace
from pdctl.cli import app
from pdctl.commands.schema_kinds import load_kinds
from pdctl.protocol.documents import Document
from tools import gen_schemas


def schema(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["schema", *arguments])
    return done.exit_code, done.output


def test_every_document_is_listed_with_what_it_is() -> None:
    for package in (pdctl.commands, pdctl.explore, pdctl.probes, pdctl.replay, pdctl.trace):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    documents = {
        str(kind.__struct_config__.tag) for kind in Document.__subclasses__() if kind.__module__.startswith("pdctl.")
    }
    code, text = schema()
    assert code == 0
    assert {line.split()[0] for line in text.splitlines()} == documents | {
        "pdctl.drill.file",
        "pdctl.drill.journal",
        "pdctl.finding",
    }
    assert all(len(line.split()) > 2 and line.endswith(".") for line in text.splitlines())


@pytest.mark.parametrize("name", load_kinds())
def test_a_schema_is_one_of_its_draft(name: str) -> None:
    code, text = schema(name)
    assert code == 0
    found = json.loads(text)
    assert found["title"] == name
    jsonschema.Draft202012Validator.check_schema(found)
    assert json.loads(schema(name.removeprefix("pdctl."))[1]) == found


def test_an_unknown_name_is_wrong_usage_with_the_nearest() -> None:
    code, text = schema("rank")
    assert code == 2
    assert "Did you mean ranks" in text
    code, text = schema("zzzz")
    assert code == 2
    assert "pdctl schema lists all names" in text


def test_the_shapes_are_those_of_the_versions() -> None:
    assert gen_schemas.main(["--check"]) == 0


def test_another_shape_with_the_same_version_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gen_schemas, "FILE", tmp_path / "schemas.txt")
    assert gen_schemas.main([]) == 0
    lines = gen_schemas.FILE.read_text().splitlines()
    lines = [line[:-1] + "x" if line.startswith("pdctl.ranks ") else line for line in lines]
    gen_schemas.FILE.write_text("\n".join([*lines, "pdctl.gone 1 0"]) + "\n")
    assert gen_schemas.main(["--check"]) == 1
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == ["pdctl.gone", "pdctl.ranks"]


def test_words_do_not_change_a_shape_and_a_default_does() -> None:
    def line(description: str, version: int) -> str:
        properties = {"version": {"type": "integer", "default": version}, "description": {"type": "string"}}
        found = {"D": {"description": description, "properties": properties}}
        return gen_schemas.line({"title": "pdctl.d", "$ref": "#/$defs/D", "$defs": found})

    assert line("one", 1) == line("two", 1)
    assert line("one", 1).split()[:2] == ["pdctl.d", "1"]
    assert line("one", 2).split()[2] != line("one", 1).split()[2]
