"""``make test-upstream`` sees what hooks change, and nothing where they change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import upstream
from tests.engine.install import install

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]

TESTS = """
import unittest
from unittest.mock import MagicMock

from sglang.srt.disaggregation.common.conn import CommonKVManager
from sglang.srt.disaggregation.nixl.conn import NixlKVManager
from sglang.srt.managers.scheduler import Scheduler


class OfTheEngine(unittest.TestCase):
    def test_that_passes(self):
        manager = CommonKVManager.__new__(CommonKVManager)
        manager.request_status = {7: 1}
        manager.update_status(7, 3)
        self.assertEqual(manager.request_status, {7: 3})

    def test_that_fails(self):
        for part in range(2):
            with self.subTest(part=part):
                self.assertEqual(part, 0)

    @unittest.skip("it needs a GPU")
    def test_that_is_skipped(self): ...

    def test_that_looks_for_hooks(self):
        self.assertEqual(Scheduler.process_input_requests.__qualname__, "Scheduler.process_input_requests")

    def test_that_looks_for_hooks_of_one_rank(self):
        self.assertTrue(NixlKVManager.send_aux.__qualname__.startswith("NixlKVManager."))

    def test_that_is_too_strange_for_a_hook(self):
        with self.assertRaises(Exception):
            Scheduler.abort_request(MagicMock(), None)
"""


def test_outcomes_with_hooks_and_without(tmp_path: Path) -> None:
    install(["0.5.23"], pytest=True)
    (tmp_path / "test_engine.py").write_text(TESTS)
    (tmp_path / "test_of_another_version.py").write_text("from sglang.srt.disaggregation import that_is_nowhere\n")
    one, older = upstream.run("0.5.23", sorted(tmp_path.glob("test_*.py")))
    assert one.counts() == (4, 1, 1), one
    of_every = "test_engine.py::OfTheEngine::test_that_looks_for_hooks"
    assert set(one.other) == {" ".join(rank) for rank in upstream.RANKS}
    for rank, other in one.other.items():
        expected = {of_every, f"{of_every}_of_one_rank"} if rank == "prefill Nixl" else {of_every}
        assert set(other) == expected
    assert older.found == {"test_of_another_version.py": "failed: ImportError"}
    assert not older.other
