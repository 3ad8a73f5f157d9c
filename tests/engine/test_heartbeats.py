"""The site of ``silence-heartbeat`` in every version's own heartbeat thread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdctl.protocol.model import KVPoll
from tests.engine.conftest import EVERY_VERSION
from tests.engine.light.host import LightHost

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "light" / "heartbeat.py"


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_silenced_heartbeats_have_the_engine_give_the_server_up(host: LightHost, tmp_path: Path) -> None:
    done = host.program(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr[-4000:]
    went = json.loads(done.stdout.splitlines()[-1])
    assert not went["without_thread"], "no thread, no site"
    assert went["present"]
    assert went["before"] == KVPoll.WAITING_FOR_INPUT
    assert went["fired"] >= 2
    assert went["sent_while_silent"] == 0
    assert "connection with prefill instance" in went["reason"]
    assert not went["errors"]
