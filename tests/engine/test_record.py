"""A real pair that hangs by late metadata (C1), recorded while it does: the trace tells what the pair told.

``PDCTL_TEST_KEEP_TRACE=DIR`` keeps the trace there: tests/unit/data has one, so that what reads traces can be tested without
an engine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pdctl
from tests.engine.conftest import engine
from tests.engine.env import ROOT, Namespace
from tests.engine.harness import Pair

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

VERSION = "0.5.12.post1"


def test_a_hang_is_recorded_when_it_comes(site: Path, namespace: Namespace, tmp_path: Path) -> None:
    env = engine(VERSION, site)
    file = tmp_path / f"sglang-{VERSION}-c1.pdtrace"
    with Pair.start(env, namespace, tmp_path, environ={"PDCTL_RECORD_SIZE": str(1 << 20)}) as pair:
        assert all(pair.one_by_one(3))
        recording = subprocess.Popen(
            pair.ns.argv(
                [
                    sys.executable,
                    "-m",
                    "pdctl.cli",
                    "record",
                    str(file),
                    "--trigger",
                    "diverged",
                    "--for",
                    "5m",
                    "-o",
                    "json",
                ]
            ),
            env={**os.environ, **pair.agent_environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        pair.inject(5.0, 1)
        pair.begin(3, tokens=8, limit_s=20.0)
        out, _ = recording.communicate(timeout=360)
        assert recording.returncode == 0, out
        seen = json.loads(out)["trace"]["divergence"]
        assert (seen["queue"], seen["findings"]) == ("decode.transfer", ["PD101"])
        live = json.loads(pair.pdctl("diff-queues", "-o", "json").stdout)
        told = json.loads(pair.pdctl("diff-queues", "-o", "json", "--from", str(file)).stdout)
        for document in (live, told):
            [finding] = [f for f in document["findings"] if f["level"] != "info"]
            assert finding["code"] == "PD101"
            assert set(finding["rooms"]) & set(seen["rooms"])
            [group] = [g for g in document["groups"] if g["verdict"] == "DIVERGED"]
            assert group["round"] == seen["round"]
        trace = pdctl.load_trace(file)
        assert set(trace.ranks["engine_version"]) == {VERSION}
        split = trace.items[
            (trace.items["queue"] == "decode.transfer") & (trace.items["room"] == seen["rooms"][0])
        ].groupby("rank", observed=True)
        assert split["action"].agg("last").to_dict() == {
            "decode dp0 pp0 tp0": "committed",
            "decode dp0 pp0 tp1": "kept",
        }
    folder = os.environ.get("PDCTL_TEST_KEEP_TRACE")
    if folder:
        shutil.copyfile(file, Path(folder) / file.name)
