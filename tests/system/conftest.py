"""What system tests share: each has labs, ranks and keys of its own, in directories of its own.

A test file with a fixture of the same name changes what it gets from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.curve import Keyring
from tests.support.labs import Labs
from tests.support.tiny_ranks import TinyRanks


@pytest.fixture
def labs() -> Iterator[Labs]:
    with Labs() as made:
        yield made


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[TinyRanks]:
    with TinyRanks(tmp_path) as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        yield made


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, alice="observe", bob="inject")
