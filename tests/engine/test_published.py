"""Ranks of real servers listen on TCP and publish themselves in the store that SGLang made for its own process groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.conftest import engine
from tests.engine.env import Namespace
from tests.engine.harness import Pair, wait_for
from tests.system.curve import Keyring
from tests.system.tiny_ranks import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
STORE = "127.0.0.1:31987"


@pytest.mark.parametrize("version", ["0.5.12.post1", "0.5.23"])
def test_a_server_is_found_by_its_dist_init_addr(
    version: str, site: Path, namespace: Namespace, tmp_path: Path
) -> None:
    env = engine(version, site)
    ring = Keyring(tmp_path, alice="observe")
    environ = {"PDCTL_LISTEN": "tcp://127.0.0.1", **ring.env}
    away = {"PDCTL_RUN_DIR": "", "PDCTL_RECORD_DIR": "", "PYTHONPATH": str(ROOT), **ring.env}
    command = (sys.executable, "-m", "pdctl.cli", "--store", STORE, "ranks", "-o", "json", "--timeout", "40")
    with Pair.start(
        env, namespace, tmp_path, decode_tp=1, prefill_args=("--dist-init-addr", STORE), environ=environ
    ) as pair:

        def found() -> list[dict[str, object]]:
            done = subprocess.run(
                pair.ns.argv(command), env={**os.environ, **away}, capture_output=True, text=True, check=False
            )
            return json.loads(done.stdout)["ranks"] if done.returncode == 0 else []

        rows = wait_for("the prefill rank is published", found, 120, 1.0)
        assert [(row["role"], row["state"], row["engine_version"]) for row in rows] == [("prefill", "live", version)]
        assert str(rows[0]["endpoint"]).startswith("tcp://127.0.0.1:")
        [answer] = pair.begin(1, limit_s=300)
        assert answer().tokens
