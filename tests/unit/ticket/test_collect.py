"""Names that one part of a bundle tells go from all others; what can't be hidden in time is left out."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pdctl.ticket import collect
from pdctl.ticket.collect import Asked, Wanted, bundle
from pdctl.ticket.hide import HidingError

SAID = {"findings": [{"summary": "node9 is gone"}]}


class Told:
    """A part that is made at once."""

    code, said, seconds = 0, "", 0.0

    def __init__(self, file: Path, _arguments: Sequence[str], _env: Mapping[str, str]) -> None:
        self.file = file
        file.write_text(json.dumps(SAID))

    def ended(self, _within_s: float, _over: object) -> str:
        return ""


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, ...]:
    monkeypatch.setattr(collect, "STEPS", ((), (Wanted("check", ("check",)),)))
    monkeypatch.setattr(collect, "Part", Told)
    lines = ("node9 is gone\n", "ssh: Could not resolve hostname node9: Name or service not known\n")
    paths = tuple(tmp_path / f"{number}.log" for number in (1, 2))
    for path, line in zip(paths, lines, strict=True):
        path.write_text(line)
    return paths


def taken(file: Path, asked: Asked) -> tuple[dict[str, str], dict[str, str]]:
    """Return what each file of the bundle has, and what was said of each part that is missing."""
    made = bundle(file, asked)
    with zipfile.ZipFile(file) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert not [name for name, text in texts.items() if "node9" in text]
    return texts, {row.name: row.reason for row in made.collectors if row.status == collect.MISSING}


def test_a_name_that_the_last_log_tells_goes_from_the_first_and_from_documents(
    tmp_path: Path, logs: tuple[Path, ...]
) -> None:
    texts, missing = taken(tmp_path / "b.zip", Asked({}, logs=logs))
    assert missing == {}
    host = json.loads(texts["documents/check.json"])["findings"][0]["summary"].partition(" ")[0]
    assert host.startswith("host-")
    assert texts["logs/1.log"] == f"{host} is gone\n"
    assert f"hostname {host}: Name" in texts["logs/2.log"]


def test_what_there_is_no_time_to_hide_is_left_out(tmp_path: Path, logs: tuple[Path, ...]) -> None:
    texts, missing = taken(tmp_path / "b.zip", Asked({}, logs=logs, timeout_s=0.0))
    assert set(texts) == {"manifest.json"}
    assert missing.keys() == {"check", "log-1", "log-2"}
    assert missing["log-2"] == collect.LATE


@pytest.mark.parametrize("calls", [2, 3, 4, 5, 6, 7])
def test_time_that_is_over_at_any_step_leaves_out_the_rest(
    tmp_path: Path, logs: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    left = iter(range(calls))

    def hide_more(_: object) -> None:
        if next(left, None) is None:
            raise HidingError(collect.LATE)

    monkeypatch.setattr(collect._Bundle, "hide_more", hide_more)
    texts, missing = taken(tmp_path / "b.zip", Asked({}, hosts=("node9",), logs=logs))
    assert set(missing.values()) == {collect.LATE}
    assert len(texts) - 1 + len(missing) == 3
