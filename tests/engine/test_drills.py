"""The drill for late metadata where the gate never was; ``test_gate`` has it where the gate is, and where it was taken out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.conftest import engine
from tests.engine.drilling import drill_late_metadata
from tests.engine.env import Namespace
from tests.engine.harness import Pair

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]


def test_late_metadata_breaks_what_has_no_gate(site: Path, namespace: Namespace, tmp_path: Path) -> None:
    with Pair.start(engine("0.5.12.post1", site), namespace, tmp_path) as pair:
        drill_late_metadata(pair, tmp_path / "journal", control=True)
