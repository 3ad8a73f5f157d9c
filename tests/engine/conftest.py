"""What the engine tests share: pdctl installed beside the engine, the engine's versions, a network of their own."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.engine import recipe
from tests.engine.env import (
    EngineEnv,
    EngineNotInstalledError,
    Namespace,
    engine_env,
    install_pdctl,
    loopback_namespace,
)
from tests.engine.light.host import LightHost, LightRun

EVERY_VERSION = [
    pytest.param(one.version, marks=[] if one.often else pytest.mark.long) for one in recipe.VERSIONS.values()
]
"""Parameters of tests that run for each version, those that are not tested at every change in the long ones."""
LIGHT = ("env", "explorer_policies", "heartbeats", "light", "light_reductions", "replay", "replay_light", "routing")


class OneWorkerAnEngine(LoadScopeScheduling):
    """Sends all tests of one version's light host, and all of one pair of servers, to the same worker."""

    def _split_scope(self, nodeid: str) -> str:
        found = re.search(r"test_(\w+)\.py::.*\[(\d+\.\d+\.\d+(?:\.post\d+)?)", nodeid)
        if not found:
            return nodeid
        return f"light {found[2]}" if found[1] in LIGHT else f"{found[1]} {found[2]}"


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneWorkerAnEngine:
    return OneWorkerAnEngine(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Pairs come first, since they take longest."""
    items.sort(key=lambda item: "namespace" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with pdctl as pip installs it, its entry point included."""
    return install_pdctl(tmp_path_factory.mktemp("pdctl") / "site")


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    with loopback_namespace() as ns:
        yield ns


Hosts = Callable[[str], LightHost]


@pytest.fixture(scope="session")
def hosts(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """The light host of a version, which imports the engine when it is first asked for and serves all its tests."""
    started: dict[str, LightHost] = {}
    with contextlib.ExitStack() as stack:
        ns = stack.enter_context(loopback_namespace())

        def host_of(version: str) -> LightHost:
            if version not in started:
                log = tmp_path_factory.mktemp("light") / "host.log"
                started[version] = stack.enter_context(LightHost.start(engine(version, site), ns, log))
            return started[version]

        yield host_of


@pytest.fixture
def host(version: str, hosts: Hosts) -> Iterator[LightHost]:
    """The light host of a test's ``version``; ranks that the test leaves behind are ended."""
    of_version = hosts(version)
    yield of_version
    of_version.end_runs()


@pytest.fixture
def finish(host: LightHost, tmp_path: Path) -> Iterator[Callable[..., LightRun]]:
    """Run a script that ends."""
    numbers = itertools.count()

    def run(script: dict[str, object], role: str) -> LightRun:
        folder = tmp_path / f"run{next(numbers)}"
        folder.mkdir()
        started = host.run(script, role, folder)
        ended = host.wait(started, 120)
        assert ended, f"still running:\n{started.output()}"
        assert set(started.ended.values()) == {0}, started.output()
        return started

    return run


def engine(version: str, site: Path) -> EngineEnv:
    """Return the environment of a version with pdctl in it; skips the test where that version is not installed."""
    try:
        return engine_env(version).with_path(site)
    except EngineNotInstalledError as error:
        pytest.skip(str(error))
