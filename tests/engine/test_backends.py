"""What pdctl finds in the code of each transfer backend, and faults at rows that real NIXL writes. No server runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import engine
from tests.engine.env import EngineEnv, EngineNotInstalledError
from tests.engine.recipe import ASSETS
from tests.support.patience import patience

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

HEARD = [["events.transfer-done", True]]
NIXL = {
    "0.5.12.post1": {"ends": [False, True], "lacks": ["failures"], "aux": "bound", "heard": HEARD},
    "0.5.13.post1": {"ends": [False, True], "lacks": ["aborts", "failures"], "aux": "bound", "heard": HEARD},
    "0.5.23": {"ends": [True, True], "lacks": [], "aux": "rdma", "heard": []},
}
OWED = {"owed": ["bootstrap_thread", ""]}
MOONCAKE = {"ends": [True, True], "lacks": [], "aux": "rdma", "heard": []}


def printed(env: EngineEnv, script: str) -> Any:
    done = subprocess.run(
        [str(env.python), str(ASSETS / script)],
        env=env.process_environ(),
        capture_output=True,
        text=True,
        timeout=patience(200),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("version", NIXL)
def test_what_the_code_of_each_backend_tells(version: str, site: Path) -> None:
    found = printed(engine(version, site), "backend_facts.py")
    assert found["NixlKVManager"] == {**NIXL[version], **OWED}
    assert found["MooncakeKVManager"] == {**MOONCAKE, **OWED}
    assert found["AscendKVManager"] == {**MOONCAKE, "aux": "", "owed": found["AscendKVManager"]["owed"]}


def test_rows_over_nixl_with_each_fault(site: Path) -> None:
    try:
        env = engine("0.5.13.post1", site).over_nixl()
    except EngineNotInstalledError as error:
        pytest.skip(str(error))
    found = printed(env, "nixl_rows.py")
    aux = ["77_aux"]
    plain = {"state": "DONE", "heard": aux, "room": 77, "later": [], "room_later": 77}
    assert found["none"] == found["after"] == plain
    assert found["delay-metadata"] == found["drop-metadata"] == {**plain, "room": 0}
    assert found["stall-transfer"] == found["drop-status"] == {**plain, "heard": [], "later": aux}
    assert found["corrupt-room"]["room"] not in (0, 77)
    assert found["corrupt-room"]["heard"] == aux
    assert "a fault of pdctl" in found["fail-transfer"]["error"]
    assert found["errors"] == {}
