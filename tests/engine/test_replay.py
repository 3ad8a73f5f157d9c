"""A recorded hang on the engine's own functions: the emitted test fails where the gate is missing, and passes where it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.env import ROOT
from tests.engine.light.host import LightHost
from tests.support.patience import patience

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

REAL = ROOT / "tests" / "data" / "sglang-0.5.12.post1-c1.pdtrace"
ROOM = 16851422098683615
OFF = {"PDCTL_AGENT": "off"}
# The engine's environment has no pytest; the emitted test needs nothing of it but a folder.
RUN = "import pathlib, runpy, sys; runpy.run_path(sys.argv[1])['test_ranks_stay_in_step'](pathlib.Path(sys.argv[2]))"


@pytest.mark.parametrize(("version", "gate"), [("0.5.12.post1", False), ("0.5.13.post1", True)])
def test_the_emitted_test(version: str, gate: bool, host: LightHost, tmp_path: Path) -> None:
    file = tmp_path / "test_ranks.py"
    emit = [sys.executable, "-m", "pdctl.cli", "replay", str(REAL), "--emit-test", str(file)]
    assert subprocess.run(emit, cwd=ROOT, capture_output=True, check=False).returncode == 0
    folder = tmp_path / "run"
    folder.mkdir()
    done = host.program(folder, "-c", RUN, file, folder, env=OFF)
    if gate:
        assert done.returncode == 0, done.stderr[-4000:]
    else:
        assert done.returncode == 1
        assert "AssertionError: turn" in done.stderr, done.stderr[-4000:]
        assert "the ranks' transfer queues are" in done.stderr
        assert str(ROOM) in done.stderr


@pytest.mark.parametrize(
    ("version", "gate", "verdict"), [("0.5.12.post1", "off", "DIVERGES"), ("0.5.13.post1", "on", "DIFFERS")]
)
def test_the_engines_own_poll_and_gate(version: str, gate: str, verdict: str, host: LightHost, tmp_path: Path) -> None:
    """Polled, gated and reduced by SGLang's functions, round for round the same as by pdctl's."""
    words = ("replay", REAL, "--engine", "sglang", "--gate", gate, "--queue", "decode.transfer", "--repeats", 5)
    limit = ("--round-timeout", f"{patience(8):g}s")
    done = host.program(tmp_path, "-m", "pdctl.cli", *words, *limit, "-o", "json", env=OFF)
    assert done.stdout, done.stderr[-4000:]
    [one] = json.loads(done.stdout)["groups"][0]["runs"]
    assert (one["verdict"], one["round"], one["rooms"]) == (verdict, 247, [ROOM])
    assert (one["engine"], one["engine_differs"]) == ("sglang", [])
    if gate == "off":
        words = ("replay", REAL, "--engine", "sglang", "--gate", "on")
        refused = host.program(tmp_path, "-m", "pdctl.cli", *words, env=OFF)
        assert refused.returncode == 2
        assert "has no metadata gate" in refused.stderr
