"""What runs of an emitted test say of engine versions, and how a version is laid over an environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pdctl.protocol.errors import PdctlError
from pdctl.replay import wheels
from pdctl.replay.bisect import FAILS, NOT_JUDGED, PASSES, Judged, judge, ordered, outcome

FIRST_GOOD = "{} is the first version on which the test passes; {} is the last on which it fails"


@pytest.mark.parametrize(
    ("outcomes", "verdict", "bad", "good"),
    [
        ((FAILS, FAILS, PASSES), FIRST_GOOD.format(2, 1), "1", "2"),
        ((FAILS, NOT_JUDGED, PASSES), f"{FIRST_GOOD.format(2, 0)}; not judged between them: 1", "0", "2"),
        ((PASSES, FAILS), "the test passes up to 0 and fails from 1 on", "", ""),
        ((PASSES, PASSES), "the test passes on every version", "", ""),
        ((FAILS, NOT_JUDGED), "the test fails on every version that could be judged", "", ""),
        ((FAILS, PASSES, FAILS), "the outcome changes 2 times: the fix came and went, or the test depends on time", "", ""),
        ((NOT_JUDGED,), "no version could be judged", "", ""),
    ],
)  # fmt: skip
def test_the_verdict_over_all_versions(outcomes: tuple[str, ...], verdict: str, bad: str, good: str) -> None:
    seen = judge("x.pdtrace", [Judged(engine=str(n), outcome=one) for n, one in enumerate(outcomes)])
    assert (seen.verdict, seen.last_bad, seen.first_good) == (verdict, bad, good)


@pytest.mark.parametrize(
    ("kind", "text", "what"),
    [
        ("passed", "", PASSES),
        ("assertion", "turn 3: the ranks' transfer queues are [[1], []]\nassert False", FAILS),
        ("assertion", "turn 3: the ranks took these requests over: [[1], []]", FAILS),
        ("assertion", "ranks stopped after turns [4, 6]:\nTraceback\nRuntimeError: Connection closed", FAILS),
        ("assertion", "ranks stopped after turns [2, 2]:\nTraceback\nAttributeError: no such thing", NOT_JUDGED),
        ("assertion", "a rank did not start:\nImportError: libcuda.so.1", NOT_JUDGED),
        ("skipped", "it tests SGLang's own code, which is not installed", NOT_JUDGED),
        ("error", "TypeError: x", NOT_JUDGED),
    ],
)
def test_a_test_that_could_not_begin_says_nothing_of_the_engine(kind: str, text: str, what: str) -> None:
    found, why = outcome(kind, text)
    assert found == what
    assert why
    assert "\n" not in why


def test_versions_go_from_old_to_new() -> None:
    assert ordered(["0.5.13.post1", "0.5.9", "0.5.13.post1", "0.5.13"]) == ["0.5.9", "0.5.13", "0.5.13.post1"]
    assert ordered(["0.5.13", "src/python", "0.5.9"]) == ["0.5.13", "src/python", "0.5.9"]


def test_a_directory_is_laid_over_the_environment(tmp_path: Path) -> None:
    test = tmp_path / "test_ranks.py"
    test.write_text(
        f"import sglang\ndef {wheels.TEST}(folder):\n    assert folder.is_dir()\n    assert sglang.good, 'turn 1: '\\\n"
        '        "the ranks\' transfer queues are apart"\n'
    )
    for name in ("good", "bad"):
        package = tmp_path / name / "sglang"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"good = {name == 'good'}\n")
    seen = [wheels.run(sys.executable, test, str(tmp_path / name), None, 60) for name in ("bad", "good", "none")]
    assert [one.outcome for one in seen] == [FAILS, PASSES, NOT_JUDGED]
    assert "sglang" in seen[2].text


def test_a_package_in_the_current_directory_is_not_taken_for_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = tmp_path / "test_ranks.py"
    test.write_text(f"import sglang\ndef {wheels.TEST}(folder):\n    assert sglang.mine\n")
    for name in ("version", "here"):
        package = tmp_path / name / "sglang"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"mine = {name == 'version'}\n")
    monkeypatch.chdir(tmp_path / "here")
    assert wheels.run(sys.executable, test, str(tmp_path / "version"), None, 60).outcome == PASSES


def test_a_version_that_can_not_be_installed_is_not_judged(tmp_path: Path) -> None:
    pip = tmp_path / "python"
    pip.write_text("#!/bin/sh\necho 'ERROR: No matching distribution found for sglang==9.9.9'\nexit 1\n")
    pip.chmod(0o755)
    seen = wheels.run(str(pip), tmp_path / "x", "9.9.9", tmp_path / "kept", 60)
    assert seen.outcome == NOT_JUDGED
    assert seen.text == "pip could not install sglang==9.9.9: ERROR: No matching distribution found for sglang==9.9.9"


def test_a_run_without_end_is_ended(tmp_path: Path) -> None:
    test = tmp_path / "test_ranks.py"
    test.write_text(f"import time\ndef {wheels.TEST}(folder):\n    time.sleep(600)\n")
    seen = wheels.run(sys.executable, test, str(tmp_path), None, 0.5)
    assert (seen.outcome, seen.text) == (NOT_JUDGED, "it did not end within 0.5 s")


def test_what_is_no_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PdctlError, match="is no Python"):
        wheels.engine_python(tmp_path / "python")
