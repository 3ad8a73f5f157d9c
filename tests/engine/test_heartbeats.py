"""The site of ``silence-heartbeat`` in every version's own heartbeat thread."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from pdctl.model import KVPoll
from tests.engine import recipe
from tests.engine.conftest import engine
from tests.engine.env import Namespace

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "light" / "heartbeat.py"


@pytest.mark.parametrize("version", recipe.VERSIONS)
def test_silenced_heartbeats_have_the_engine_give_the_server_up(version: str, site: Path, namespace: Namespace) -> None:
    env = engine(version, site)
    done = subprocess.run(
        namespace.argv([str(env.python), str(SCRIPT)]),
        env=env.process_environ(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    went = json.loads(done.stdout.splitlines()[-1])
    assert not went["without_thread"], "no thread, no site"
    assert went["present"]
    assert went["before"] == KVPoll.WAITING_FOR_INPUT
    assert went["fired"] >= 2
    assert went["sent_while_silent"] == 0
    assert "connection with prefill instance" in went["reason"]
    assert not went["errors"]
