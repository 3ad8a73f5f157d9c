"""``check --probe``: whoever restarts what it fails on does so for an error alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pdctl.probes import run as runner
from pdctl.probes.base import WrongOptionError
from pdctl.probes.check.probe import PROBE, CheckOptions
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.findings import finding
from pdctl.report.output import Output

ERROR, WARNING = finding("PD101", "two ranks differ"), finding("PD112", "a rank is silent")


@pytest.mark.parametrize(
    ("findings", "seen", "partial", "code"),
    [
        ((ERROR,), True, True, Exit.FINDING),
        ((WARNING,), True, True, Exit.CLEAN),
        ((), True, True, Exit.CLEAN),
        ((), False, False, Exit.CLEAN),
    ],
)
def test_an_error_alone_fails(findings: Any, seen: bool, partial: bool, code: Exit) -> None:
    options = CheckOptions(probe=True)
    level, alone = PROBE.fails_on(options), PROBE.fails_alone(options)
    assert runner.exit_code(findings, seen=seen, partial=partial, level=level, alone=alone) is code


@pytest.mark.parametrize("error", [PdctlError("no ranks found"), RuntimeError("a defect"), OSError("disk full")])
def test_what_goes_wrong_is_said_and_is_no_failure(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(runner, "find", fails)
    assert runner.run(PROBE, CheckOptions(probe=True), runner.Asked(), Output()) is Exit.CLEAN
    assert str(error) in capsys.readouterr().err
    with pytest.raises(type(error)):
        runner.run(PROBE, CheckOptions(), runner.Asked(), Output())


def test_wrong_usage_stays_wrong_usage() -> None:
    for options in (CheckOptions(probe=True, fail_on="info"), CheckOptions(probe=True, only=("nothing",))):
        with pytest.raises(WrongOptionError):
            runner.run(PROBE, options, runner.Asked(), Output())


def test_nobody_there_is_no_reason_to_restart(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "PDCTL_RUN_DIR": str(tmp_path / "run"),
        "PDCTL_RECORD_DIR": str(tmp_path / "rec"),
        "PDCTL_OUTSIDE": "off",
    }
    line = [sys.executable, "-m", "pdctl.cli", "check", "--probe", "-o", "json"]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("not judged: no ranks found")
