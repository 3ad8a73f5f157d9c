"""Names that one part of a bundle tells go from all others; what can't be hidden in time is left out."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pdctl.ticket import collect, hide
from pdctl.ticket import logs as ends
from pdctl.ticket.collect import Asked, Wanted, bundle
from pdctl.ticket.hide import HidingError
from pdctl.trace.manifest import new
from tests.support.patience import patience

SAID: dict[str, object] = {"findings": [{"summary": "node9 is gone"}]}


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


def slow(monkeypatch: pytest.MonkeyPatch, took_s: float) -> None:
    """Let each part take ``took_s`` seconds of the clock."""
    clock, late = time.monotonic, [0.0]

    def ended(*_: object) -> str:
        late[0] += took_s
        return ""

    monkeypatch.setattr(time, "monotonic", lambda: clock() + late[0])
    monkeypatch.setattr(Told, "ended", ended)


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


@pytest.mark.parametrize("calls", [*range(2, 6), *range(26, 33)])
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


@pytest.mark.parametrize(("took_s", "spent_s", "kept"), [(70.0, 0.0, True), (110.0, 0.0, False), (70.0, 40.0, False)])
def test_hiding_has_what_is_left_of_the_time_of_the_command(
    tmp_path: Path,
    logs: tuple[Path, ...],
    monkeypatch: pytest.MonkeyPatch,
    took_s: float,
    spent_s: float,
    kept: bool,
) -> None:
    slow(monkeypatch, took_s)
    _, missing = taken(tmp_path / "b.zip", Asked({}, logs=logs, timeout_s=100.0, spent_s=spent_s))
    assert missing == ({} if kept else dict.fromkeys(("check", "log-1", "log-2"), collect.LATE))


def test_parts_leave_time_for_hiding(tmp_path: Path, logs: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "STEPS", ((), (Wanted("check", ("check",)),), (Wanted("stuck", ("stuck",)),)))
    slow(monkeypatch, 80.0)
    _, missing = taken(tmp_path / "b.zip", Asked({}, logs=logs, timeout_s=100.0))
    assert missing == {"stuck": "not run: no time left of 100 s (--timeout)"}


def test_a_manifest_with_too_many_names_tells_nothing_and_parts_do(
    tmp_path: Path, logs: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = tuple(f"connect to host gpu-{number} port 22" for number in range(10))
    made = collect._Bundle(Asked({}, logs=logs), tmp_path, time.monotonic() + patience(100))
    collect._logs(made)
    monkeypatch.setattr(hide, "_MOST_HOSTS", 8)
    written = collect._packed(tmp_path / "b.zip", made, new("", problems=problems), (), force=False)
    assert written.problems == (hide.LEFT_OUT,) * 10
    assert [row.status for row in written.collectors] == [collect.KEPT] * 2


def test_a_text_too_long_to_be_searched_is_left_out(
    tmp_path: Path, logs: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SAID, "text", "x" * (hide.MOST_TEXT + 1))
    _, missing = taken(tmp_path / "b.zip", Asked({}, logs=logs))
    assert missing.keys() == {"check"}
    assert "at most 1048576 are searched for names" in missing["check"]


def test_a_link_that_others_made_in_a_directory_of_logs_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("for the bundle's maker only\n")
    (tmp_path / "a.log").write_text("a line\n")
    (tmp_path / "b.log").symlink_to(tmp_path / "secret")
    found = ends.log_files([tmp_path])
    assert [ends.tail(one) for one in found] == [["a line"], ["for the bundle's maker only"]]
    monkeypatch.setattr(ends, "owners", lambda: ())
    assert ends.tail(found[0]) == ["a line"]
    with pytest.raises(OSError, match="is a link"):
        ends.tail(found[1])
