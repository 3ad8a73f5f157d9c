"""What the engine tests share: pdctl installed beside the engine, the engine's versions, a network of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.env import (
    EngineEnv,
    EngineNotInstalledError,
    Namespace,
    engine_env,
    install_pdctl,
    loopback_namespace,
)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with pdctl as pip installs it, its entry point included."""
    return install_pdctl(tmp_path_factory.mktemp("pdctl") / "site")


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    with loopback_namespace() as ns:
        yield ns


def engine(version: str, site: Path) -> EngineEnv:
    """Return the environment of a version with pdctl in it; skips the test where that version is not installed."""
    try:
        return engine_env(version).with_path(site)
    except EngineNotInstalledError as error:
        pytest.skip(str(error))
