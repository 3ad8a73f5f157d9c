"""What tests of ranks that listen for other hosts share. A test file with a fixture of the same name has its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.curve import Keyring
from tests.support.tiny_ranks import TinyRanks


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[TinyRanks]:
    with TinyRanks(tmp_path) as made:
        yield made


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, alice="observe", bob="inject")
