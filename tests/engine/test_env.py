"""The environments themselves: isolation of the network, and what each version finds on its path."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.engine import recipe
from tests.engine.conftest import EVERY_VERSION
from tests.engine.env import loopback_namespace
from tests.engine.light.host import LightHost
from tests.support.patience import patience, until

pytestmark = pytest.mark.engine


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_what_listens_in_the_namespace_is_reached_from_inside_only() -> None:
    with loopback_namespace() as ns:
        assert ns.private
        with ns.entered(), socket.create_server(("0.0.0.0", 0)) as server:
            address = ("127.0.0.1", server.getsockname()[1])
            inside: list[socket.socket] = []
            thread = threading.Thread(target=lambda: inside.append(socket.create_connection(address, 2)))
            thread.start()
            thread.join()
            assert len(inside) == 1, "a thread that was started inside is inside"
            inside[0].close()
            listening = server.dup()
        with listening, pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 2)
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    assert ns.name not in names


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_nothing_that_ran_in_the_namespace_outlives_it() -> None:
    with loopback_namespace() as ns:
        # A session of its own, as the engine's servers have: no group or terminal to end it by.
        process = subprocess.Popen(ns.argv(["sleep", "600"]), start_new_session=True)
        inside = ["ip", "netns", "pids", str(ns.name)]
        until("it runs inside", lambda: subprocess.run(inside, capture_output=True, check=True).stdout)
    assert process.wait(timeout=patience(10)) == -signal.SIGKILL


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_the_engine_has_its_version_its_patches_and_the_agents_entry_point(
    version: str, host: LightHost, tmp_path: Path
) -> None:
    script = """
import importlib.metadata as m, sys
import torchvision, transformers, mooncake.engine
print(m.version("sglang"), m.version("transformers"), transformers.__version__)
print([p.value for p in m.entry_points(group="sglang.srt.plugins") if p.name == "pdctl"])
print([type(f).__module__ for f in sys.meta_path if type(f).__module__ == "_engine_test_patches"])
"""
    done = host.program(tmp_path, "-c", script)
    assert done.returncode == 0, done.stderr
    versions, plugins, patches = done.stdout.splitlines()
    sglang, distribution, module = versions.split()
    assert sglang == version
    assert distribution == module
    assert plugins == "['pdctl.agent.plugin:register']"
    assert patches == ("['_engine_test_patches']" if recipe.VERSIONS[version].patches else "[]")
