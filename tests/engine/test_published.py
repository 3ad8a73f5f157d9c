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
from tests.engine.harness import Pair
from tests.support.curve import Keyring
from tests.support.patience import until
from tests.support.tiny_ranks import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]
STORE = "127.0.0.1:31987"


@pytest.mark.parametrize(("version", "given"), [("0.5.12.post1", True), ("0.5.23", False)])
def test_a_server_is_found_by_its_store(
    version: str, given: bool, site: Path, namespace: Namespace, tmp_path: Path
) -> None:
    """given: by --dist-init-addr. Without, SGLang takes a port that nothing but its ranks tells."""
    env = engine(version, site)
    ring = Keyring(tmp_path, alice="observe")
    environ = {"PDCTL_LISTEN": "tcp://127.0.0.1", **ring.env}
    away = {"PDCTL_RUN_DIR": "", "PDCTL_RECORD_DIR": "", "PYTHONPATH": str(ROOT), **ring.env}
    away["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    command = (sys.executable, "-m", "pdctl.cli", "ranks", "-o", "json", "--timeout", "40")
    prefill_args = ("--dist-init-addr", STORE) if given else ()
    with Pair.start(env, namespace, tmp_path, decode_tp=1, prefill_args=prefill_args, environ=environ) as pair:
        here = json.loads(pair.pdctl("ranks", "-o", "json", "--timeout", "40", "--rank-timeout", "40").stdout)["ranks"]
        stores = {row["role"]: row["store"] for row in here}
        assert given == (stores["prefill"] == STORE)
        assert stores["prefill"] != stores["decode"], "a store a server"

        for role in ("prefill",) if given else ("prefill", "decode"):
            named = {**os.environ, **away, "PDCTL_STORE": stores[role]}

            def found(named: dict[str, str] = named) -> list[dict[str, object]]:
                done = subprocess.run(pair.ns.argv(command), env=named, capture_output=True, text=True, check=False)
                return json.loads(done.stdout)["ranks"] if done.returncode == 0 else []

            rows = until(f"the {role} rank is published", found, 120, 1.0)
            assert [(row["role"], row["state"], row["engine_version"]) for row in rows] == [(role, "live", version)]
            assert str(rows[0]["endpoint"]).startswith("tcp://127.0.0.1:")
            assert rows[0]["store"] == stores[role]
        [answer] = pair.begin(1, limit_s=300)
        assert answer().tokens
