"""The audit log has names of others in it, and an operator reads it with cat: nothing in it acts on a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdctl.inject.audit import Audit


def test_names_of_others_are_escaped_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pdctl" / "audit.jsonl"
    name = "decode\x9b2J \u202eabc\u2066 \u200b é漢\n\x1b]0;owned\x07"
    Audit(path, pytest.fail).write("placed", rank=name, why={name: [name]})
    text = path.read_text()
    [line] = text.splitlines()  # also none that NEL or a line separator would make
    assert line.isprintable(), line
    assert "é漢" in line
    said = json.loads(line)
    assert said["rank"] == name
    assert said["why"] == {name: [name]}


def test_half_a_character_stops_no_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    Audit(path, pytest.fail).write("placed", rank="a\udc80b")
    assert json.loads(path.read_text())["rank"] == r"a\udc80b"
