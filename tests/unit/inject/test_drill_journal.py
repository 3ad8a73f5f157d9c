"""Journals: written line by line, read back whole, cut off or foreign."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest

from pdctl.commands.schema import load_schema
from pdctl.inject.drill.journal import Journal, default_path, read
from pdctl.inject.drill.judge import judge
from pdctl.inject.drill.records import INCONCLUSIVE
from pdctl.protocol.errors import Exit, PdctlError
from tests.unit.inject.test_drill_judge import Story


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "deep" / "j.jsonl")
    for record in Story().records:
        journal.write(record)
    journal.close()
    assert journal.path is not None
    return journal.path


def refused(path: Path) -> PdctlError:
    with pytest.raises(PdctlError) as caught:
        read(path)
    assert str(path) in caught.value.message
    return caught.value


def test_what_was_written_is_read(path: Path) -> None:
    assert read(path) == Story().records
    assert path.stat().st_mode & 0o777 == 0o600
    assert judge(read(path)) == Story().verdict()


def test_every_line_is_as_the_schema_says(path: Path) -> None:
    validator = jsonschema.Draft202012Validator(load_schema("pdctl.drill.journal"))
    for line in path.read_text().splitlines():
        validator.validate(json.loads(line))


def test_a_journal_is_not_written_over(path: Path) -> None:
    with pytest.raises(PdctlError, match="can't be made: File exists") as caught:
        Journal(path)
    assert caught.value.code == Exit.USAGE


def test_cut_off_at_any_byte(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    first, step = data.index(b"\n") + 1, 37
    for size in [*range(first, len(data), step), len(data) - 1]:
        cut = tmp_path / "cut"
        cut.write_bytes(data[:size])
        assert judge(read(cut)).verdict == INCONCLUSIVE
    for size in (0, 1, first - 1):
        cut.write_bytes(data[:size])
        assert refused(cut).code == Exit.UNREACHABLE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "is empty"),
        (b'{"time": 1}\n', "no journal of a drill"),
        (b"\x00\xff\n", "no journal of a drill"),
        (b"not json\n", "no journal of a drill"),
        (b'{"record": "end", "at": 1}\n', "does not begin with a manifest"),
        (b'{"record": "manifest", "version": 1}\n', "line 1: Object missing required field"),
    ],
)
def test_foreign_files(tmp_path: Path, text: bytes, says: str) -> None:
    (tmp_path / "f").write_bytes(text)
    error = refused(tmp_path / "f")
    assert says in error.message
    assert error.code == Exit.UNREACHABLE


def test_a_journal_of_the_future_is_not_judged(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"record":"manifest"', b'"record":"manifest","version":2', 1))
    error = refused(path)
    assert error.code == Exit.PARTIAL
    assert "version 2" in error.message


def test_a_damaged_line_is_named(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[3] = b'{"record":"look","at":"soon"}'
    path.write_bytes(b"\n".join(lines))
    assert "line 4: " in refused(path).message


def test_two_journals_in_one_file_are_none(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)
    assert "one manifest, its first line" in refused(path).message


def test_no_journal_no_such_file(tmp_path: Path) -> None:
    assert "can't be read" in refused(tmp_path / "absent").message
    assert "can't be read" in refused(tmp_path).message


def test_a_full_disk_does_not_keep_a_drill_from_healing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    os.dup2(os.open("/dev/full", os.O_WRONLY), journal._handle)
    for record in Story().records[:2]:
        journal.write(record)
    assert len(journal.records) == 2


def test_where_journals_go() -> None:
    path = default_path("x", {"XDG_STATE_HOME": "/s"}, 0.0)
    assert path.parent == Path("/s/pdctl/drills")
    assert path.name.startswith("x-19700101-000000-")
