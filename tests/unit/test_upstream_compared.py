"""What is said of SGLang's own tests, run without pdctl's hooks and with them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.engine import upstream
from tests.engine.upstream import Compared, differing, table
from tools.provision import SetupError

WITHOUT = {"test_a.py::one": "passed", "test_a.py::two": "failed: KeyError", "test_a.py::three": "skipped"}


def test_the_same_outcomes_differ_in_nothing() -> None:
    assert differing(WITHOUT, dict(reversed(WITHOUT.items()))) == {}


def test_another_exception_a_test_that_did_not_run_and_one_that_came_are_differences() -> None:
    now = {"test_a.py::one": "passed", "test_a.py::two": "failed: TypeError", "test_a.py::four": "passed"}
    assert differing(WITHOUT, now) == {
        "test_a.py::two": "failed: TypeError",
        "test_a.py::three": "not run",
        "test_a.py::four": "passed",
    }


def test_the_table_counts_what_came_out_without_hooks_and_names_each_difference() -> None:
    same = Compared("test_long_name.py", {"test_long_name.py::one": "passed"}, errors={"decode Nixl": ["x"]})
    other = Compared("test_a.py", WITHOUT, {"decode Mooncake": {"test_a.py::one": "failed: KeyError"}}, {})
    lines = table([same, other])
    assert lines[1].split() == ["test_long_name.py", "1", "0", "0", "the", "same"]
    assert lines[2].split() == ["test_a.py", "1", "1", "1", "1", "differ"]
    assert lines[3] == "  test_a.py::one is passed; with the hooks of decode Mooncake: failed: KeyError"
    assert lines[4] == "2 passed, 1 failed, 1 skipped without hooks; in 1 a hook met what it does not know"


def test_what_comes_out_by_chance_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of a test fails, whoever asks; only what fails again with the hooks of a rank is a difference."""
    ran: list[bool] = []

    def run(_host: object, _file: Path, _folder: Path, rank: tuple[str, str], *, hooks: bool = True) -> object:
        ran.append(hooks)
        chance = "passed" if len(ran) > 1 else "failed: OSError"
        harmed = "failed: KeyError" if hooks and rank == ("decode", "Nixl") else "passed"
        return {"found": {"by chance": chance, "harmed": harmed}, "errors": {}}

    monkeypatch.setattr(upstream, "_run", run)
    compared = upstream.compare(None, Path("test_a.py"), Path())  # type: ignore[arg-type]
    assert compared.other == {"decode Nixl": {"harmed": "failed: KeyError"}}


class HostThatTellsNothing:
    """Its program ends before it has written what came out."""

    def program(self, _folder: Path, *argv: object, env: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, -11, "", "a line\nSegmentation fault")


def test_a_run_that_did_not_end_is_no_outcome(tmp_path: Path) -> None:
    host = HostThatTellsNothing()
    with pytest.raises(SetupError, match=r"test_a.py with no hooks ended with -11 .*\n?.*Segmentation fault"):
        upstream.compare(host, Path("test_a.py"), tmp_path)  # type: ignore[arg-type]


def test_a_folder_without_tests_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert upstream.main([str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "has no test_*.py" in line
