"""The drill for late metadata on real servers: it holds where the gate is, and breaks where it is not or was taken out.

The requests are the test's own, as an operator's traffic would be: ``--load none``.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.engine.conftest import engine
from tests.engine.env import Namespace
from tests.engine.harness import Pair

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@contextlib.contextmanager
def traffic(pair: Pair) -> Iterator[list[bool]]:
    """One request after the other as long as the block lasts; whether each was answered."""
    answered: list[bool] = []
    enough = threading.Event()

    def send() -> None:
        while not enough.is_set():
            [outcome] = pair.begin(1, limit_s=60)
            answered.append(outcome().tokens is not None)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield answered
    finally:
        enough.set()


@pytest.mark.parametrize(
    ("version", "environ", "verdict"),
    [
        ("0.5.13.post1", {}, "HOLDS"),
        ("0.5.13.post1", {"PDCTL_REVERT": "gate"}, "BROKEN"),
        ("0.5.12.post1", {}, "BROKEN"),
    ],
)
def test_late_metadata(
    version: str, environ: Mapping[str, str], verdict: str, site: Path, namespace: Namespace, tmp_path: Path
) -> None:
    control = ["--control"] if verdict == "BROKEN" else []
    journal = tmp_path / "journal"
    with Pair.start(engine(version, site), namespace, tmp_path, environ=environ) as pair:
        lacks = {rank.identity.role: rank.identity.lacks for rank in pair.ranks()}
        assert lacks == {"prefill": (), "decode": ("gate",) if control else ()}
        with traffic(pair) as answered:
            done = pair.pdctl(
                "drill", "run", "metadata-gate", "--load", "none", "--journal", str(journal), "-o", "json", *control,
                limit_s=300,
            )  # fmt: skip
        said = f"{done.stdout}\n{done.stderr}"
        assert done.stdout, said
        document = json.loads(done.stdout)
        assert document["verdict"] == verdict, said
        assert done.returncode == {"HOLDS": 0, "BROKEN": 1}[verdict]
        assert any(answered)
        assert pair.pdctl("faults").returncode == 0
    again = pair.pdctl("drill", "judge", str(journal), "-o", "json")
    assert json.loads(again.stdout)["verdict"] == verdict
