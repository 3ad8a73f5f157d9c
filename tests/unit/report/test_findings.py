"""The catalogue of findings: complete, in step with its pages, and explained by ``pdctl explain``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

import pdctl
from pdctl.cli import app
from pdctl.report import findings
from pdctl.report.findings import Code, Level, catalogue, finding
from tools import gen_findings

SOURCES = Path(pdctl.__file__).parent


def explain(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["explain", *arguments], env={"COLUMNS": "100", "NO_COLOR": "1"})
    return done.exit_code, done.output


def test_every_code_that_anything_finds_is_in_the_catalogue_and_the_other_way_round() -> None:
    used: set[str] = set()
    for source in SOURCES.rglob("*.py"):
        if source.name == "causes.py":  # says what follows from what, and finds nothing
            continue
        used.update(re.findall(r'"(PD\d{3})"', source.read_text()))
    assert used == set(catalogue())


@pytest.mark.parametrize("code", catalogue())
def test_a_code_says_what_it_means_what_it_rests_on_and_what_to_do(code: str) -> None:
    entry = catalogue()[code]
    assert re.fullmatch(r"PD\d{3}", entry.code)
    assert entry.meaning.endswith(".")
    assert entry.evidence.endswith(".")
    assert entry.next_step.endswith((".", "?"))
    made = finding(code, "found")
    assert (made.cause, made.level, made.next_step) == (entry.title, entry.level, entry.next_step)


def test_a_next_step_names_the_room_that_it_is_about() -> None:
    assert finding("PD141", "found", rooms=(7, 8)).next_step.startswith("pdctl story 7 shows where it stopped.")
    assert "pdctl story 7:" in finding("PD142", "found", rooms=(7,), next_step="Look at pdctl story ROOM: …").next_step


def test_the_file_has_no_other_keys_than_a_code_has() -> None:
    raw = Path(findings.__file__).with_name("findings.toml").read_bytes()
    for code, table in msgspec.toml.decode(raw).items():
        assert set(table) < {field.name for field in msgspec.structs.fields(Code)}, code


def test_pages_are_what_the_catalogue_says() -> None:
    pages = gen_findings.pages()
    assert {path.name: path.read_text() for path in gen_findings.FOLDER.iterdir()} == pages
    for code, entry in catalogue().items():
        assert entry.meaning in pages[f"{code}.md"]
        assert code in pages["README.md"]


def test_a_stale_page_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gen_findings, "FOLDER", tmp_path / "findings")
    assert gen_findings.main([]) == 0
    assert gen_findings.main(["--check"]) == 0
    (tmp_path / "findings" / "PD999.md").write_text("a code that is gone")
    assert gen_findings.main(["--check"]) == 1


@pytest.mark.parametrize("spelling", ["PD101", "pd101", "101"])
def test_explain_tells_all_of_a_code(spelling: str) -> None:
    code, text = explain(spelling)
    assert code == 0
    flat = " ".join(text.split())
    entry = catalogue()["PD101"]
    for part in (entry.title, entry.meaning, entry.evidence, entry.versions, entry.reference, entry.next_step):
        assert part in flat


def test_explain_alone_lists_every_code() -> None:
    code, text = explain()
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()[1:] if line.startswith("PD")] == list(catalogue())


def test_explain_as_json() -> None:
    code, text = explain("PD102", "-o", "json")
    document = json.loads(text)
    assert code == 0
    assert (document["schema"], document["version"]) == ("pdctl.explain", 1)
    assert [(entry["code"], entry["level"]) for entry in document["codes"]] == [("PD102", Level.INFO.value)]


def test_an_unknown_code_is_wrong_usage_with_the_nearest() -> None:
    code, text = explain("PD19")
    assert code == 2
    assert re.search(r"Did you mean PD1\d\d", text)
    code, text = explain("banana")
    assert code == 2
    assert "pdctl explain lists all" in text
