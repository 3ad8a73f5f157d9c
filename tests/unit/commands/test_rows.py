"""Lists in csv and jsonl: one header, whether there are rows or not; a line for each row, none without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.commands.clean import CleanRow
from pdctl.commands.context import ContextRow
from pdctl.commands.keys import KeyLine

LISTS = {
    "context list": (ContextRow, ("context", "add", "one")),
    "keys list": (KeyLine, ("keys", "new", "one")),
    "clean --dry-run": (CleanRow, ()),
}


@pytest.mark.parametrize("line", LISTS)
def test_a_list_without_rows(line: str, tmp_path: Path) -> None:
    kind, fill = LISTS[line]
    folders = ("CONFIG_HOME", "STATE_HOME", "CACHE_HOME", "RUNTIME_DIR")
    env = {f"XDG_{name}": str(tmp_path / name) for name in folders}
    env.update(PDCTL_RUN_DIR=str(tmp_path / "run"), PDCTL_RECORD_DIR=str(tmp_path / "rec"), HOME=str(tmp_path))

    def text(*words: str) -> str:
        done = CliRunner().invoke(app, list(words), env=env)
        assert done.exit_code == 0, done.output
        return done.stdout

    header = ",".join(kind.__struct_encode_fields__) + "\n"
    assert text(*line.split(), "-o", "jsonl") == ""
    assert text(*line.split(), "-o", "csv") == header
    if fill:
        text(*fill)
        [row] = text(*line.split(), "-o", "jsonl").splitlines()
        assert list(json.loads(row)) == ["schema", "version", *kind.__struct_encode_fields__]
        assert text(*line.split(), "-o", "csv").startswith(header)
