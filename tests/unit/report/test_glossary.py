"""The words that pdctl uses: found however they are written, and leading only to what there is."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.report.findings import catalogue
from pdctl.report.glossary import find_term, glossary, words_in


@pytest.mark.parametrize("text", ["gate", "Gate", " gates ", "metadata gate"])
def test_a_word_is_found_however_it_is_written(text: str) -> None:
    found = find_term(text)
    assert found is not None
    assert found.term == "gate"


def test_what_is_no_word_is_none() -> None:
    assert find_term("PD101") is None
    assert find_term("") is None


def test_each_word_is_a_sentence_and_leads_to_what_there_is() -> None:
    root = typer.main.get_command(app)
    commands = set(root.list_commands(None))  # type: ignore[attr-defined]
    names = [name.lower() for term in glossary().values() for name in (term.term, *term.also)]
    assert len(names) == len(set(names))
    for term in glossary().values():
        assert term.meaning.endswith(".")
        for one in term.see:
            assert one in glossary() or one.split()[1] in commands, one


def test_the_words_a_new_reader_asks_for_are_there() -> None:
    assert {"gate", "seam", "round", "room", "slot", "poll", "lease", "landed"} <= set(glossary())


def test_every_finding_is_told_in_words_that_are_explained() -> None:
    for code in catalogue().values():
        assert words_in(f"{code.meaning} {code.evidence}"), code.code


def test_explain_shows_a_word_as_it_shows_a_finding() -> None:
    done = CliRunner().invoke(app, ["explain", "slot", "-o", "json"])
    assert json.loads(done.stdout)["term"]["term"] == "slot"
    done = CliRunner().invoke(app, ["explain", "PD101"], env={"COLUMNS": "300"})
    assert "gate" not in done.stdout.partition("words:")[0].partition("\n")[0]
    assert "slot" in done.stdout.partition("words:")[2]
    done = CliRunner().invoke(app, ["explain", "slto"])
    assert (done.exit_code, "Did you mean slot?" in done.stderr) == (2, True)
